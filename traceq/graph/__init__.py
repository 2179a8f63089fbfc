"""Raw tables to linked ones: who called whom, who launched what, in which step."""

"""Reports on the history of a program's runs."""

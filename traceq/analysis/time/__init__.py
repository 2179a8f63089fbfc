"""Where the time of a step goes: by kernel, by cause of an idle GPU, by sync."""

"""Time of a step: by kernel, by cause of an idle GPU, by sync."""

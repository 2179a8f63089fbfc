"""Where the time of a recording goes, one module a format."""

"""A comparison of two recordings, one module a format."""

"""What holds the memory, one module a format."""

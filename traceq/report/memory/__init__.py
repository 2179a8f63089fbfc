"""Reports on memory, one module per format."""

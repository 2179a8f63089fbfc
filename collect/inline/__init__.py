"""Recording from inside the program, without a launcher: standard library and torch."""

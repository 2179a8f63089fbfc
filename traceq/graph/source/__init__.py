"""Source lines: the place in the program from which each op was called."""

"""Source lines: the place in the program that each op was called from."""

"""Patterns in programs: attention, norms, matmuls, copies, loops, compilation."""

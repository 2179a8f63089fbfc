"""What programs do: attention, norms, matmuls, copies, loops, compilation."""

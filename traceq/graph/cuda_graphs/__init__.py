"""CUDA graphs: the ops of replayed kernels, from traces of their captures."""

"""Code that torch.compile generated: the program's lines and ops in each kernel."""

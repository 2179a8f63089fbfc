"""The cache of what was read and found before."""

"""Stand-in for imageio: all images are decoded already."""

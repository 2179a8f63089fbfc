"""Stand-in for skimage.color: only single-channel training converts colours."""

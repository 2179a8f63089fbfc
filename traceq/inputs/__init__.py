"""Paths that a user names, as recordings: discovery, loading and its options."""

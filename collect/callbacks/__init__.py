"""Callbacks of training libraries that record a few steps into a run folder."""

"""Summaries of the time of a recording, one module per format."""

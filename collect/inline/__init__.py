"""A program that records itself, without a launcher: standard library and torch."""

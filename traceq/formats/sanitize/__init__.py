"""Traces and snapshots rewritten with only what is known to be harmless."""

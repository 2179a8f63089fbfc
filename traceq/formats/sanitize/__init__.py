"""Sanitized traces and snapshots, rewritten with only harmless content."""

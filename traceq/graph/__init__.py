"""Linking of raw tables: callers, launches and steps."""

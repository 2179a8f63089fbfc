"""Fixtures and how they differ, one module a format."""

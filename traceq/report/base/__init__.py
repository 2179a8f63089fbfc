"""Shared parts of all reports: safe text, columns, screens."""

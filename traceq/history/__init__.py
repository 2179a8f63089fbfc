"""Runs over time: digests in a SQLite file, jumps between them and their causes."""

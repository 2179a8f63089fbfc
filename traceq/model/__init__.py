"""The tables: their columns, and what the names in them mean."""

"""Data classes: tables and their columns, recordings, findings, meanings of names."""

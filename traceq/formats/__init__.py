"""File formats: bytes are opened, split into events and decoded into raw tables."""

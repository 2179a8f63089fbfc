"""Bytes to raw tables: files are opened, cut into events and decoded here."""

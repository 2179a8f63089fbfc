"""Reports on a job of many ranks, as text and as data."""

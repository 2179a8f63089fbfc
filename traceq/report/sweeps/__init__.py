"""Reports on a sweep: which configuration takes how long, and what grows."""

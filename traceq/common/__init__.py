"""General-purpose helpers that know nothing of traces."""

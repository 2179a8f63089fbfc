"""Cache of tables and findings that were computed before."""

"""Pre-merge check: fixtures, their expected findings, and their budgets."""

"""The pre-merge check: fixtures, what is expected of them, what they may take."""

"""What is said of a job of many ranks, in words and as data."""

"""Runs in both processes: the files by which agents and launcher know each other."""

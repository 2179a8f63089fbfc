"""Runs in the launcher's process: starts the program, keeps stderr, writes run.json.

It never imports torch, and nothing of ``agent/``.
"""

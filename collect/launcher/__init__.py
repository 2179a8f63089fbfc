"""The launcher's process: starts the program, keeps its stderr, writes run.json.

It never imports torch, and nothing from ``agent/``.
"""

"""The trial of remedies, in a process of the program.

It uses the agent's steps and recordings, and is imported for `collect try` only.
"""

"""Runs in the user's program: sees its steps, records some of them, then leaves.

It needs torch and the standard library, and nothing of ``launcher/``.
"""

"""The user's program: the agent counts its steps, records a few, then removes itself.

It needs torch and the standard library, and nothing from ``launcher/``.
"""

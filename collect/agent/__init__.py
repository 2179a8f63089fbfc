"""Agent inside the user's program: counts its steps, records a few, removes itself.

It needs torch and the standard library, and nothing from ``launcher/``.
"""

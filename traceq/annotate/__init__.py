"""Findings inside the trace: tracks of their own, for Perfetto.

What a finding is about is on its kernels (``tracks``), as events of a Chrome trace
(``events``) that are added to the file's own, which stay as they are (``splice``).
"""

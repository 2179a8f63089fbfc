"""Annotation of a trace: findings as tracks of their own, for Perfetto.

``tracks`` places a finding on its kernels, ``events`` writes it as events of a Chrome
trace, and ``splice`` adds these to the file's own events, which stay unchanged.
"""

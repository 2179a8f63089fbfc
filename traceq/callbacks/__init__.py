"""Callbacks of training libraries that record a run folder.

They live in ``collect/``, which works without traceq; here they have a name.
"""

"""Reduction of a trace to a size that can be committed, with the same findings."""

from __future__ import annotations

from traceq.shrink.shrink import Shrunk, shrink

__all__ = ["Shrunk", "shrink"]

"""A trace made small enough to be committed, in which the same is found."""

from __future__ import annotations

from traceq.shrink.shrink import Shrunk, shrink

__all__ = ["Shrunk", "shrink"]

"""Help for tests: traces and memory snapshots drawn as text."""

from __future__ import annotations

from traceq.testing.history import draw_history, load_history
from traceq.testing.timeline import draw, load_drawn

__all__ = ["draw", "draw_history", "load_drawn", "load_history"]

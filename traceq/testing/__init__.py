"""Help for tests of traces: timelines drawn as text."""

from __future__ import annotations

from traceq.testing.timeline import draw, load_drawn

__all__ = ["draw", "load_drawn"]

"""``traceq.record``: numbers of the program, for the run that records it."""

from __future__ import annotations

import sys

_RECORDERS = (
    "_traceq_agent.shared.own_numbers",
    "_traceq_inline.shared.own_numbers",
)
"""Modules that collect and ``profile`` mount: where neither is, nothing records."""


def record(**numbers: object) -> None:
    """Record numbers of the program, as ``traceq.record(loss=loss, tokens=8192)``.

    They become columns of a sweep's tables and charts, and stand in the run file of
    ``traceq collect``. Outside of a recording the call does nothing. A tensor of one
    element is copied and read at the end, so the GPU is not waited for.
    """
    for name in _RECORDERS:
        if recorder := sys.modules.get(name):
            recorder.record(numbers)

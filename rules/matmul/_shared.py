"""Shared code of the rules on matmuls: evidence on their shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import Evidence, listed, shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceq.linter import Row


def shape_lines(calls: Iterable[Row]) -> list[Evidence]:
    """Return the shapes of matmuls, ``left`` and ``right``, as far as known."""
    pairs = [
        f"{shape(call['left'])} × {shape(call['right'])}"
        for call in calls
        if call["left"]
    ]
    return [Evidence("shapes", listed(pairs))] if pairs else []

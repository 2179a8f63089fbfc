"""Polars expressions and joins, for rule packs; see ``traceq.common.expressions``."""

from __future__ import annotations

from traceq.common.expressions import (
    END,
    Condition,
    ascii_only,
    asof,
    constant,
    elements,
    known,
    nth,
    place_among,
    rows_where,
    text,
)

__all__ = [
    "END",
    "Condition",
    "ascii_only",
    "asof",
    "constant",
    "elements",
    "known",
    "nth",
    "place_among",
    "rows_where",
    "text",
]

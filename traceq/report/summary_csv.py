"""Summaries as CSV, for sweeps: one row a trace, in plain numbers."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import polars as pl

from traceq.model.schema import KINDS, PHASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.summary import Summary

_NS_PER_MS = 1e6


def render(summaries: Sequence[Summary]) -> str:
    """Return a line of names and a line for each trace; empty is unknown."""
    text = io.StringIO()
    rows = [_row(summary) for summary in summaries]
    writer = csv.DictWriter(text, rows[0] if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(summary: Summary) -> dict[str, object]:
    """Return a trace's figures; times are milliseconds a step."""
    facts, memory, found = summary.facts, summary.memory, summary.compute
    row: dict[str, object] = {
        "trace": facts.path,
        "incomplete": facts.incomplete,
        "device": " + ".join(summary.devices["name"].drop_nulls().unique().sort()),
        "rank": facts.rank,
        "steps": summary.part.count if summary.steps.height else 0,
        "step_ms": _ms(summary.step_time),
        "gpu_busy": round(summary.gpu_busy, 4) if facts.gpu else None,
        "launches": round(summary.launches, 1) if facts.gpu else None,
        "kernels_under_5_us": round(summary.small_kernels, 4) if facts.gpu else None,
        "peak_allocated_bytes": memory.allocated if memory else None,
        "peak_reserved_bytes": memory.reserved if memory else None,
        "flop": found.flops,
        "flop_per_second": found.rate,
        "mfu": None if found.utilisation is None else round(found.utilisation, 4),
    }
    for column, values in (("phase", PHASES), ("kind", KINDS)):
        for value in values:
            time = int(summary.kinds.filter(pl.col(column) == value)["time"].sum())
            row[f"{column}_{value}_ms"] = _ms(time / summary.part.count)
    return row


def _ms(nanoseconds: float) -> float:
    return round(nanoseconds / _NS_PER_MS, 6)

"""Summaries as CSV, for sweeps: one row a trace, in plain numbers."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time.phases import STEP
from traceq.common.safe_text import plain_csv
from traceq.model.schema import KINDS, PHASES
from traceq.report.summary.overview import label_keys
from traceq.report.summary.serving import serving_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.summary import Reached, Summary
    from traceq.model.lint_report import Bound

_NS_PER_MS = 1e6


def render(summaries: Sequence[Summary]) -> str:
    """Return a line of names and a line for each trace; empty is unknown."""
    text = io.StringIO()
    keys = label_keys(summaries)
    rows = [_row(summary, keys) for summary in summaries]
    writer = csv.DictWriter(text, rows[0] if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(summary: Summary, keys: Sequence[str]) -> dict[str, str]:
    """Return a trace's figures; times are milliseconds a step."""
    facts, memory, compute = summary.facts, summary.memory, summary.compute
    devices = summary.devices["name"].drop_nulls().unique().sort()
    labels, tokens, attention = summary.labels, summary.tokens, summary.attention
    row = {
        "trace": plain_csv(facts.path),
        "incomplete": "true" if facts.incomplete else "false",
        "labels": plain_csv(
            " ".join(f"{key}={value}" for key, value in labels.items())
        ),
        **{plain_csv(f"label_{key}"): plain_csv(labels.get(key, "")) for key in keys},
        "device": plain_csv(" + ".join(devices)),
        "rank": _number(facts.rank),
        "steps": _number(summary.steady.count if summary.steps.height else 0),
        "recorded_step_ms": _ms(summary.step_time),
        "recorded_gpu_busy": _number(summary.gpu_busy, 4) if facts.gpu else "",
        "measured_step_ms": _ms(summary.bound.step_ns)
        if summary.bound.measured
        else "",
        **_bound(summary.bound),
        "launches": _number(summary.launches, 1) if facts.gpu else "",
        "kernels_under_5_us": _number(summary.small_kernels, 4) if facts.gpu else "",
        "peak_allocated_bytes": _number(memory.allocated if memory else None),
        "peak_reserved_bytes": _number(memory.reserved if memory else None),
        "flop": _number(compute.flops),
        "flop_per_second": _number(compute.rate),
        "mfu": _number(compute.utilisation, 4),
        "tokens_per_step": _number(tokens.per_step if tokens else None, 1),
        "tokens_from": tokens.source if tokens else "",
        "tokens_per_second": _number(summary.tokens_per_second, 1),
        "gemm_share": _number(summary.gemm_share, 4) if facts.gpu else "",
        "attention_softmax_to_matmul": _number(
            attention.ratio if attention else None, 4
        ),
        **_roofline(summary.roofline),
    }
    row |= serving_cells(summary.serving)
    walls = {phase_time.phase: phase_time for phase_time in summary.phases}
    for phase in (*PHASES, STEP):
        one = walls.get(phase)
        row[f"wall_{phase}_ms"] = _ms(one.wall_ns if one else 0)
        row[f"wall_{phase}_min_ms"] = _ms(one.min_ns if one else 0)
        row[f"wall_{phase}_max_ms"] = _ms(one.max_ns if one else 0)
    for column, values in (("phase", PHASES), ("kind", KINDS)):
        for value in values:
            time = int(summary.kinds.filter(pl.col(column) == value)["time"].sum())
            row[f"{column}_{value}_ms"] = _ms(time / summary.steady.count)
    return row


def _roofline(reached: Reached | None) -> dict[str, str]:
    """Return the efficiency of kernels; empty where shapes were not recorded."""
    columns = {
        f"roofline_{name}": _number(
            reached.bounds.get(name, 0.0) if reached else None, 4
        )
        for name in ("compute", "bandwidth", "latency")
    }
    return columns | {
        "roofline_efficiency": _number(reached.efficiency if reached else None, 4),
        "recoverable_ms": _ms(reached.recoverable_ns) if reached else "",
    }


def _bound(bound: Bound) -> dict[str, str]:
    """Return the bound of a step; empty where there is no GPU work."""
    columns = {
        "bound_by": bound.by,
        "bound_sure": "true" if bound.sure else "false",
        "step_ms": _ms(bound.step_ns),
        "step_from": bound.step_from,
        "gpu_busy": _number(bound.gpu_busy, 4),
    }
    return columns if bound.bottleneck else dict.fromkeys(columns, "")


def _ms(nanoseconds: float) -> str:
    return _number(nanoseconds / _NS_PER_MS, 6)


def _number(value: float | None, digits: int = 0) -> str:
    """Write a number without an exponent, which not every sheet reads."""
    if value is None:
        return ""
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text

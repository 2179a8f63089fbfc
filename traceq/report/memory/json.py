"""Memory snapshots as JSON, for programs: nanoseconds and bytes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from traceq import __version__
from traceq.analysis.memory.stacks import chain_of
from traceq.common.safe_text import as_unicode, plain_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.memory.scaling import Growth
    from traceq.analysis.memory.summary import MemorySummary

VERSION = 2
_MOST_ROWS = 50


def render(summaries: Sequence[MemorySummary]) -> str:
    """Return one object with the list of devices; ``version`` says which fields."""
    return _written({"devices": [_device(summary) for summary in summaries]})


def render_scaling(
    label: str, growths: Sequence[Growth], values: Sequence[float], names: Sequence[str]
) -> str:
    """Return one object with the growth of each category."""
    return _written(
        {
            "scaling": {
                "label": label,
                "values": list(values),
                "runs": [as_unicode(name) for name in names],
                "categories": [asdict(growth) for growth in growths],
            }
        }
    )


def _written(content: dict[str, Any]) -> str:
    whole = {"version": VERSION, "traceq": __version__} | content
    return plain_json(orjson.dumps(whole, option=orjson.OPT_INDENT_2).decode()) + "\n"


def _device(summary: MemorySummary) -> dict[str, Any]:
    run, fragmentation = summary.run, summary.fragmentation
    return {
        "name": as_unicode(summary.name),
        "device": summary.device,
        "run": {"command": run.command, "labels": dict(run.labels), "state": run.state}
        if run
        else None,
        "facts": asdict(summary.facts)
        | {
            "path": as_unicode(summary.facts.path),
            "incomplete": summary.facts.incomplete,
        },
        "peak": {
            "allocated": summary.peak["allocated"],
            "active": summary.peak["active"],
            "reserved": summary.peak["reserved"],
            "max_reserved": summary.peak["max_reserved"],
            "ts_ns": summary.peak["ts"],
            "step": summary.peak["step"],
            "phase": summary.peak["phase"],
        },
        "categories": summary.categories.to_dicts(),
        "parts": summary.parts.to_dicts(),
        "modules": None
        if summary.modules is None
        else summary.modules.head(_MOST_ROWS).to_dicts(),
        "places": summary.places.head(_MOST_ROWS).to_dicts(),
        "largest": [
            {
                "size": row["size"],
                "count": row["count"],
                "category": row["category"],
                "confidence": row["confidence"],
                "op": row["op"],
                "node": row["node"],
                "calls": chain_of(row["chain"]) if row["chain"] else [],
                "phase": row["phase"],
                "free_phase": row["free_phase"],
                "from_before": row["from_before"],
                "never_freed": row["never_freed"],
                "steps": row["steps"],
                "lifetime_ns": row["lifetime"],
            }
            for row in summary.largest.head(_MOST_ROWS).iter_rows(named=True)
        ],
        "steps": summary.steps.to_dicts(),
        "leaks": [
            row | {"calls": chain_of(calls) if calls else []}
            for row, calls in zip(
                summary.leaks.drop("device", "stack", "chain").to_dicts(),
                summary.leaks["chain"],
                strict=True,
            )
        ],
        "ooms": summary.failures.drop("device", "chain")
        .rename({"asked": "requested"})
        .to_dicts(),
        "fragmentation": {
            "rounding": fragmentation.rounding,
            "fragmented": fragmentation.fragmented,
            "releasable": fragmentation.releasable,
            "private": fragmentation.private,
            "pending": fragmentation.pending,
            "largest_free_block": fragmentation.largest,
            "free_blocks": fragmentation.free_blocks,
            "holders": fragmentation.holders.head(_MOST_ROWS).to_dicts(),
        },
        "settings": summary.settings,
    }

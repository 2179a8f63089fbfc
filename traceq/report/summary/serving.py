"""The serving part of a summary: iterations by phase, and the host between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.patterns.iteration_marks import DECODE, MIXED, PREFILL
from traceq.analysis.time.serving import times_of
from traceq.common import units
from traceq.common.safe_text import printable
from traceq.common.words import counted, listed
from traceq.report.base.columns import Column
from traceq.report.base.content import TextTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from traceq.analysis.time.serving import Serving

_MOST_ACTIVITIES = 5
_GIGABYTE = 1e9
_TIMES = ("iterations", "ms", "from", "to", "ms/token", "tokens/s")
_LOADS = (
    *("requests", "tokens", "idle before", "graphs", "padding", "GB/s", "of peak"),
)
# Less of decode than this is no gap to speak of.
_LEAST_GAP = 0.01
# Source of an iteration's phase, in words.
_KNOWN_BY = {
    "annotation": "by the engine's annotations",
    "shapes": "by shapes",
    "guess": "by a guess",
}


def serving_facts(serving: Serving | None) -> Iterator[tuple[str, str]]:
    """Return the lines: how many iterations of which phase, and the host's gap."""
    if serving is None:
        return
    yield "Serving", _iterations(serving)
    decodes = serving.phases.filter(pl.col("phase") == DECODE)
    for row in decodes.iter_rows(named=True):
        if (row["gap_share"] or 0) >= _LEAST_GAP and serving.between.height:
            yield "Host gap", _gap(serving, row)


def phases_of_steps(serving: Serving | None) -> dict[int, str]:
    """Return the phase of iterations that read prompts: these are no warm-up."""
    if serving is None:
        return {}
    reads = serving.iterations.filter(pl.col("phase").is_in([PREFILL, MIXED]))
    return dict(reads.select("step", pl.col("phase").cast(pl.String)).iter_rows())


def serving_table(serving: Serving | None) -> list[TextTable]:
    """Return the tables of the phases, without columns of which nothing is known."""
    if serving is None:
        return []
    rows = serving.phases.to_dicts()
    return [
        _table("Phase, as recorded", _TIMES, [_times(row) for row in rows]),
        _table("Phase", _LOADS, [_loads(row) for row in rows]),
    ]


def _table(title: str, names: Sequence[str], rows: list[tuple[str, ...]]) -> TextTable:
    filled = [at for at in range(len(names)) if any(row[at + 1] != "-" for row in rows)]
    return TextTable(
        (Column(title), *(Column(names[at], number=True) for at in filled)),
        tuple((row[0], *(row[at + 1] for at in filled)) for row in rows),
    )


def serving_data(serving: Serving | None) -> dict[str, Any] | None:
    """Return the same as data: nanoseconds as recorded, bytes, shares of one."""
    if serving is None:
        return None
    return {
        "phases": serving.phases.to_dicts(),
        "host_gap": serving.between.to_dicts(),
        "iterations": serving.iterations.to_dicts(),
        "peak_bytes_per_s": serving.peak,
    }


def serving_cells(serving: Serving | None) -> dict[str, str]:
    """Return plain numbers for a row of CSV; empty where there is none of a phase."""
    rows = serving.phases.to_dicts() if serving else []
    by_phase = {row["phase"]: row for row in rows}
    cells = {}
    for phase in (PREFILL, DECODE, MIXED):
        row = by_phase.get(phase, {})
        time, rate = row.get("time"), row.get("tokens_per_s")
        cells[f"{phase}_iterations"] = str(row.get("iterations", ""))
        cells[f"{phase}_iteration_ms"] = f"{time / units.NS_PER_MS:.6f}" if time else ""
        cells[f"{phase}_tokens_per_s"] = f"{rate:.1f}" if rate else ""
    return cells


def _iterations(serving: Serving) -> str:
    iterations = serving.iterations.with_columns(times=times_of())
    phases = iterations["phase"].drop_nulls()
    whole = int(iterations["times"].sum())
    counts = [
        f"{count:,} {phase}"
        for phase, count in iterations.drop_nulls("phase")
        .group_by("phase", maintain_order=True)
        .agg(pl.col("times").sum())
        .sort("times", descending=True, maintain_order=True)
        .iter_rows()
    ]
    steps = (
        f" in {counted(iterations.height, 'step')}" if whole > iterations.height else ""
    )
    by = iterations["known_by"].drop_nulls().unique(maintain_order=True).to_list()
    text = (
        f"{counted(whole, 'iteration')}{steps}: {', '.join(counts)},"
        f" known {' and '.join(_KNOWN_BY[entry] for entry in by)}"
    )
    unknown = iterations.height - len(phases)
    if unknown:
        text += f"; of {unknown:,} the phase is unknown"
    first = iterations.row(0, named=True)
    others = iterations.filter(pl.col("phase") == first["phase"]).height - 1
    if first["phase"] and others:
        what = "a step" if first["times"] > 1 else f"a {first['phase']}"
        took = f"{what} of {units.milliseconds(first['time'])} ms"
        text += f"; the first, {took}, is not in the table"
    return text


def _gap(serving: Serving, row: Mapping[str, Any]) -> str:
    whole = float(serving.between["time"].sum())
    parts = [
        f"{item['activity']} {units.share(item['time'], whole)}"
        + (f" ({printable(item['name'])})" if item["name"] else "")
        for item in serving.between.head(_MOST_ACTIVITIES).iter_rows(named=True)
    ]
    return (
        f"the GPU idles {units.time(row['gap'])} before a decode iteration at the"
        f" median; such gaps are {units.share(row['gap_share'], 1)} of all decode; the"
        " host then:"
        f" {listed(parts, _MOST_ACTIVITIES)}"
    )


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['phase']} (first)" if row["only_first"] else str(row["phase"])


def _times(row: Mapping[str, Any]) -> tuple[str, ...]:
    spread = (units.milliseconds(row["least"]), units.milliseconds(row["most"]))
    return (
        _name(row),
        f"{row['iterations']:,}",
        units.milliseconds(row["time"]),
        *(spread if row["iterations"] > 1 else ("-", "-")),
        f"{units.number(row['per_token'] / units.NS_PER_MS)}"
        if row["per_token"]
        else "-",
        _count(row["tokens_per_s"]),
    )


def _loads(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        _name(row),
        _count(row["requests"]),
        _count(row["tokens"]),
        units.time(row["gap"]) if row["gap"] is not None else "-",
        units.share(row["graphs"], 1) if row["graphs"] is not None else "-",
        units.share(row["padding"], 1) if row["padding"] is not None else "-",
        f"{row['bandwidth'] / _GIGABYTE:,.0f}" if row["bandwidth"] else "-",
        units.share(row["of_peak"], 1) if row["of_peak"] else "-",
    )


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"

"""Roofline: rates of ops in FLOP/s and bytes/s, against the GPU's peaks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.replay.roofline_savings import op_groups
from traceq.analysis.time.roofline import roofline as judged
from traceq.common import units
from traceq.common.units import NS_PER_S
from traceq.model.gpu_peaks import GIGA, TERA
from traceq.report.base.columns import Column
from traceq.report.base.content import TextTable
from traceq.report.page import charts
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from traceq.analysis.time.roofline import Roofline
    from traceq.model.gpu_peaks import Peak
    from traceq.report.page.charts import Mark, Picture, Tip
    from traceq.report.page.section import Subject

_WIDTH, _HEIGHT = 560.0, 360.0
_LEFT, _TOP, _BOTTOM, _RIGHT = 84.0, 34.0, 312.0, 548.0
_MOST = 80
_IN_TABLE = 12
_LARGEST = 17.0
_SMALLEST = 2.5
_COLORS = {"compute": "f1", "bandwidth": "f3", "latency": "f5"}
_MEANING = {
    "compute": "bound by operations",
    "bandwidth": "bound by memory",
    "latency": "too short to be bound by either",
}
# Peaks nearer to each other than this factor have one label.
_NEAR = 1.35
_ABOVE = 1.25
# An axis that spans less than this has ticks between the powers of ten.
_SHORT_AXIS = 200


def roofline(subject: Subject) -> Section | None:
    """Return the plots; none without shapes, or where the GPU's peaks are not known."""
    trace = subject.recording.trace if subject.recording else None
    if trace is None or not trace.facts.gpu or not trace.facts.shapes:
        return None
    ops_by_bound = judged(trace)
    peak = ops_by_bound.gpu.peak
    if peak is None or not ops_by_bound.ops.height:
        return None
    ops = op_groups(trace, ops_by_bound).filter(pl.col("gpu") > 0)
    pictures = [
        ("Operations per second", _computing(ops, peak)),
        ("Ops that only move memory", _moving(ops, peak)),
    ]
    return Section(
        key=subject.key("roofline"),
        title="Roofline",
        template="pictures.html",
        context={
            "lead": _lead(ops_by_bound, ops, peak),
            "pictures": [
                (title, picture) for title, picture in pictures if picture is not None
            ],
            "notes": [
                "A dot is an op with its shapes and place; its area is its GPU time."
                " Operations and bytes are those that the shapes need at least; peaks"
                " are the vendor's, without sparsity. A dot above the roof reads from"
                " the cache. traceq roofline has all ops, and what each could save."
            ],
        },
    )


def _lead(roofs: Roofline, ops: pl.DataFrame, peak: Peak) -> str:
    judged_ns = roofs.judged_ns / roofs.steps
    least = float(ops["least"].sum() or 0)
    return (
        f"{units.share(roofs.covered, 1)} of the kernels' time is judged:"
        f" {units.time(judged_ns)} a step, which the peaks of the {roofs.gpu.name}"
        f" ({peak.bandwidth / GIGA:,.0f} GB/s) allow in {units.time(least)}"
        f" ({units.share(least, judged_ns)})."
    )


def _computing(ops: pl.DataFrame, peak: Peak) -> Picture | None:
    """Return the classic plot, of ops whose operations and bytes are known."""
    visible = (
        ops.filter(pl.col("flops") > 0, pl.col("bytes") > 0)
        .with_columns(
            intensity=pl.col("flops") / pl.col("bytes"),
            rate=pl.col("flops") * pl.col("calls") / pl.col("gpu") * NS_PER_S,
        )
        .head(_MOST)
    )
    if not visible.height:
        return None
    roofs = _roofs(visible, peak)
    top = max(rate for _, rate in roofs) * 1.6
    ridge = max(rate for _, rate in roofs) / peak.bandwidth
    low = min(_least(visible["intensity"]), ridge / 10) / 1.5
    high = max(_most(visible["intensity"]), ridge * 3) * 1.5
    bottom = min(_least(visible["rate"]), low * peak.bandwidth) / 1.5
    x = charts.Scale(low, high, _LEFT, _RIGHT, log=True)
    y = charts.Scale(bottom, top, _BOTTOM, _TOP, log=True)
    marks = charts.y_axis(
        y,
        y.ticks(charts.decades(bottom, top, _between(bottom, top)), _rate),
        _LEFT,
        _RIGHT,
        "operations per second",
    )
    marks += charts.x_axis(
        x,
        x.ticks(charts.decades(low, high, _between(low, high)), charts.short),
        _BOTTOM,
        "operations per byte of memory",
    )
    marks += _lines(roofs, peak, x, y)
    marks += _dots(visible, lambda row: (x(row["intensity"]), y(row["rate"])))
    return charts.Picture(
        _WIDTH,
        _HEIGHT,
        f"Roofline of {visible.height} ops: operations per second over operations per"
        " byte, both logarithmic",
        marks,
        _table(visible),
        _legend(visible),
    )


def _roofs(ops: pl.DataFrame, peak: Peak) -> list[tuple[str, float]]:
    """Return the peaks of the dtypes that ops use, the highest first."""
    used = [name for name in ops["dtype"].unique().to_list() if name in peak.flops]
    rates = sorted(((peak.flops[name], name) for name in used), reverse=True)
    roofs: list[tuple[str, float]] = []
    for rate, name in rates:
        if roofs and roofs[-1][1] / rate < _NEAR:
            roofs[-1] = (f"{roofs[-1][0]}, {name}", roofs[-1][1])
        else:
            roofs.append((name, rate))
    return roofs or [("", max(peak.flops.values()))]


def _lines(
    roofs: list[tuple[str, float]],
    peak: Peak,
    x: charts.Scale,
    y: charts.Scale,
) -> list[Mark]:
    highest = roofs[0][1]
    ridge = highest / peak.bandwidth
    start = max(x.low, y.low / peak.bandwidth)
    points = [(x(start), y(start * peak.bandwidth)), (x(ridge), y(highest))]
    marks = [charts.path([*points, (x.end, y(highest))], "roof")]
    for _, rate in roofs[1:]:
        begin = (x(rate / peak.bandwidth), y(rate))
        marks.append(charts.path([begin, (x.end, y(rate))], "roof other"))
    for name, rate in roofs:
        text = f"{name} {rate / TERA:,.0f} TFLOP/s".strip()
        marks.append(charts.words(x.end, y(rate) - 6, text, anchor="end"))
    # Along the slope, where it has room.
    middle = math.sqrt(start * ridge)
    text = f"{peak.bandwidth / GIGA:,.0f} GB/s"
    marks.append(
        charts.words(x(middle) - 8, y(middle * peak.bandwidth) - 6, text, anchor="end")
    )
    return marks


def _moving(ops: pl.DataFrame, peak: Peak) -> Picture | None:
    """Return ops without operations to count: bytes per second over their time."""
    visible = (
        ops.filter(
            (pl.col("flops").is_null()) | (pl.col("flops") == 0), pl.col("bytes") > 0
        )
        .with_columns(
            rate=pl.col("bytes") * pl.col("calls") / pl.col("gpu") * NS_PER_S,
        )
        .head(_MOST)
    )
    if not visible.height:
        return None
    # Faster ones are read from the cache, and stand at the upper edge.
    top = (
        max(peak.bandwidth, min(_most(visible["rate"]), _ABOVE * peak.bandwidth)) * 1.04
    )
    low, high = _least(visible["gpu"]) / 1.6, _most(visible["gpu"]) * 1.8
    x = charts.Scale(low, high, _LEFT, _RIGHT, log=True)
    y = charts.Scale(0.0, top, _BOTTOM, _TOP)
    values = charts.round_values(top)
    marks = charts.y_axis(
        y, y.ticks(values, _bandwidth), _LEFT, _RIGHT, "bytes per second"
    )
    marks += charts.x_axis(
        x,
        x.ticks(charts.decades(low, high, _between(low, high)), charts.axis_time),
        _BOTTOM,
        "GPU time of a step",
    )
    at = y(peak.bandwidth)
    marks.append(charts.path([(x.start, at), (x.end, at)], "roof"))
    text = f"{peak.bandwidth / GIGA:,.0f} GB/s"
    marks.append(charts.words(x.end, at - 6, text, anchor="end"))
    marks += _dots(visible, lambda row: (x(row["gpu"]), y(row["rate"])))
    return charts.Picture(
        _WIDTH,
        _HEIGHT,
        f"{visible.height} ops that only move memory: bytes per second over GPU time",
        marks,
        _table(visible),
        _legend(visible),
    )


def _dots(ops: pl.DataFrame, place: Any) -> list[Mark]:  # noqa: ANN401 - a row to x, y
    """Return a dot for each op, small ones in front."""
    most = _most(ops["gpu"])
    marks = []
    for row in ops.sort("gpu", descending=True).iter_rows(named=True):
        x, y = place(row)
        size = max(_SMALLEST, _LARGEST * math.sqrt(row["gpu"] / most))
        color = _COLORS.get(row["bound"], "f8")
        marks.append(charts.circle(x, y, size, f"bubble {color}", _tip(row)))
    return marks


def _tip(row: dict[str, Any]) -> Tip:
    where = (
        f"{row['file']}:{row['call_line']}" if row["file"] and row["call_line"] else ""
    )
    efficiency = row["efficiency"]
    return charts.tip(
        row["name"],
        (
            "GPU time",
            f"{units.time(row['gpu'])} a step, {units.number(row['calls'])} calls",
        ),
        ("of peak", units.share(efficiency, 1) if efficiency is not None else ""),
        ("rate", _rate(row["rate"]) if row["flops"] else _bandwidth(row["rate"])),
        ("bound by", row["bound"] or ""),
        ("dtype", row["dtype"] or ""),
        ("shapes", row["shapes"] or ""),
        ("where", where or row["layer"] or ""),
    )


def _table(ops: pl.DataFrame) -> TextTable:
    columns = (
        Column("op"),
        *(Column(title, number=True) for title in ("GPU time", "of peak", "rate")),
        Column("bound by"),
        Column("shapes"),
    )
    return TextTable(
        columns,
        tuple(
            (
                charts.brief(row["name"]),
                units.time(row["gpu"]),
                units.share(row["efficiency"], 1)
                if row["efficiency"] is not None
                else "-",
                _rate(row["rate"]) if row["flops"] else _bandwidth(row["rate"]),
                row["bound"] or "",
                charts.brief(row["shapes"] or ""),
            )
            for row in ops.head(_IN_TABLE).iter_rows(named=True)
        ),
    )


def _legend(ops: pl.DataFrame) -> list[tuple[str, str]]:
    there = set(ops["bound"].drop_nulls().to_list())
    return [(_COLORS[name], _MEANING[name]) for name in _COLORS if name in there]


def _rate(rate: float) -> str:
    for size, unit in (
        (1e15, "PFLOP/s"),
        (1e12, "TFLOP/s"),
        (1e9, "GFLOP/s"),
        (1e6, "MFLOP/s"),
    ):
        if rate >= size * 0.999:
            return f"{units.number(rate / size)} {unit}"
    return f"{units.number(rate)} FLOP/s"


def _bandwidth(rate: float) -> str:
    if rate >= TERA * 0.999:
        return f"{units.number(rate / TERA)} TB/s"
    return f"{units.number(rate / GIGA)} GB/s" if rate else "0"


def _between(low: float, high: float) -> tuple[int, ...]:
    return (1, 2, 5) if high / low < _SHORT_AXIS else (1,)


def _least(values: pl.Series) -> float:
    return float(values.min())  # type: ignore[arg-type]  # numbers, and not empty


def _most(values: pl.Series) -> float:
    return float(values.max())  # type: ignore[arg-type]  # numbers, and not empty

"""Kernel durations, compared with the launch overhead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.time.kernel_lengths import kernel_lengths
from traceq.common import units
from traceq.common.words import counted
from traceq.report.base.columns import Column
from traceq.report.base.content import TextTable
from traceq.report.page import charts
from traceq.report.page.section import Section

if TYPE_CHECKING:
    import polars as pl

    from traceq.analysis.time.kernel_lengths import KernelLengths
    from traceq.report.page.charts import Picture
    from traceq.report.page.section import Subject

_WIDTH, _HEIGHT = 560.0, 300.0
_MANY = 0.1
_LEFT, _TOP, _BOTTOM, _RIGHT = 56.0, 40.0, 252.0, 548.0


def lengths(subject: Subject) -> Section | None:
    """Return the histograms; none without kernels."""
    trace = subject.recording.trace if subject.recording else None
    histogram = kernel_lengths(trace) if trace is not None else None
    if histogram is None:
        return None
    return Section(
        key=subject.key("lengths"),
        title="Kernel lengths",
        template="pictures.html",
        context={
            "lead": _lead(histogram),
            "pictures": [
                ("How many kernels are this long", _histogram(histogram, "kernels")),
                ("How much GPU time is in them", _histogram(histogram, "time")),
            ],
            "notes": [],
        },
    )


def _lead(bins: KernelLengths) -> str:
    whole = counted(round(bins.kernels), "kernel")
    if not bins.launch_ns:
        return f"A step has {whole}; no launch of theirs is in the trace."
    cost = units.time(bins.launch_ns)
    if not bins.shorter:
        return (
            f"A launch takes the host {cost}, as recorded, at the median; all of the"
            f" {whole} of a step run longer."
        )
    why = ""
    if bins.shorter >= _MANY:
        why = ": while such kernels follow each other, the GPU waits for the host"
    return (
        f"A launch takes the host {cost}, as recorded, at the median;"
        f" {units.share(bins.shorter, 1)} of the {whole} of a step run for less{why}."
    )


def _histogram(lengths_of_kernels: KernelLengths, column: str) -> Picture:
    bins = lengths_of_kernels.bins
    cost = lengths_of_kernels.launch_ns or 0.0
    low = min(bins["low"][0], cost or bins["low"][0])
    high = max(bins["high"][-1], cost)
    most = float(bins[column].max())  # type: ignore[arg-type]  # a number
    values = charts.round_values(most)
    x = charts.Scale(low, high, _LEFT, _RIGHT, log=True)
    y = charts.Scale(0.0, values[-1], _BOTTOM, _TOP)
    text = charts.axis_time if column == "time" else charts.short
    marks = charts.y_axis(y, y.ticks(values, text), _LEFT, _RIGHT)
    for row in bins.iter_rows(named=True):
        if not row["kernels"]:
            continue
        left, right = x(row["low"]), x(row["high"])
        top = y(row[column])
        below = " below" if row["high"] <= cost else ""
        tip = charts.tip(
            f"{units.time(row['low'])} to {units.time(row['high'])}",
            ("kernels", f"{units.number(row['kernels'], 4)} a step"),
            ("GPU time", f"{units.time(row['time'])} a step"),
        )
        marks.append(
            charts.rect(
                (left + 1, top, right - left - 2, _BOTTOM - top), f"bin{below}", tip
            )
        )
    between = (1,) if high / low > 500 else (1, 3)  # noqa: PLR2004 - room for labels
    ticks = x.ticks(charts.decades(low, high, between), charts.axis_time)
    marks += charts.x_axis(x, ticks, _BOTTOM, "length of a kernel")
    if cost:
        at = x(cost)
        right = at > (_LEFT + _RIGHT) / 2
        marks += [
            charts.line(at, _TOP - 14, at, _BOTTOM, "cost-line"),
            charts.words(
                at - 6 if right else at + 6,
                _TOP - 8,
                f"a launch: {units.time(cost)}",
                "cost-text",
                "end" if right else "start",
            ),
        ]
    label = "GPU time" if column == "time" else "number"
    return charts.Picture(
        _WIDTH,
        _HEIGHT,
        f"Histogram of kernels by length: {label} of a step",
        marks,
        _table(bins) if column == "kernels" else None,
    )


def _table(bins: pl.DataFrame) -> TextTable:
    columns = tuple(
        Column(title, number=True)
        for title in ("from", "to", "kernels a step", "GPU time a step")
    )
    rows = tuple(
        (
            units.time(row["low"]),
            units.time(row["high"]),
            units.number(row["kernels"], 4),
            units.time(row["time"]),
        )
        for row in bins.iter_rows(named=True)
    )
    return TextTable(columns, rows)

"""Memory over time by category, and what lives at the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceq.analysis.memory.history import History
from traceq.analysis.memory.summary import summarise_memory
from traceq.analysis.memory.timeline import highest_moments, timeline
from traceq.common import units
from traceq.report.base.columns import Column
from traceq.report.base.content import TextTable
from traceq.report.memory.content import content
from traceq.report.memory.verdict import verdict
from traceq.report.page import charts
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.analysis.memory.summary import MemorySummary
    from traceq.report.page.charts import Mark, Picture, Tip
    from traceq.report.page.section import Subject

_MOMENTS = 600
_WIDTH, _HEIGHT = 1100.0, 340.0
_LEFT, _TOP, _BOTTOM, _RIGHT = 74.0, 30.0, 312.0, 1090.0
# From the bottom of the stack; the style has a colour for each.
_CLASSES = {
    "weights": "weights",
    "optimizer state": "optimizer",
    "CUDA-graph pools": "graphs",
    "communication buffers": "communication",
    "gradients": "gradients",
    "activations": "activations",
    "attention scores": "scores",
    "logits and loss": "logits",
    "temporaries": "temporaries",
    "unknown": "unknown",
}
_MOST_ROWS = 12


def memory(subject: Subject) -> Section | None:
    """Return the section; none without a snapshot."""
    recording = subject.recording
    if recording is None or not recording.snapshots:
        return None
    several = len(recording.snapshots) > 1
    summaries = [
        summary
        for rank, snapshot in recording.snapshots.items()
        for summary in summarise_memory(
            History(snapshot, recording.trace if not several else None),
            f"{recording.name}, rank {rank}" if several else recording.name,
            run=recording.trace.run if recording.trace else None,
        )
    ]
    return of_summaries(summaries, subject.key("memory"))


def of_summaries(summaries: Sequence[MemorySummary], key: str) -> Section | None:
    """Return the section of some devices; none where nothing was reserved."""
    if not summaries:
        return None
    drawn = [_Drawn(summary) for summary in summaries]
    return Section(
        key=key,
        title="Memory",
        template="memory.html",
        context={
            "devices": [
                (
                    content(item.summary),
                    verdict(item.summary),
                    item.picture(),
                    item.at_peak(),
                )
                for item in drawn
            ],
            "several": len(drawn) > 1,
        },
        data={
            "devices": [
                {
                    "width": _WIDTH,
                    "left": _LEFT,
                    "right": _RIGHT,
                    "moments": list(item.tips()),
                }
                for item in drawn
                if item.there
            ]
        },
    )


class _Drawn:
    """One device: what was live of each category at some moments."""

    def __init__(self, summary: MemorySummary) -> None:
        self.summary = summary
        self.there = bool(summary.peak["allocated"])
        if not self.there:
            return
        moments = highest_moments(summary.curve, _MOMENTS)
        self.moments = moments
        curves = timeline(summary.curves, moments["event"])
        self.sizes = {
            (event, category): size
            for event, category, size in curves.iter_rows()
            if size > 0
        }
        self.events: list[int | None] = moments["event"].to_list()
        self.shown = [
            name
            for name in _CLASSES
            if any((event, name) in self.sizes for event in self.events)
        ]

    def picture(self) -> Picture | None:
        """Return the categories stacked over time, and what was reserved."""
        if not self.there:
            return None
        reserved: list[int] = self.moments["reserved"].to_list()
        values = charts.byte_values(max(self.summary.peak["allocated"], *reserved))
        y = charts.Scale(0.0, values[-1], _BOTTOM, _TOP)
        marks = charts.y_axis(y, y.ticks(values, charts.axis_size), _LEFT, _RIGHT)
        bottom = [0] * len(self.events)
        for name in self.shown:
            upper = [
                low + self.sizes.get((event, name), 0)
                for low, event in zip(bottom, self.events, strict=True)
            ]
            outline = [*_corners(upper, y), *reversed(_corners(bottom, y))]
            marks.append(
                charts.path(outline, f"area area-{_CLASSES[name]}", closed=True)
            )
            bottom = upper
        marks.append(charts.path(_corners(reserved, y), "reserved"))
        marks += _time_axis(self.summary)
        marks += self._peak(y)
        mouse: dict[str, str | float] = {
            "class": "at-mouse",
            "x1": _LEFT,
            "x2": _LEFT,
            "y1": _TOP,
            "y2": _BOTTOM,
        }
        marks.append(charts.Mark("line", mouse))
        return charts.Picture(
            _WIDTH,
            _HEIGHT,
            "Memory over time, allocated by category and reserved: up to"
            f" {units.size(self.summary.peak['allocated'])} allocated",
            marks,
            self._table(),
            wide=True,
        )

    def at_peak(self) -> list[tuple[str, str, str, str]]:
        """Return each category's class, name, size and share at the peak."""
        sizes = {
            row["category"]: row["size"]
            for row in self.summary.categories.iter_rows(named=True)
        }
        whole = self.summary.peak["allocated"]
        return [
            (
                f"area-{_CLASSES[name]}",
                name,
                units.size(sizes.get(name, 0)),
                units.share(sizes.get(name, 0), whole),
            )
            for name in reversed(self.shown if self.there else [])
        ]

    def tips(self) -> Iterator[Tip]:
        """Yield the tooltip at each moment."""
        rows = self.moments.join(
            self.summary.phases.select("event", "step", "phase"),
            on="event",
            how="left",
            maintain_order="left",
        )
        for row in rows.iter_rows(named=True):
            parts = [units.time(row["ts"])] if row["ts"] is not None else []
            parts += [row["phase"]] if row["phase"] else []
            parts += [f"step {row['step']}"] if row["step"] is not None else []
            yield charts.tip(
                ", ".join(parts) or "before the first event",
                ("allocated", units.size(row["allocated"])),
                *(
                    (name, units.size(self.sizes[row["event"], name]))
                    for name in reversed(self.shown)
                    if (row["event"], name) in self.sizes
                ),
                ("reserved", units.size(row["reserved"])),
            )

    def _peak(self, y: charts.Scale) -> list[Mark]:
        allocated: list[int] = self.moments["allocated"].to_list()
        at = max(range(len(allocated)), key=allocated.__getitem__)
        x = _x((at + 0.5) / len(allocated))
        top = y(allocated[at])
        left = x > (_LEFT + _RIGHT) / 2
        text = f"peak: {units.size(self.summary.peak['allocated'])}"
        return [
            charts.line(x, top - 12, x, top, "peak-line"),
            charts.words(
                x - 5 if left else x + 5,
                top - 5,
                text,
                "strong",
                "end" if left else "start",
            ),
        ]

    def _table(self) -> TextTable:
        """Return some of the moments, for who cannot see the picture."""
        every = max(1, len(self.events) // _MOST_ROWS)
        names = list(reversed(self.shown))
        columns = (
            Column("time", number=True),
            *(Column(name, number=True) for name in ("allocated", *names, "reserved")),
        )
        rows = []
        for row in self.moments.gather_every(every).iter_rows(named=True):
            sizes = [self.sizes.get((row["event"], name), 0) for name in names]
            rows.append(
                (
                    units.time(row["ts"]) if row["ts"] is not None else "-",
                    units.size(row["allocated"]),
                    *map(units.size, sizes),
                    units.size(row["reserved"]),
                )
            )
        return TextTable(columns, tuple(rows))


def _time_axis(summary: MemorySummary) -> list[Mark]:
    last: Any = summary.curve["ts"].max()
    if not isinstance(last, int) or not last:
        x = charts.Scale(0.0, 1.0, _LEFT, _RIGHT)
        events = f"{summary.curve.height - 1:,} events"
        ticks = [charts.Tick(_LEFT, "0"), charts.Tick(_RIGHT - 30, events)]
        return charts.x_axis(x, ticks, _BOTTOM)
    x = charts.Scale(0.0, last, _LEFT, _RIGHT)
    ticks = x.ticks(charts.round_values(last, 10), charts.axis_time)
    return charts.x_axis(x, ticks, _BOTTOM)


def _corners(values: list[int], y: charts.Scale) -> list[tuple[float, float]]:
    """Return the corners of a line of steps, without those that are on it anyway."""
    points = []
    for at, value in enumerate(values):
        before = values[at - 1] if at else None
        after = values[at + 1] if at + 1 < len(values) else None
        if value != before:
            points.append((_x(at / len(values)), y(value)))
        if value != after:
            points.append((_x((at + 1) / len(values)), y(value)))
    return points


def _x(part: float) -> float:
    return round(_LEFT + part * (_RIGHT - _LEFT), 1)

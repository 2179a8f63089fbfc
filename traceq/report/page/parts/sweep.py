"""Recordings that differ in a label, as curves with the laws that fit them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.patterns.attention_kernels import ATTENTION
from traceq.report import sweep as words
from traceq.report.page import charts
from traceq.report.page.curves import Line, Over, plot
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.sweep import Sweep
    from traceq.report.page.charts import Picture

_COLORS = {
    ATTENTION: 2,
    "gemm": 1,
    "softmax": 5,
    "norm": 4,
    "elementwise": 3,
    "copy": 6,
    "conv": 7,
}
_FREE = (4, 6, 5, 3, 7)
_REST = 8


def sweep_sections(sweeps: Sequence[Sweep]) -> list[Section]:
    """Return a section for each sweep."""
    return [
        Section(
            key=f"sweep-{number}",
            title=words.title(sweep),
            template="sweep.html",
            context={
                "sentences": words.sentences(sweep),
                "pictures": list(_pictures(sweep)),
                "table": words.table(sweep),
            },
        )
        for number, sweep in enumerate(sweeps, 1)
    ]


def _pictures(sweep: Sweep) -> list[tuple[str, Picture]]:
    by_figure = {(curve.figure, curve.name): curve for curve in sweep.curves}
    part, rest = (by_figure.get((item, ATTENTION)) for item in ("part", "rest"))
    over = Over(
        sweep.label,
        sweep.values,
        [point.name for point in sweep.points],
        [point.bound for point in sweep.points],
    )
    pictures = []
    if part and rest:
        lines = [Line("attention", part, 2), Line("the rest", rest, _REST)]
        met = [
            overtaking.at
            for overtaking in sweep.overtakings
            if overtaking.part == ATTENTION
        ]
        title = "GPU time of a step: attention and the rest"
        pictures.append((title, plot(over, lines, charts.axis_time, met)))
    lines = _parts(sweep)
    step = [Line("step", by_figure["step", "step"], 0)]
    pictures.append(
        (
            "A step, and the GPU time of its parts",
            plot(over, step + lines, charts.axis_time),
        )
    )
    if memory := by_figure.get(("memory", "peak memory")):
        line = [Line("peak memory", memory, 3)]
        pictures.append(("Peak memory", plot(over, line, charts.axis_size)))
    if rate := by_figure.get(("rate", "tokens/s")):
        line = [Line("tokens/s", rate, 1)]
        pictures.append(("Tokens per second", plot(over, line, charts.short)))
    return pictures


def _parts(sweep: Sweep) -> list[Line]:
    """Return the parts in colours of their own."""
    parts = [curve for curve in sweep.curves if curve.figure == "part"]
    taken = {_COLORS[part.name] for part in parts if part.name in _COLORS}
    free = iter([color for color in _FREE if color not in taken])
    return [
        Line(
            words.part_name(part.name),
            part,
            _COLORS.get(part.name) or next(free, _REST),
        )
        for part in parts
    ]

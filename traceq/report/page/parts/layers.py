"""GPU time of layers by kind, as a heat map that shows outliers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time.layers import OPTIMIZER, OUTSIDE, by_layer
from traceq.common import units
from traceq.report.base.content import telling_names
from traceq.report.page import charts
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.report.page.charts import Tip
    from traceq.report.page.section import Subject

_MOST_ROWS = 60
_MOST_COLUMNS = 10
_LEVELS = 6
_REST = "other kinds"


class Cell(NamedTuple):
    """The time of a layer at one kind of work."""

    text: str
    level: int
    """Strength of its colour, from none to 6."""
    value: float
    """Nanoseconds of a step."""


class Row(NamedTuple):
    """A layer."""

    name: str
    tip: Tip | None
    """The whole path, where the name is not all of it."""
    apart: bool
    """True for the row of the work outside of layers."""
    cells: list[Cell]
    total: Cell


def layers(subject: Subject) -> Section | None:
    """Return the map; none where no kernel has a module."""
    trace = subject.recording.trace if subject.recording else None
    if trace is None or not trace.facts.gpu:
        return None
    by_part = by_layer(trace)
    named = by_part.filter(~pl.col("layer").is_in([OPTIMIZER, OUTSIDE]))
    if named["layer"].n_unique() < 2:  # noqa: PLR2004 - one layer is no map
        return None
    steps = steady_steps(trace).count
    kinds = _kinds(by_part)
    rows, left_out = _rows(by_part, kinds, steps)
    return Section(
        key=subject.key("layers"),
        title="Layers",
        template="layers.html",
        context={
            "kinds": kinds,
            "rows": rows,
            "totals": _totals(by_part, kinds, steps),
            "left_out": left_out,
            "each": "a step" if trace.steps.height else "the whole trace",
        },
    )


def _kinds(by_part: pl.DataFrame) -> list[str]:
    """Return the kinds that take the most time, and one for all others."""
    order = (
        by_part.group_by("part")
        .agg(pl.col("time").sum())
        .sort("time", "part", descending=[True, False])["part"]
        .to_list()
    )
    if len(order) <= _MOST_COLUMNS:
        return order
    return [*order[: _MOST_COLUMNS - 1], _REST]


def _rows(
    by_part: pl.DataFrame, kinds: Sequence[str], steps: int
) -> tuple[list[Row], int]:
    every = by_part["layer"].unique(maintain_order=True).to_list()
    visible = every
    if len(every) > _MOST_ROWS:
        totals = by_part.group_by("layer").agg(pl.col("time").sum())
        longest = totals.sort("time", "layer", descending=[True, False])["layer"]
        longest_layers = set(longest.head(_MOST_ROWS).to_list())
        visible = [layer for layer in every if layer in longest_layers]
    # The largest cell decides the colours, but for work that is of no layer.
    inner = by_part.filter(~pl.col("layer").is_in([OPTIMIZER, OUTSIDE]))
    most = float(inner["time"].max())  # type: ignore[arg-type]  # a number
    times = _times(by_part, kinds)
    modules = [layer for layer in visible if layer not in (OPTIMIZER, OUTSIDE)]
    names = dict(zip(modules, _short(modules), strict=True))
    rows = [
        Row(
            charts.brief(names.get(layer, layer)),
            charts.tip(layer) if names.get(layer, layer) != layer else None,
            layer not in names,
            [
                _cell(times.get((layer, kind), 0) / steps, most / steps)
                for kind in kinds
            ],
            _cell(sum(times.get((layer, kind), 0) for kind in kinds) / steps, 0.0),
        )
        for layer in visible
    ]
    return rows, len(every) - len(visible)


def _short(modules: Sequence[str]) -> list[str]:
    """Return the last names of modules, if these tell them apart."""
    last = [module.rpartition("/")[2] for module in modules]
    return last if len(set(last)) == len(last) else telling_names(modules)


def _totals(by_part: pl.DataFrame, kinds: Sequence[str], steps: int) -> list[Cell]:
    times = _times(by_part, kinds)
    sums = [
        sum(time for (_, one), time in times.items() if one == kind) for kind in kinds
    ]
    return [_cell(time / steps, 0.0) for time in (*sums, sum(sums))]


def _times(by_part: pl.DataFrame, kinds: Sequence[str]) -> dict[tuple[str, str], int]:
    times: dict[tuple[str, str], int] = {}
    for layer, part, time in by_part.select("layer", "part", "time").iter_rows():
        key = (layer, part if part in kinds else _REST)
        times[key] = times.get(key, 0) + time
    return times


def _cell(ns: float, most: float) -> Cell:
    level = 0
    if ns and most:
        # By the root, so that one large kind does not make all others look alike.
        level = min(_LEVELS, 1 + int(_LEVELS * math.sqrt(ns / most)))
    return Cell(units.time(ns) if ns else "", level, ns)

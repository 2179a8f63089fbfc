"""The time of a step as one bar with its words inside."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from msgspec import Struct

from traceq.common.units import percents
from traceq.report.base.text import TIE, styled, wrapped
from traceq.report.bound import FILL, cause_name, parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.model.lint_report import Bound

WAITS = "·"
# What takes a smaller share of the step is counted among others.
_WORTH_NAMING = 0.02
_OTHERS = "others"
_MOST_BELOW = 2


class Part(Struct, frozen=True):
    """One cause: its cells of the bar, and its words."""

    fill: str
    words: str
    cells: int

    @property
    def named(self) -> bool:
        """True if the words fit into the cells, with a cell of the fill beside them."""
        return len(self.words) + 4 <= self.cells


def lines(bound: Bound, width: int, *, color: bool) -> list[str]:
    """Return the bar, and lines that name the parts too narrow for their words."""
    shown = _parts(bound, width)
    if not shown:
        return []
    drawn = "".join(_drawn(shown, color=color))
    narrow = [f"{part.fill} {part.words}" for part in shown if not part.named]
    below = wrapped(", ".join(name.replace(" ", TIE) for name in narrow), width)
    if len(below) > _MOST_BELOW:
        below = [*below[: _MOST_BELOW - 1], f"{below[_MOST_BELOW - 1]} …"[:width]]
    return [drawn, *(styled(line, "dim", color=color) for line in below)]


def _parts(bound: Bound, width: int) -> list[Part]:
    bottleneck = bound.bottleneck
    if bottleneck is None or not bottleneck.step_ns:
        return []
    rows = parts(bound)
    least = _WORTH_NAMING * bottleneck.step_ns
    causes = [(cause, ns) for cause, ns in rows if ns >= least]
    causes.append((_OTHERS, sum(ns for _, ns in rows if ns < least)))
    shares = percents([ns for _, ns in causes], bottleneck.step_ns)
    ends = [
        min(width, round(end * width / bottleneck.step_ns))
        for end in accumulate(ns for _, ns in causes)
    ]
    return [
        Part(
            FILL.get(cause, WAITS),
            f"{cause_name(cause).partition(' (')[0]} {percent}%",
            end - start,
        )
        for (cause, _), percent, start, end in zip(
            causes, shares, [0, *ends], ends, strict=False
        )
        if percent
    ]


def _drawn(shown: list[Part], *, color: bool) -> Iterator[str]:
    """Yield the parts; a bar before one that is filled as the one before it."""
    before = ""
    for part in shown:
        words = f" {part.words} " if part.named else ""
        text = f"{part.fill}{words}".ljust(part.cells, part.fill)[: part.cells]
        if part.fill == before and text:
            text = f"│{text[1:]}"
        before = part.fill
        style = "yellow" if part.fill == WAITS else "green"
        yield styled(text, style, color=color)

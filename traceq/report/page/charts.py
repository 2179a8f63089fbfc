"""Pictures as data: axes with round ticks, and the marks that a template draws as SVG.

A picture has a size of its own, in which a letter is 12 high; the page scales it. All
colours are classes, so that the page's style can choose them for light and dark.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from traceq.common import units
from traceq.common.safe_text import printable
from traceq.report.base.columns import cut_middle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from traceq.report.base.content import TextTable

    Tip: TypeAlias = tuple[str, list[list[str]]]
    Box: TypeAlias = tuple[float, float, float, float]

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_KIBI = 1024.0
_DECADE = 10.0
# Names of kernels may be thousands of letters long.
_LONGEST = 400
_LETTER = 6.6
"""Approximate width of a letter: enough to see whether texts collide."""


@dataclass(frozen=True)
class Tick:
    """A place on an axis, in the picture's units."""

    at: float
    label: str


@dataclass(frozen=True)
class Scale:
    """Linear scale: from ``low`` at ``start`` to ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a value; one beyond the ends is at the end."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = (
                math.log10(max(item, 1e-30)) for item in (value, low, high)
            )
        share = (value - low) / (high - low) if high > low else 0.0
        return round(
            self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 2
        )

    def ticks(
        self, values: Iterable[float], text: Callable[[float], str]
    ) -> list[Tick]:
        """Return ticks at the values that are on the scale."""
        slack = 1e-9 * abs(self.high)
        return [
            Tick(self(value), text(value))
            for value in values
            if self.low - slack <= value <= self.high + slack
        ]


@dataclass(frozen=True)
class Mark:
    """One element of the SVG."""

    tag: str
    attributes: Mapping[str, str | float]
    text: str = ""
    tip: Tip | None = None
    """Tooltip of the mark."""
    href: str = ""
    """Page that it leads to, beside this one."""


@dataclass(frozen=True)
class Picture:
    """A chart: its marks in the order in which they are drawn, and its data."""

    width: float
    height: float
    label: str
    """Description of the chart, in a sentence."""
    marks: Sequence[Mark]
    table: TextTable | None = None
    """The same as a table."""
    legend: Sequence[tuple[str, str]] = field(default=())
    """Classes and what they stand for, where the marks have no labels of their own."""
    wide: bool = False
    """True if it needs the width of a screen: on a phone one scrolls it."""


def round_values(high: float, most: int = 5, base: float = _DECADE) -> list[float]:
    """Return round values from zero to at least ``high``, few of them.

    >>> round_values(11.3), round_values(3000, base=1024)
    ([0.0, 2.5, 5.0, 7.5, 10.0, 12.5], [0.0, 1024.0, 2048.0, 3072.0])
    """
    if high <= 0:
        return [0.0, 1.0]
    unit = base ** math.floor(math.log(high) / math.log(base))
    if base == _KIBI and high / unit > _DECADE:
        unit *= _DECADE ** math.floor(math.log10(high / unit))
    steps = [part * unit * scale for scale in (0.01, 0.1, 1.0) for part in _ROUND]
    step = next((item for item in sorted(steps) if high / item <= most), high)
    count = math.ceil(high / step - 1e-9)
    return [round(step * at, 12) for at in range(count + 1)]


def byte_values(high: float, most: int = 5) -> list[float]:
    """Return round numbers of bytes from zero to at least ``high``."""
    return round_values(high, most, _KIBI)


def decades(low: float, high: float, between: Sequence[int] = (1,)) -> list[float]:
    """Return the powers of ten from ``low`` to ``high``, and some in between.

    >>> decades(3, 400), decades(1, 10, (1, 2, 5))
    ([10.0, 100.0], [1.0, 2.0, 5.0, 10.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    values = [
        10.0**power * part for power in range(first, last + 1) for part in between
    ]
    return [
        value
        for value in values
        if low <= value * (1 + 1e-9) and value <= high * (1 + 1e-9)
    ]


def line(x1: float, y1: float, x2: float, y2: float, name: str) -> Mark:
    """Return a straight line of a class."""
    return Mark("line", {"class": name, "x1": x1, "y1": y1, "x2": x2, "y2": y2})


def rect(box: Box, name: str, tip: Tip | None = None) -> Mark:
    """Return a rectangle of a class."""
    x, y, width, height = (round(value, 2) for value in box)
    place = {"x": x, "y": y, "width": width, "height": height}
    return Mark("rect", {"class": name, **place}, tip=tip)


def circle(
    x: float, y: float, radius: float, name: str, tip: Tip | None = None
) -> Mark:
    """Return a dot of a class."""
    return Mark(
        "circle", {"class": name, "cx": x, "cy": y, "r": round(radius, 2)}, tip=tip
    )


def path(
    points: Iterable[tuple[float, float]],
    name: str,
    tip: Tip | None = None,
    *,
    closed: bool = False,
) -> Mark:
    """Return a line through points."""
    texts = " L".join(f"{x:g} {y:g}" for x, y in points)
    return Mark(
        "path", {"class": name, "d": f"M{texts}{' Z' if closed else ''}"}, tip=tip
    )


def words(x: float, y: float, text: str, name: str = "", anchor: str = "start") -> Mark:
    """Return a text; its anchor is its start, middle or end."""
    place: dict[str, str | float] = {"x": round(x, 2), "y": round(y, 2)}
    place["text-anchor"] = anchor
    return Mark("text", {"class": name} | place if name else place, text=text)


def x_axis(
    scale: Scale,
    ticks: Sequence[Tick],
    y: float,
    title: str = "",
    top: float | None = None,
) -> list[Mark]:
    """Return an axis below the picture, with lines up to ``top`` if that is given."""
    marks = [line(scale.start, y, scale.end, y, "axis")]
    room = -math.inf
    for tick in ticks:
        if top is not None:
            marks.append(line(tick.at, top, tick.at, y, "grid"))
        half = _LETTER * len(tick.label) / 2
        # The last one ends with the picture.
        at = min(tick.at, scale.end + _LETTER - half)
        if at - half > room:
            marks.append(words(at, y + 16, tick.label, anchor="middle"))
            room = at + half + _LETTER
    if title:
        marks.append(words(scale.end, y + 33, title, "axis-title", "end"))
    return marks


def y_axis(
    scale: Scale, ticks: Sequence[Tick], x: float, right: float, title: str = ""
) -> list[Mark]:
    """Return an axis at the left, with lines across the picture."""
    marks = []
    for tick in ticks:
        marks += [
            line(x, tick.at, right, tick.at, "grid"),
            words(x - 6, tick.at + 4, tick.label, anchor="end"),
        ]
    if title:
        marks.append(words(2, min(scale.start, scale.end) - 12, title, "axis-title"))
    return marks


def apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places near those given that are no nearer to each other than a gap.

    >>> apart([10, 12, 50], 14, 0, 100)
    [10, 24, 50]
    """
    order = sorted(range(len(places)), key=lambda at: places[at])
    spaced = [0.0] * len(places)
    below = low - gap
    for at in order:
        below = max(places[at], below + gap)
        spaced[at] = below
    above = high + gap
    for at in reversed(order):
        above = min(spaced[at], above - gap)
        spaced[at] = above
    return spaced


def tip(title: str, *rows: tuple[str, str]) -> Tip:
    """Return a tooltip: a title, and the rows that have a text."""
    lines = [[label, brief(printable(text))] for label, text in rows if text]
    return brief(printable(title)), lines


def brief(text: str, most: int = _LONGEST) -> str:
    """Return a text that is no longer than what people read: pages have a size, too."""
    return text if len(text) <= most else cut_middle(text, most)


def short(value: float) -> str:
    """Write a number for an axis.

    >>> short(512), short(65536), short(0.25), short(2_500_000)
    ('512', '65,536', '0.25', '2.5 M')
    """
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:g} {unit}"
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def axis_time(nanoseconds: float) -> str:
    """Write a time for an axis, without digits that say nothing.

    >>> axis_time(10_000_000), axis_time(2_500_000), axis_time(0)
    ('10 ms', '2.5 ms', '0')
    """
    return _trimmed(units.time(nanoseconds)) if nanoseconds else "0"


def axis_size(count: float) -> str:
    """Write a number of bytes for an axis.

    >>> axis_size(1 << 30), axis_size(0)
    ('1 GiB', '0')
    """
    return _trimmed(units.size(count)) if count else "0"


def _trimmed(text: str) -> str:
    number, _, unit = text.partition(" ")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return f"{number} {unit}"

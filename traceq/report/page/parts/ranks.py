"""Job of many ranks: waits of each over time, and the cost of their causes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.common import units
from traceq.ranks.analysis import heat
from traceq.ranks.columns import lowest
from traceq.report.page import charts
from traceq.report.page.section import Section
from traceq.report.ranks.content import CHANGES, content, named

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from traceq.ranks.analysis import Analysis
    from traceq.report.base.content import TextTable
    from traceq.report.page.charts import Mark, Tip

_SLICES = 240
_MOST_RANKS = 64
_WIDTH, _LEFT, _ROW, _TOP, _BOTTOM = 1100.0, 46.0, 15.0, 6.0, 26.0
_LEVELS = 8
_WORTH = 0.001
_FULL = 100.0


class Bar(NamedTuple):
    """Time that the job would be shorter by."""

    name: str
    time: str
    share: str
    width: float
    ns: float
    """Of a step, or of the window where there are none."""


def ranks_with_pages(analysis: Analysis, most: int) -> list[int]:
    """Return the numbers of ranks that get a page: of many, the latest and earliest."""
    order = analysis.by_rank.sort("late", "rank", descending=[True, False])["number"]
    numbers: list[int] = order.to_list()
    if len(numbers) > most:
        late = -(-most // 2)
        numbers = [*numbers[:late], *numbers[len(numbers) - (most - late) :]]
    return sorted(numbers)


def job(analysis: Analysis, pages: Mapping[int, str]) -> Section:
    """Return the verdict, and links to the pages of ranks."""
    words, every = content(analysis), analysis.job.ranks.height
    some = f"{len(pages)} of {every} ranks have a page, the latest and the earliest"
    return Section(
        key="job",
        title="Job",
        template="job.html",
        context={
            "verdict": words.verdict,
            "title": words.screen.title,
            "pages": sorted(pages.items()),
            "about": some if len(pages) < every else "Pages of the ranks",
        },
    )


def rank_map(analysis: Analysis, pages: Mapping[int, str]) -> Section | None:
    """Return ranks × time: where each rank waits, and where it is waited for."""
    rows = _shown(analysis)
    if not rows or not analysis.job.window_ns:
        return None
    every = analysis.job.ranks.height
    height = _TOP + _ROW * len(rows) + _BOTTOM
    late = _late_spans(analysis)
    marks: list[Mark] = []
    for at, (rank, shares) in enumerate(heat(analysis.job, _SLICES, rows).iter_rows()):
        top = _TOP + _ROW * at
        label, *boxes = _row(analysis, rank, shares, late.get(rank, ()), top)
        marks += [replace(label, href=pages.get(int(label.text), "")), *boxes]
    window = analysis.job.window_ns
    x = charts.Scale(0.0, window, _LEFT, _WIDTH - 8)
    ticks = x.ticks(charts.round_values(window, 8), charts.axis_time)
    marks += charts.x_axis(x, ticks, height - _BOTTOM + 3)
    picture = charts.Picture(
        _WIDTH,
        height,
        f"Waiting of {len(rows)} ranks over time; the table of ranks has the sums",
        marks,
        legend=(
            ("rank-wait", "waits for other ranks"),
            ("rank-late", "others wait for it"),
            ("rank-own", "its own work, and transfers"),
        ),
        wide=True,
    )
    some = f"{len(rows)} of {every} ranks: the latest and the earliest."
    return Section(
        key="ranks",
        title="Ranks over the window",
        template="ranks.html",
        context={"map": picture, "some": some if len(rows) < every else ""},
    )


def what_if(analysis: Analysis) -> Section | None:
    """Return the savings of the job: all, the stragglers, the causes."""
    everything = analysis.whatifs.all.saved_ns
    rows = [("all ranks and links", everything)]
    rows += [
        (
            f"{named(analysis, straggler.ranks)}: {straggler.cause.cause}",
            straggler.saved_ns,
        )
        for straggler in analysis.stragglers
    ]
    rows += [
        (f"{change.of} {change.name}", change.saved_ns) for change in analysis.changes
    ]
    worth = [(name, ns) for name, ns in rows if ns > _WORTH * analysis.whatifs.took]
    if not worth:
        return None
    return Section(
        key="what-if",
        title="What if",
        template="whatif.html",
        context={
            "bars": [
                Bar(
                    name,
                    units.time(ns / analysis.steps),
                    units.share(ns, analysis.whatifs.took),
                    round(min(_FULL, _FULL * ns / everything), 2),
                    ns / analysis.steps,
                )
                for name, ns in worth
            ],
            "each": "a step" if analysis.job.step_ns else "the window",
        },
    )


def figures(analysis: Analysis, pages: Mapping[int, str]) -> Section:
    """Return facts and tables, but what the page has as bars.

    Ranks in the table of ranks lead to their pages.
    """
    words = content(analysis)
    return Section(
        key="figures",
        title="Figures",
        template="tables.html",
        context={
            "facts": words.screen.facts,
            "tables": [table for table in words.screen.tables if not _is_drawn(table)],
            "notes": words.notes,
            "linked": "rank",
            "links": {str(number): href for number, href in pages.items()},
        },
    )


def _is_drawn(table: TextTable) -> bool:
    return table.columns[0].title == CHANGES


def _shown(analysis: Analysis) -> list[int]:
    """Return the rows of the ranks to draw: of many, the latest and the earliest."""
    order = analysis.by_rank.sort("late", "rank", descending=[True, False])["rank"]
    rows: list[int] = order.to_list()
    half = _MOST_RANKS // 2
    return rows if len(rows) <= _MOST_RANKS else [*rows[:half], *rows[-half:]]


def _row(
    analysis: Analysis,
    rank: int,
    shares: Sequence[float],
    late: Iterable[tuple[float, float]],
    top: float,
) -> Iterator[Mark]:
    """Yield the marks of a rank: its number, and its work and waits."""
    numbers = analysis.by_rank.row(by_predicate=pl.col("rank") == rank, named=True)
    number = str(numbers["number"])
    tip = _tip(analysis, numbers)
    bold = any(rank in straggler.ranks for straggler in analysis.stragglers)
    tall = _ROW - 2
    yield charts.words(
        _LEFT - 6, top + tall - 1, number, "straggler" if bold else "", "end"
    )
    yield _marked(
        charts.rect((_LEFT, top, _WIDTH - 8 - _LEFT, tall), "rank-own", tip), number
    )
    # A path for each shade: a rectangle for each slice would be ten times the bytes.
    for level in range(1, _LEVELS + 1):
        path = "".join(_boxes(_runs(shares, level), top, tall))
        if path:
            shade = {"class": "rank-wait", "opacity": f"{level / _LEVELS:g}", "d": path}
            yield _marked(charts.Mark("path", shade, tip=tip), number)
    path = "".join(_boxes(late, top + tall // 4, tall - tall // 2))
    if path:
        yield _marked(
            charts.Mark("path", {"class": "rank-late", "d": path}, tip=tip), number
        )


def _marked(mark: Mark, rank: str) -> Mark:
    """Return a mark that says which rank it is of."""
    return charts.Mark(mark.tag, {**mark.attributes, "data-rank": rank}, tip=mark.tip)


def _tip(analysis: Analysis, numbers: dict[str, float]) -> Tip:
    each = "a step" if analysis.job.step_ns else "in the window"
    return charts.tip(
        f"rank {numbers['number']}",
        ("waits", f"{units.time(numbers['wait'] / analysis.steps)} {each}"),
        (
            "later than its peers",
            f"{units.time(numbers['late'] / analysis.steps)} {each}",
        ),
        ("came last", f"{numbers['last']} times"),
    )


def _runs(shares: Sequence[float], level: int) -> Iterator[tuple[float, float]]:
    """Yield the stretches of this shade, as shares of the window."""
    shades = [-(-min(share, 1.0) * _LEVELS // 1) for share in shares]
    began: int | None = None
    for at, shade in enumerate([*shades, -1]):
        if shade == level and began is None:
            began = at
        elif shade != level and began is not None:
            yield began / len(shares), at / len(shares)
            began = None


def _boxes(
    spans: Iterable[tuple[float, float]], top: float, tall: float
) -> Iterator[str]:
    wide = _WIDTH - 8 - _LEFT
    for begin, end in spans:
        left, width = _LEFT + wide * begin, wide * (end - begin)
        yield f"M{left:.1f} {top:g}h{width:.1f}v{tall:g}h{-width:.1f}z"


def _late_spans(analysis: Analysis) -> dict[int, list[tuple[float, float]]]:
    """Return the waits of others for a rank, by its row, as shares of the window.

    That is from when half of the ranks have come to when it comes.
    """
    job = analysis.job
    begin, window = lowest(job.collectives["end"]), job.window_ns
    half = pl.col("start").quantile(0.5, "lower").over("instance")
    held = (
        job.cells.select("rank", "start", half=half)
        .filter(pl.col("start") - pl.col("half") > window / _SLICES / 2)
        .filter(pl.col("start") > begin)
        .sort("rank", "start")
    )
    spans: dict[int, list[tuple[float, float]]] = {}
    for rank, end, start in held.iter_rows():
        shares = max(0.0, (start - begin) / window), min(1.0, (end - begin) / window)
        spans.setdefault(rank, []).append(shares)
    return spans

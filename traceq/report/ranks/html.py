"""A job as one page of HTML: the heat map, what it would take, and the tables.

The page is one file that loads no other and has no script. All names go through
``html.escape``.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import polars as pl

from traceq import __version__, units
from traceq.ranks.analysis import heat
from traceq.ranks.columns import lowest
from traceq.report.base.html import page
from traceq.report.base.text import printable, where
from traceq.report.lint import content as lint_words
from traceq.report.ranks.content import CHANGES, content, named

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from traceq.linter.engine import Report
    from traceq.ranks.analysis import Analysis
    from traceq.report.base.content import TextTable

_SLICES = 240
_MOST_RANKS = 64
_WIDTH, _LEFT, _ROW, _TOP, _BOTTOM = 1000, 64, 14, 4, 24
_TICKS = 5
_LEVELS = 8
_WORTH = 0.001

_STYLE = """
:root { color-scheme: light dark; --wait: #e8590c; --late: #1c4e9e; --own: #8884;
  --line: #8886; --bar: #15803d; }
@media (prefers-color-scheme: dark) { :root { --late: #7aa7ff; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin-top: 2rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .2rem; }
dl { display: grid; grid-template-columns: 7rem 1fr; gap: .2rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; margin: 1.2rem 0; }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0;
  border-bottom: 1px solid var(--line); }
td { overflow-wrap: anywhere; min-width: 2.5rem; } th { white-space: nowrap; }
.wide, figure { overflow-x: auto; } .wide td { min-width: 4rem; }
.number + :not(.number) { padding-left: 1.2rem; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; }
svg { width: 100%; min-width: 40rem; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
svg .straggler { font-weight: bold; fill: var(--late); }
.own { fill: var(--own); } .wait { fill: var(--wait); } .late { fill: var(--late); }
.legend span { margin-right: 1.4rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem; }
.track { width: 45%; min-width: 7rem; }
.track div { height: 1.1rem; background: var(--own); }
.track span { display: block; height: 100%; min-width: 2px; background: var(--bar); }
"""


def render(found: Analysis, report: Report) -> str:
    """Return the page."""
    words = content(found)
    body = [
        f"<h1>{_text(words.verdict)}</h1>",
        f"<p>{_text(words.screen.title)}</p>",
        *_heat_map(found),
        *_bars(found),
        *_findings(report),
        "<h2>Figures</h2>",
        "<dl>",
        *(f"<dt>{_text(a)}</dt><dd>{_text(b)}</dd>" for a, b in words.screen.facts),
        "</dl>",
        *(_table(one) for one in words.screen.tables if not _is_drawn(one)),
        *_notes(words.notes),
        f"<p>traceq {_text(__version__)}</p>",
    ]
    return page(f"Job: {words.screen.title}", _STYLE, body)


def _findings(report: Report) -> Iterator[str]:
    for outcome in report.outcomes:
        if outcome.findings:
            yield "<h2>Findings</h2>"
        for one in outcome.findings:
            cost = lint_words.cost(one, outcome)
            head = f"{one.code} {one.name}" + (f", {cost}" if cost else "")
            lines = [("at", where(one.place))]
            lines += [
                (entry.label, lint_words.evidence(entry)) for entry in one.evidence
            ]
            lines += [("fix", one.advice)]
            yield f"<h3>{_text(head)}</h3><p>{_text(printable(one.message))}</p><dl>"
            yield from (
                f"<dt>{_text(printable(a))}</dt><dd>{_text(printable(b))}</dd>"
                for a, b in lines
                if b
            )
            yield "</dl>"


def _notes(notes: Sequence[str]) -> Iterator[str]:
    if notes:
        yield "<h2>Notes</h2><ul>"
        yield from (f"<li>{_text(note)}</li>" for note in notes)
        yield "</ul>"


def _heat_map(found: Analysis) -> Iterator[str]:
    """Yield ranks × time: where each rank waits, and where it is waited for."""
    rows = _shown(found)
    if not rows or not found.job.window_ns:
        return
    height = _TOP + _ROW * len(rows) + _BOTTOM
    every = found.job.ranks.height
    some = (
        "" if len(rows) == every else f", {len(rows)} of {every}: latest and earliest"
    )
    yield f"<h2>Ranks over the window{some}</h2>"
    yield (
        '<p class="legend"><span><i style="background:var(--wait)"></i>waits for other'
        ' ranks</span><span><i style="background:var(--late)"></i>others wait for'
        ' it</span><span><i style="background:var(--own)"></i>its own work, and'
        " transfers</span></p>"
    )
    yield (
        f'<figure><svg viewBox="0 0 {_WIDTH} {height}" role="img"'
        ' aria-label="waiting of each rank over time">'
    )
    late = _late_spans(found)
    for at, (rank, shares) in enumerate(heat(found.job, _SLICES, rows).iter_rows()):
        yield from _row(found, rank, shares, late.get(rank, ()), _TOP + _ROW * at)
    yield from _axis(found.job.window_ns, height)
    yield "</svg></figure>"


def _shown(found: Analysis) -> list[int]:
    """Return the rows of the ranks to draw: of many, the latest and the earliest."""
    order = found.by_rank.sort("late", "rank", descending=[True, False])["rank"]
    rows: list[int] = order.to_list()
    half = _MOST_RANKS // 2
    return rows if len(rows) <= _MOST_RANKS else [*rows[:half], *rows[-half:]]


def _row(
    found: Analysis,
    rank: int,
    shares: Sequence[float],
    late: Iterable[tuple[float, float]],
    top: int,
) -> Iterator[str]:
    known = found.by_rank.row(by_predicate=pl.col("rank") == rank, named=True)
    each = "a step" if found.job.step_ns else "in the window"
    title = (
        f"rank {known['number']}: waits {units.time(known['wait'] / found.steps)}"
        f" {each}, is {units.time(known['late'] / found.steps)} later than its peers,"
        f" came last {known['last']} times"
    )
    bold = any(rank in one.ranks for one in found.stragglers)
    style = ' class="straggler"' if bold else ""
    tall = _ROW - 2
    yield f"<g><title>{_text(title)}</title>"
    yield (
        f'<text{style} x="{_LEFT - 6}" y="{top + tall - 1}" text-anchor="end">'
        f"{known['number']}</text>"
    )
    yield (
        f'<rect class="own" x="{_LEFT}" y="{top}" width="{_WIDTH - _LEFT}"'
        f' height="{tall}"/>'
    )
    # A path for each shade: a rectangle for each slice would be ten times the bytes.
    for level in range(1, _LEVELS + 1):
        path = "".join(_boxes(_runs(shares, level), top, tall))
        if path:
            yield f'<path class="wait" opacity="{level / _LEVELS:g}" d="{path}"/>'
    path = "".join(_boxes(late, top + tall // 4, tall - tall // 2))
    if path:
        yield f'<path class="late" d="{path}"/>'
    yield "</g>"


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


def _boxes(spans: Iterable[tuple[float, float]], top: int, tall: int) -> Iterator[str]:
    wide = _WIDTH - _LEFT
    for begin, end in spans:
        left, width = _LEFT + wide * begin, wide * (end - begin)
        yield f"M{left:.1f} {top}h{width:.1f}v{tall}h{-width:.1f}z"


def _late_spans(found: Analysis) -> dict[int, list[tuple[float, float]]]:
    """Return where others wait for a rank, by its row, as shares of the window.

    That is from when half of the ranks have come to when it comes.
    """
    job = found.job
    begin, window = lowest(job.found["end"]), job.window_ns
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


def _axis(window: int, height: int) -> Iterator[str]:
    for tick in range(_TICKS + 1):
        x = _LEFT + (_WIDTH - _LEFT) * tick / _TICKS
        anchor = {0: "start", _TICKS: "end"}.get(tick, "middle")
        yield (
            f'<text x="{x:.0f}" y="{height - 6}" text-anchor="{anchor}">'
            f"{_text(units.time(window * tick / _TICKS))}</text>"
        )


def _bars(found: Analysis) -> Iterator[str]:
    """Yield what the job would take less: all, the stragglers, the causes."""
    everything = found.whatifs.all.saved_ns
    rows = [("all ranks and links", everything)]
    rows += [
        (f"{named(found, one.ranks)}: {one.cause.cause}", one.saved_ns)
        for one in found.stragglers
    ]
    rows += [(f"{one.of} {one.name}", one.saved_ns) for one in found.changes]
    worth = [(name, ns) for name, ns in rows if ns > _WORTH * found.whatifs.took]
    if not worth:
        return
    each = "a step" if found.job.step_ns else "the window"
    yield f"<h2>What {each} would be shorter by, at the median of the peers</h2>"
    yield "<table>"
    for name, ns in worth:
        share = units.share(ns, found.whatifs.took)
        yield (
            f'<tr><td>{_text(printable(name))}</td><td class="number">'
            f"{_text(units.time(ns / found.steps))}</td>"
            f'<td class="number">{_text(share)}</td><td class="track"><div>'
            f'<span style="width:{100 * ns / everything:.1f}%"></span></div></td></tr>'
        )
    yield "</table>"


def _is_drawn(table: TextTable) -> bool:
    """Return whether the page has it as bars."""
    return table.columns[0].title == CHANGES


def _table(table: TextTable) -> str:
    kinds = [' class="number"' if column.number else "" for column in table.columns]
    head = [column.title for column in table.columns]
    rows = [("th", head), *(("td", row) for row in table.rows)]
    lines = [
        "<tr>"
        + "".join(
            f"<{tag}{kind}>{_text(cell)}</{tag}>"
            for kind, cell in zip(kinds, row, strict=True)
        )
        + "</tr>"
        for tag, row in rows
    ]
    return "\n".join(['<div class="wide"><table>', *lines, "</table></div>"])


def _text(text: str) -> str:
    return escape(text, quote=True)

"""The change between two memory snapshots as text, as Markdown and as plain data."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.memory.diff import COPIES
from traceq.common.safe_text import printable
from traceq.common.units import share, size
from traceq.common.words import counted
from traceq.report.base.columns import Column, fitted
from traceq.report.base.content import TextTable
from traceq.report.base.markdown import escaped
from traceq.report.base.screen import PIPE, WIDEST
from traceq.report.base.text import bold, place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.analysis.memory.diff import MemoryDiff

_AMOUNT = 11
_MOST_SITES = 10
# A change below this share of the peak is no change.
_NOTHING = 0.005
# The change of a category at any time is shown if it differs from the change at the
# moments by more than this fraction of the peak. Heuristic threshold.
_MUCH = 0.05
_NUMBERS = ("before", "after", "change")
# What changes by more than the sum is made up for by others.
_ALL = 1.1


def headline(diff: MemoryDiff) -> str:
    """Return the change in one sentence, with its largest cause."""
    peak = _worst(diff)
    if peak is None:
        return "memory: nothing is allocated in either snapshot"
    if _is_nothing(peak["change"], peak):
        return f"memory: no change, the peak is {size(peak['after'])}"
    up = peak["change"] > 0
    moved = "rises" if up else "falls"
    percent = share(abs(peak["change"]), peak["before"])
    text = (
        f"memory: the peak {moved} by {size(abs(peak['change']))} ({percent}), from"
        f" {size(peak['before'])} to {size(peak['after'])}"
    )
    sites = diff.sites.filter(
        pl.col("device") == peak["device"], (pl.col("change") > 0) == up
    )
    largest = abs(sites["change"][0]) if sites.height else 0
    # Where there are several causes, or others make up for it, it is only the largest.
    of_device = diff.sites.filter(pl.col("device") == peak["device"])
    net = abs(int(of_device["change"].sum()))
    mainly = "mainly" if net / 2 <= largest <= _ALL * net else "most of all"
    if phase := peak["compared_in"]:
        text += f"; it moves from the {peak['phase_before']} to the"
        text += f" {peak['phase_after']}"
        mainly = f"in the {phase} {mainly}"
    if sites.is_empty():
        return text
    first = sites.row(0, named=True)
    return f"{text}; {mainly} {signed(first['change'])} {_site(first)}"


def text(diff: MemoryDiff, *, width: int | None, color: bool) -> str:
    """Return the comparison for a terminal, wrapped to a width."""
    width = min(width or PIPE, WIDEST)
    lines = [bold(line, color=color) for line in textwrap.wrap(headline(diff), width)]
    for peak in diff.peaks.iter_rows(named=True):
        lines += ["", *_device(diff, peak, width, color=color)]
    return "\n".join(lines) + "\n"


def markdown(diff: MemoryDiff) -> str:
    """Return the comparison as a section of a note or a pull request."""
    lines = [f"### {escaped(headline(diff))}"]
    for peak in diff.peaks.iter_rows(named=True):
        lines += ["", escaped(_reserved(peak)), ""]
        lines += [
            "| " + " | ".join(_titles(diff, peak)) + " |",
            "| --- | ---: | ---: | ---: | --- |" + " --- |" * _differs(diff, peak),
        ]
        lines += [
            "| " + " | ".join(map(escaped, row)) + " |" for row in _rows(diff, peak)
        ]
        sites = list(_sites(diff, peak))
        lines += [""] * bool(sites)
        lines += [f"- {change} {escaped(words)}" for change, words in sites]
    return "\n".join(lines) + "\n"


def devices(diff: MemoryDiff) -> Iterator[tuple[str, TextTable, list[str]]]:
    """Yield each device: its peaks, a table by category, and which lines changed."""
    for peak in diff.peaks.iter_rows(named=True):
        columns = tuple(
            Column(title, number=title in _NUMBERS) for title in _titles(diff, peak)
        )
        sites = [f"{change} {words}" for change, words in _sites(diff, peak)]
        yield _reserved(peak), TextTable(columns, tuple(_rows(diff, peak))), sites


def data(diff: MemoryDiff) -> dict[str, Any]:
    """Return the comparison as plain data: bytes, and every line of it."""
    return {
        "peaks": diff.peaks.to_dicts(),
        "categories": diff.categories.to_dicts(),
        "sites": diff.sites.to_dicts(),
    }


def signed(change: int) -> str:
    """Write a change in bytes with its sign.

    >>> signed(1 << 20), signed(-(3 << 30)), signed(0)
    ('+1.00 MiB', '-3.00 GiB', '0 B')
    """
    return f"+{size(change)}" if change > 0 else size(change)


def _worst(diff: MemoryDiff) -> dict[str, Any] | None:
    """Return the device whose peak changes most."""
    rows = diff.peaks.sort(
        pl.col("change").abs(), pl.col("after"), descending=True
    ).to_dicts()
    return rows[0] if rows else None


def _is_nothing(change: int, peak: dict[str, Any]) -> bool:
    return abs(change) <= _NOTHING * max(peak["before"], peak["after"])


def _device(
    diff: MemoryDiff, peak: dict[str, Any], width: int, *, color: bool
) -> Iterator[str]:
    yield from textwrap.wrap(_reserved(peak), width)
    yield ""
    columns = [Column(title, number=title in _NUMBERS) for title in _titles(diff, peak)]
    lines, _ = fitted(columns, list(_rows(diff, peak)), width)
    yield bold(lines[0], color=color)
    yield from lines[1:]
    sites = list(_sites(diff, peak))
    if sites:
        moved = "Changes that cancel out:"
        yield ""
        yield bold(
            moved if _is_nothing(peak["change"], peak) else "Why, largest first:",
            color=color,
        )
    for change, words in sites:
        yield from textwrap.wrap(
            words,
            width,
            initial_indent=f"{change:>{_AMOUNT}}  ",
            subsequent_indent=" " * (_AMOUNT + 2),
            break_on_hyphens=False,
        )


def _titles(diff: MemoryDiff, peak: dict[str, Any]) -> tuple[str, ...]:
    """Return the titles of the table."""
    phase = peak["compared_in"]
    ever = ("at any time",) if _differs(diff, peak) else ()
    what = f"highest in {phase}" if phase else "at the peak"
    return (what, *_NUMBERS, *ever, "largest allocation")


def _differs(diff: MemoryDiff, peak: dict[str, Any]) -> bool:
    """Return whether a category changes otherwise than the moments show.

    One moment may be the end of a backward, and the other its beginning.
    """
    ever = pl.col("most_after").fill_null(0) - pl.col("most_before").fill_null(0)
    apart = (ever - pl.col("change")).abs()
    much = apart > _MUCH * max(peak["before"], peak["after"])
    in_category = pl.col("what") != COPIES
    rows = diff.categories.filter(pl.col("device") == peak["device"], in_category)
    return peak["compared_in"] is not None or bool(rows.select(much.any()).item())


def _reserved(peak: dict[str, Any]) -> str:
    return (
        f"GPU {peak['device']}: allocated {size(peak['before'])} ->"
        f" {size(peak['after'])} ({signed(peak['change'])}), reserved"
        f" {size(peak['reserved_before'])} -> {size(peak['reserved_after'])}"
    )


def _rows(diff: MemoryDiff, peak: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the categories and their sum."""
    ever = _differs(diff, peak)
    rows = diff.categories.filter(pl.col("device") == peak["device"])
    for row in rows.iter_rows(named=True):
        where = place(row["file"], row["line"], row["function"])
        largest = f"{size(row['largest_before'])} -> {size(row['largest_after'])}"
        if row["largest_before"] == row["largest_after"]:
            largest = size(row["largest_after"])
        yield (
            row["what"],
            size(row["before"]),
            size(row["after"]),
            signed(row["change"]),
            *([_at_any_time(row)] if ever else []),
            f"{largest} at {where}" if where else largest,
        )
    before, after = peak["compared_before"], peak["compared_after"]
    amounts = (size(before), size(after), signed(after - before))
    yield ("total", *amounts, *([""] if ever else []), "")


def _at_any_time(row: dict[str, Any]) -> str:
    """Return the most of a category in either snapshot, whenever that was."""
    if row["most_before"] is None and row["most_after"] is None:
        return ""
    return f"{size(row['most_before'] or 0)} -> {size(row['most_after'] or 0)}"


def _sites(diff: MemoryDiff, peak: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines that change most, and how much the others add."""
    rows = diff.sites.filter(pl.col("device") == peak["device"], pl.col("change") != 0)
    worth = [
        row
        for row in rows.head(_MOST_SITES).iter_rows(named=True)
        if not _is_nothing(row["change"], peak)
    ]
    for row in worth:
        amounts = f"{size(row['before'])} -> {size(row['after'])}"
        yield signed(row["change"]), f"{_site(row)}: {amounts}, {_counts(row)}"
    rest = rows.height - len(worth)
    if worth and rest:
        change = peak["compared_after"] - peak["compared_before"]
        others = change - sum(row["change"] for row in worth)
        yield signed(others), counted(rest, "other line")


def _site(row: dict[str, Any]) -> str:
    """Return the subject of a row, and its place."""
    line = row["line_after"] or row["line_before"]
    where = place(row["file"], line, row["function"])
    op = f" ({printable(row['op'])})" if row["op"] else ""
    return f"{row['what']}{op}" + (f" at {where}" if where else "")


def _counts(row: dict[str, Any]) -> str:
    """Return in how many allocations, and whether each may have another dtype."""
    before, after = row["count_before"], row["count_after"]
    if before != after:
        return f"{before} -> {after} allocations"
    text = "in 1 allocation" if after == 1 else f"in {after} allocations"
    if row["after"] == 2 * row["before"]:
        return f"{text} of twice the size, as fp32 instead of 16-bit"
    if 2 * row["after"] == row["before"]:
        return f"{text} of half the size, as 16-bit instead of fp32"
    return text

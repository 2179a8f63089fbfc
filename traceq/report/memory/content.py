"""The words about a memory snapshot: what every format that people read has in it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq import units
from traceq.analysis.memory.categories import SURE
from traceq.analysis.memory.stacks import chain_of
from traceq.report.base.columns import Column, cut_middle, cut_place
from traceq.report.base.content import Content, TextTable, telling_names
from traceq.report.base.text import place, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.analysis.memory.scaling import Growth
    from traceq.analysis.memory.summary import MemorySummary

_MOST_PLACES = 8
_MOST_MODULES = 6
_MOST_LARGEST = 8
_MOST_CALLS = 4
_MOST_GROWTH = 3
_MOST_HOLDERS = 3
_MOST_VALUES = 8
# Free memory that is less than this part of what is reserved is no trouble.
_LITTLE = 0.02
_PART = 0.05
# A part that is smaller is not worth a word.
_NOTHING = 0.005
# What says most of how the allocator was set up comes as this text.
_CONF = "PYTORCH_CUDA_ALLOC_CONF"
_DEFAULTS = {
    "max_split_size": "-1",
    "garbage_collection_threshold": "0.0",
    "expandable_segments": "False",
}


def content(summary: MemorySummary) -> Content:
    """Return the words for one device of a snapshot."""
    tables = (
        _categories(summary),
        _modules(summary),
        _places(summary),
        _largest(summary),
        _calls(summary),
    )
    return Content(
        title=printable(summary.name),
        warnings=tuple(map(printable, summary.facts.damage)),
        facts=tuple((label, printable(text)) for label, text in _facts(summary)),
        tables=tuple(table for table in tables if table.rows),
    )


def overview(summaries: Sequence[MemorySummary]) -> TextTable:
    """Return a table with one row a device."""
    numbers = ["allocated", "reserved", "free in it", "grows by"]
    columns = (
        Column("snapshot", weight=3, cut=cut_middle),
        *(Column(name, number=True) for name in numbers),
        Column("reached in"),
        Column("most of it is", weight=2),
    )
    names = telling_names([summary.name for summary in summaries])
    return TextTable(columns, tuple(map(_overview_row, names, summaries)))


def scaling(label: str, found: Sequence[Growth], values: Sequence[float]) -> TextTable:
    """Return a table with one row a category, and what it is at each value."""
    columns = (
        Column("category"),
        Column(f"with {printable(label)}", weight=2),
        *(
            Column(f"{value:g}", number=True, spare=at >= _MOST_VALUES)
            for at, value in enumerate(values)
        ),
    )
    return TextTable(
        columns,
        tuple(
            (one.category, one.law, *(units.size(size) for size in one.sizes))
            for one in found
        ),
    )


def _overview_row(name: str, summary: MemorySummary) -> tuple[str, ...]:
    peak = summary.peak
    free = peak["reserved"] - peak["active"]
    first = summary.categories.row(0, named=True) if summary.categories.height else None
    most = ""
    if first:
        most = f"{first['category']} {units.share(first['size'], peak['allocated'])}"
    grown = int(summary.growth["grown"].sum())
    return (
        printable(name) + (" (incomplete)" if summary.facts.incomplete else ""),
        units.size(peak["allocated"]),
        units.size(peak["most_reserved"]),
        units.share(free, peak["reserved"]),
        f"{units.size(grown)}/step" if grown else "-",
        _moment(summary) or "-",
        most or "-",
    )


def _facts(summary: MemorySummary) -> Iterator[tuple[str, str]]:
    if summary.run:
        parts = [shlex.join(summary.run.command) or "command unknown"]
        parts += [f"{key}={value}" for key, value in summary.run.labels.items()]
        yield "Run", " · ".join(parts)
    yield "Recorded", _recorded(summary)
    yield "Peak", _peak(summary)
    if summary.failures.height:
        yield "Refused", _refused(summary)
    yield "Sure", _sure(summary)
    yield "Steps", _steps(summary)
    yield "Reserved", _reserved(summary)
    if waiting := _waiting(summary):
        yield "Waiting", waiting
    yield "Settings", _settings(summary)
    if summary.modules is None:
        yield (
            "Modules",
            "unknown: a snapshot has none; give a run folder, whose trace knows them",
        )


def _recorded(summary: MemorySummary) -> str:
    facts = summary.facts
    size = f"{units.size(facts.unpacked_bytes)} unpacked"
    since = f"torch {facts.torch_from} or later" if facts.torch_from else "torch 1"
    if not facts.history:
        return f"the state at the end alone, without events; {since}, {size}"
    events = summary.curve.height - 1
    last = summary.curve["ts"].max()
    over = f" over {units.time(last)}" if isinstance(last, int) and last else ""
    stacks = "with stacks" if facts.stacks else "without stacks"
    return f"{events:,} events {stacks}{over}; {since}, {size}"


def _peak(summary: MemorySummary) -> str:
    peak = summary.peak
    text = (
        f"{units.size(peak['allocated'])} allocated,"
        f" {units.size(peak['reserved'])} reserved"
    )
    if peak["most_reserved"] != peak["reserved"]:
        text += f" (at other times up to {units.size(peak['most_reserved'])})"
    if peak["event"] is None:
        return f"{text}; {_without_event(summary)}"
    if moment := _moment(summary):
        text += f"; reached in {moment}"
    if peak["ts"] is not None:
        text += f", {units.time(peak['ts'])} after the start"
    return text


def _without_event(summary: MemorySummary) -> str:
    if summary.curve.height > 1:
        return "from the start of the recording on"
    return "as of the end: nothing is known of before"


def _moment(summary: MemorySummary) -> str:
    step, phase = summary.peak["step"], summary.peak["phase"]
    parts = [phase] if phase else []
    parts += [f"step {step}"] if step is not None else []
    return " of ".join(parts)


def _refused(summary: MemorySummary) -> str:
    """Say what of the memory that was asked for could not be had."""
    parts = []
    for row in summary.failures.tail(_MOST_GROWTH).iter_rows(named=True):
        where = place(row["file"], row["line"], row["function"])
        free = row["reserved"] - row["allocated"]
        text = units.size(row["asked"]) + (f" at {where}" if where else "")
        text += f", with {units.size(free)} reserved and free"
        if row["device_free"] is not None:
            text += f" and {units.size(row['device_free'])} free on the device"
        parts.append(text)
    count = summary.failures.height
    more = f" (the last of {count:,})" if count > len(parts) else ""
    return "; ".join(parts) + f"{more}; traceq lint says why it did not fit"


def _sure(summary: MemorySummary) -> str:
    """Say how what the memory is for is known."""
    whole = int(summary.categories["size"].sum())
    unknown = pl.col("category") == "unknown"
    known = summary.categories.filter(~unknown)
    by_stack, by_size, guessed = (int(known[name].sum()) for name in SURE)
    rest = whole - by_stack - by_size - guessed
    return (
        f"what it is for is shown by stacks and lifetimes for"
        f" {units.share(by_stack, whole)}, by sizes that fit nothing else for"
        f" {units.share(by_size, whole)}, guessed for {units.share(guessed, whole)},"
        f" unknown for {units.share(rest, whole)}"
    )


def _steps(summary: MemorySummary) -> str:
    # A few events before the first step or after the last are none of their own.
    whole = summary.steps.filter(pl.col("events") >= _PART * pl.col("events").max())
    if not whole.height:
        return "none found: no region, backward or optimizer tells them apart"
    shown = [
        f"#{row['step']} up to {units.size(row['highest'])}"
        for row in whole.head(_MOST_VALUES).iter_rows(named=True)
    ]
    text = ", ".join(shown) + (" …" if whole.height > len(shown) else "")
    if not summary.growth.height:
        return f"{text}; nothing that stays grows from step to step"
    by_line = summary.growth.group_by(
        "file", "line", "function", maintain_order=True
    ).agg(pl.sum("grown"), pl.col("op").first())
    lines = [
        f"{units.size(row['grown'])} at "
        + (place(row["file"], row["line"], row["function"]) or row["op"] or "?")
        for row in by_line.head(_MOST_GROWTH).iter_rows(named=True)
    ]
    grown = units.size(int(summary.growth["grown"].sum()))
    return f"{text}; each leaves {grown} behind: " + ", ".join(lines)


def _reserved(summary: MemorySummary) -> str:
    peak, found = summary.peak, summary.fragmentation
    free = found.beside + found.releasable + found.private
    if peak["reserved"] == 0:
        return "nothing"
    text = (
        f"{units.size(free)} of the {units.size(peak['reserved'])} at the peak are free"
        f" ({units.share(free, peak['reserved'])}), in {found.pieces:,} pieces of up to"
        f" {units.size(found.largest)}; {units.size(found.rounding)} more are lost to"
        " rounding"
    )
    if found.private:
        text += f"; {units.size(found.private)} of the free is in pools of their own"
    return text


def _waiting(summary: MemorySummary) -> str:
    """Say what the free bytes are waiting for."""
    found = summary.fragmentation
    if found.beside + found.releasable + found.pending + found.private < (
        _LITTLE * summary.peak["reserved"]
    ):
        return ""
    parts = []
    if found.releasable:
        parts.append(
            f"{units.size(found.releasable)} in whole segments, for an allocation that"
            " fits or torch.cuda.empty_cache()"
        )
    if found.beside:
        holders = [
            (row["category"] if row["category"] != "unknown" else "others")
            + (f" of {where}" if (where := _where(row)) else "")
            + f" ({units.size(row['held'])})"
            for row in found.holders.head(_MOST_HOLDERS).iter_rows(named=True)
        ]
        parts.append(
            f"{units.size(found.beside)} beside tensors, for an allocation that fits"
            f" into a gap or for them to go: {', '.join(holders)}"
        )
    if found.pending:
        parts.append(f"{units.size(found.pending)} for another stream to be done")
    if found.private:
        parts.append(
            f"{units.size(found.private)} for the next replay of their CUDA graph, or"
            " the program that made the pool"
        )
    return "; ".join(parts)


def _where(row: dict[str, Any]) -> str:
    return place(row["file"], row["line"], None)


def _settings(summary: MemorySummary) -> str:
    if not summary.settings:
        return "not in the file, which is older than torch 2.3"
    text = summary.settings.get(_CONF, "")
    changed = [
        f"{name}={summary.settings[name]}"
        for name, usual in _DEFAULTS.items()
        if summary.settings.get(name, usual) != usual
    ]
    return ", ".join([*([text] if text else []), *changed]) or "all as torch has them"


def _numbers() -> tuple[Column, ...]:
    return tuple(Column(name, number=True) for name in ("size", "share", "count"))


def _counted(summary: MemorySummary, row: dict[str, Any]) -> tuple[str, str, str]:
    return (
        units.size(row["size"]),
        units.share(row["size"], summary.peak["allocated"]),
        f"{row['count']:,}",
    )


def _categories(summary: MemorySummary) -> TextTable:
    columns = (
        Column("live at the peak"),
        *_numbers(),
        Column("largest", number=True),
        Column("how sure", weight=2),
    )
    rows = summary.categories.iter_rows(named=True)
    return TextTable(
        columns,
        tuple(
            (
                row["category"],
                *_counted(summary, row),
                units.size(row["largest"]),
                _how_sure(row),
            )
            for row in rows
        ),
    )


def _how_sure(row: dict[str, Any]) -> str:
    if row["category"] == "unknown":
        return "-"
    parts = [
        (name, units.share(row[name], row["size"]))
        for name in SURE
        if row[name] > _NOTHING * row["size"]
    ]
    if len(parts) == 1:
        return parts[0][0]
    return ", ".join(f"{share} {name}" for name, share in parts)


def _modules(summary: MemorySummary) -> TextTable:
    columns = (Column("module", weight=3, cut=cut_middle), *_numbers(), Column("most"))
    rows = []
    if summary.modules is not None:
        rows = summary.modules.head(_MOST_MODULES).to_dicts()
    return TextTable(
        columns,
        tuple(
            (printable(row["module"]), *_counted(summary, row), row["category"])
            for row in rows
        ),
    )


def _places(summary: MemorySummary) -> TextTable:
    columns = (
        Column("your line", weight=3, cut=cut_place),
        *_numbers(),
        Column("most of it"),
    )
    rows = summary.places.head(_MOST_PLACES).iter_rows(named=True)
    return TextTable(
        columns,
        tuple(
            (
                place(row["file"], row["line"], row["function"]),
                *_counted(summary, row),
                row["category"],
            )
            for row in rows
        ),
    )


def _largest(summary: MemorySummary) -> TextTable:
    columns = (
        Column("largest", number=True),
        Column("size", number=True),
        Column("count", number=True),
        Column("category"),
        Column("sure"),
        Column("lives", weight=2),
        Column("by", weight=2, cut=cut_middle),
    )
    rows = summary.largest.head(_MOST_LARGEST).iter_rows(named=True)
    return TextTable(
        columns,
        tuple(
            (
                f"#{number}",
                units.size(row["size"]),
                f"{row['count']:,}",
                row["category"],
                row["sure"] if row["category"] != "unknown" else "-",
                lifetime(row),
                printable(row["node"] or row["op"] or "-"),
            )
            for number, row in enumerate(rows, start=1)
        ),
    )


def _calls(summary: MemorySummary) -> TextTable:
    """Return the calls in the user's code that led to the largest allocations."""
    rows = summary.largest.head(_MOST_LARGEST).iter_rows(named=True)
    return TextTable(
        (Column("largest", number=True), Column("called from")),
        tuple(
            (f"#{number}", calls(row["chain"]))
            for number, row in enumerate(rows, start=1)
            if row["chain"]
        ),
    )


def calls(chain: str | None) -> str:
    """Return the user's calls that led to an allocation, the innermost first."""
    if not chain:
        return ""
    found = chain_of(chain)
    text = " < ".join(map(printable, found[:_MOST_CALLS]))
    return f"{text} < …" if len(found) > _MOST_CALLS else text


def lifetime(row: dict[str, Any]) -> str:
    """Say from when to when an allocation lived."""
    if row["from_before"] and row["to_the_end"]:
        return "all the time"
    begin = "before" if row["from_before"] else row["phase"]
    if row["to_the_end"]:
        return f"{begin} to the end" if begin else "to the end"
    parts = []
    end = row["free_phase"]
    if begin and end:
        parts.append(f"in {begin}" if begin == end else f"{begin} to {end}")
    if row["steps"]:
        parts.append(f"{row['steps']} step{'s' if row['steps'] > 1 else ''} on")
    if row["lived"] is not None:
        parts.append(units.time(row["lived"]))
    return ", ".join(parts) or "-"

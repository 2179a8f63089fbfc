"""Content of a memory report, shared by all formats for people."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.memory.categories import CONFIDENCE
from traceq.analysis.memory.stacks import chain_of
from traceq.common import units
from traceq.common.safe_text import printable
from traceq.common.words import counted
from traceq.report.base.columns import Column, cut_middle, cut_module, cut_place
from traceq.report.base.content import Content, TextTable, telling_names
from traceq.report.base.text import place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.analysis.memory.scaling import Growth
    from traceq.analysis.memory.summary import MemorySummary

_MOST_PLACES = 8
_MOST_MODULES = 6
_MOST_LARGEST = 8
_MOST_CALLS = 4
_MOST_LEAKS = 3
_MOST_HOLDERS = 3
_MOST_VALUES = 8
# Free memory below this share of what is reserved is not worth a line.
_LITTLE = 0.02
_PART = 0.05
# A smaller share is left out.
_NOTHING = 0.005
_SHOWN_BY = {"certain": " (stack or lifetime)", "likely": " (size)"}
# Most of how the allocator was configured is in this text.
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
        *_parts(summary),
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
    numbers = ["allocated", "reserved", "free", "leaks"]
    columns = (
        Column("snapshot", weight=3, cut=cut_module),
        *(Column(name, number=True) for name in numbers),
        Column("reached in"),
        Column("mainly", weight=2),
    )
    names = telling_names([summary.name for summary in summaries])
    return TextTable(columns, tuple(map(_overview_row, names, summaries)))


def scaling(
    label: str, growths: Sequence[Growth], values: Sequence[float]
) -> TextTable:
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
            (growth.category, growth.law, *(units.size(size) for size in growth.sizes))
            for growth in growths
        ),
    )


def _overview_row(name: str, summary: MemorySummary) -> tuple[str, ...]:
    peak = summary.peak
    free = peak["reserved"] - peak["active"]
    first = summary.categories.row(0, named=True) if summary.categories.height else None
    mainly = ""
    if first:
        mainly = f"{first['category']} {units.share(first['size'], peak['allocated'])}"
    leaked = int(summary.leaks["per_step"].sum())
    return (
        printable(name) + (" (incomplete)" if summary.facts.incomplete else ""),
        units.size(peak["allocated"]),
        units.size(peak["max_reserved"]),
        units.share(free, peak["reserved"]),
        f"{units.size(leaked)}/step" if leaked else "-",
        _moment(summary) or "-",
        mainly or "-",
    )


def _facts(summary: MemorySummary) -> Iterator[tuple[str, str]]:
    if summary.run:
        parts = [shlex.join(summary.run.command) or "command unknown"]
        parts += [f"{key}={value}" for key, value in summary.run.labels.items()]
        yield "Run", " · ".join(parts)
    yield "Recorded", _recorded(summary)
    yield "Peak", _peak(summary)
    if summary.failures.height:
        yield "OOM", _oom(summary)
    yield "Confidence", _confidence(summary)
    yield "Steps", _steps(summary)
    yield "Reserved", _reserved(summary)
    if free := _free_blocks(summary):
        yield "Free blocks", free
    if summary.facts.pinned_bytes is not None:
        pinned = units.size(summary.facts.pinned_bytes)
        yield "Pinned", f"{pinned} of host memory reserved at the end"
    yield "Settings", _settings(summary)
    if summary.modules is None:
        yield (
            "Modules",
            "not in a snapshot: give a run folder, whose trace has them",
        )


def _recorded(summary: MemorySummary) -> str:
    facts = summary.facts
    size = f"{units.size(facts.unpacked_bytes)} unpacked"
    since = f"torch {facts.torch_from} or later" if facts.torch_from else "torch 1"
    if not facts.history:
        return f"only the state at the end, without events; {since}, {size}"
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
    if peak["max_reserved"] != peak["reserved"]:
        text += f" (up to {units.size(peak['max_reserved'])} at other times)"
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
    return "at the end: nothing before it is recorded"


def _moment(summary: MemorySummary) -> str:
    step, phase = summary.peak["step"], summary.peak["phase"]
    parts = [phase] if phase else []
    parts += [f"step {step}"] if step is not None else []
    return " of ".join(parts)


def _oom(summary: MemorySummary) -> str:
    """Return the failed allocations, and the memory that was free then."""
    parts = []
    for row in summary.failures.tail(_MOST_LEAKS).iter_rows(named=True):
        where = place(row["file"], row["line"], row["function"])
        free = row["reserved"] - row["allocated"]
        text = units.size(row["asked"]) + (f" at {where}" if where else "")
        text += f", with {units.size(free)} reserved and free"
        if row["device_free"] is not None:
            text += f" and {units.size(row['device_free'])} free on the device"
        parts.append(text)
    count = summary.failures.height
    more = f" (the last of {count:,})" if count > len(parts) else ""
    return "; ".join(parts) + f"{more}; traceq lint reports why it did not fit"


def _confidence(summary: MemorySummary) -> str:
    """Return the confidence in the categories, and its evidence."""
    whole = int(summary.categories["size"].sum())
    categorised = summary.categories.filter(pl.col("category") != "unknown")
    sizes = {name: int(categorised[name].sum()) for name in CONFIDENCE}
    sizes["unknown"] = whole - sum(sizes.values())
    return ", ".join(
        f"{units.share(size, whole)} {name}{_SHOWN_BY.get(name, '')}"
        for name, size in sizes.items()
        if size
    )


def _steps(summary: MemorySummary) -> str:
    # A few events before the first step or after the last are not a step.
    whole = summary.steps.filter(pl.col("events") >= _PART * pl.col("events").max())
    if not whole.height:
        return "none found: no region, backward or optimizer marks them"
    texts = [
        f"#{row['step']} up to {units.size(row['highest'])}"
        for row in whole.head(_MOST_VALUES).iter_rows(named=True)
    ]
    text = ", ".join(texts) + (" …" if whole.height > len(texts) else "")
    if not summary.leaks.height:
        return f"{text}; no leak"
    by_line = summary.leaks.group_by(
        "file", "line", "function", maintain_order=True
    ).agg(pl.sum("per_step"), pl.col("op").first())
    lines = [
        f"{units.size(row['per_step'])} at "
        + (place(row["file"], row["line"], row["function"]) or row["op"] or "?")
        for row in by_line.head(_MOST_LEAKS).iter_rows(named=True)
    ]
    leaked = units.size(int(summary.leaks["per_step"].sum()))
    return f"{text}; each leaks {leaked}: " + ", ".join(lines)


def _reserved(summary: MemorySummary) -> str:
    peak, blocks = summary.peak, summary.fragmentation
    free = blocks.fragmented + blocks.releasable + blocks.private
    if peak["reserved"] == 0:
        return "nothing"
    text = (
        f"{units.size(free)} of the {units.size(peak['reserved'])} at the peak are free"
        f" ({units.share(free, peak['reserved'])}), in {blocks.free_blocks:,} blocks of"
        f" up to {units.size(blocks.largest)}; {units.size(blocks.rounding)} more are"
        " lost to rounding"
    )
    if blocks.private:
        text += f"; {units.size(blocks.private)} of the free is in private pools"
    return text


def _free_blocks(summary: MemorySummary) -> str:
    """Return the reasons why free memory is not in use; empty if there is little."""
    free = summary.fragmentation
    sizes = (
        free.fragmented,
        free.releasable,
        free.pending,
        free.private,
    )
    if sum(sizes) < _LITTLE * summary.peak["reserved"]:
        return ""
    holders = [
        (row["category"] if row["category"] != "unknown" else "others")
        + (f" of {where}" if (where := _where(row)) else "")
        + f" ({units.size(row['held'])})"
        for row in free.holders.head(_MOST_HOLDERS).iter_rows(named=True)
    ]
    texts = (
        f"fragmented: free, but in segments with live tensors: {', '.join(holders)}",
        "releasable: in segments without tensors, which torch.cuda.empty_cache() frees",
        "pending: freed, but another stream may still use it",
        "private: kept for the next replay of a CUDA graph, or by the program that made"
        " the pool",
    )
    pairs = zip(sizes, texts, strict=True)
    return "; ".join(f"{units.size(size)} {text}" for size, text in pairs if size)


def _where(row: dict[str, Any]) -> str:
    return place(row["file"], row["line"], None)


def _settings(summary: MemorySummary) -> str:
    if not summary.settings:
        return "not recorded before torch 2.3"
    text = summary.settings.get(_CONF, "")
    changed = [
        f"{name}={summary.settings[name]}"
        for name, usual in _DEFAULTS.items()
        if summary.settings.get(name, usual) != usual
    ]
    return ", ".join([*([text] if text else []), *changed]) or "all defaults"


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
        Column("confidence", weight=2),
    )
    rows = summary.categories.iter_rows(named=True)
    return TextTable(
        columns,
        tuple(
            (
                row["category"],
                *_counted(summary, row),
                units.size(row["largest"]),
                _row_confidence(row),
            )
            for row in rows
        ),
    )


def _parts(summary: MemorySummary) -> list[TextTable]:
    """Return the table of parts of the model, if any is known."""
    if not summary.parts.height:
        return []
    columns = (
        Column("of which"),
        Column("part"),
        *_numbers(),
        Column("largest", number=True),
        Column("its op", weight=2, cut=cut_middle),
    )
    rows = summary.parts.iter_rows(named=True)
    return [
        TextTable(
            columns,
            tuple(
                (
                    row["category"],
                    row["part"],
                    *_counted(summary, row),
                    units.size(row["largest"]),
                    printable(row["op"] or "-"),
                )
                for row in rows
            ),
        )
    ]


def _row_confidence(row: dict[str, Any]) -> str:
    if row["category"] == "unknown":
        return "-"
    parts = [
        (name, units.share(row[name], row["size"]))
        for name in CONFIDENCE
        if row[name] > _NOTHING * row["size"]
    ]
    if len(parts) == 1:
        return parts[0][0]
    return ", ".join(f"{share} {name}" for name, share in parts)


def _modules(summary: MemorySummary) -> TextTable:
    columns = (
        Column("module", weight=3, cut=cut_module),
        *_numbers(),
        Column("mainly"),
    )
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
        Column("mainly"),
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
        Column("lifetime", weight=2),
        Column("op", weight=2, cut=cut_middle),
    )
    rows = summary.largest.head(_MOST_LARGEST).iter_rows(named=True)
    return TextTable(
        columns,
        tuple(
            (
                f"#{number}",
                units.size(row["size"]),
                f"{row['count']:,}",
                _category(row),
                lifetime(row),
                printable(row["node"] or row["op"] or "-"),
            )
            for number, row in enumerate(rows, start=1)
        ),
    )


def _category(row: dict[str, Any]) -> str:
    """Return the category of an allocation, with the confidence if not certain."""
    certain = row["category"] == "unknown" or row["confidence"] == CONFIDENCE[0]
    return row["category"] + ("" if certain else f" ({row['confidence']})")


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
    chain_calls = chain_of(chain)
    text = " < ".join(map(printable, chain_calls[:_MOST_CALLS]))
    return f"{text} < …" if len(chain_calls) > _MOST_CALLS else text


def lifetime(row: dict[str, Any]) -> str:
    """Return from when to when an allocation lived."""
    begin = "start" if row["from_before"] else row["phase"]
    if row["never_freed"]:
        return f"{begin} to end" if begin else "to end"
    parts = []
    end = row["free_phase"]
    if begin and end:
        parts.append(f"in {begin}" if begin == end else f"{begin} to {end}")
    if row["steps"]:
        parts.append(f"{counted(row['steps'], 'step')} later")
    if row["lifetime"] is not None:
        parts.append(units.time(row["lifetime"]))
    return ", ".join(parts) or "-"

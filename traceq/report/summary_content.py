"""The words of a summary: what every format that people read has in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from traceq import units
from traceq.analysis.idle import UNKNOWN
from traceq.analysis.summary import SMALL_KERNEL_NS, Summary
from traceq.model.schema import PHASES
from traceq.report.text import place, printable, shapes, short_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_STEPS = 6
_MOST_OPS = 8
_MOST_KERNELS = 6
_MOST_CAUSES = 4


@dataclass(frozen=True)
class Column:
    """One column of a table: its title, and what it does in a narrow place."""

    title: str
    number: bool = False
    ratio: int = 0
    """How much of the free width it takes; 0 for as much as it needs."""


@dataclass(frozen=True)
class TextTable:
    """A table of texts that are safe to print."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Content:
    """One trace: its name, facts with their labels, and tables."""

    title: str
    warnings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    tables: tuple[TextTable, ...]


def content(summary: Summary) -> Content:
    """Return the words for one trace."""
    gpu = summary.facts.gpu
    tables = (
        [_kinds(summary), _ops(summary), _kernels(summary)] if gpu else [_ops(summary)]
    )
    return Content(
        title=printable(summary.facts.path),
        warnings=tuple(printable(sentence) for sentence in summary.facts.damage),
        facts=tuple((label, printable(text)) for label, text in _facts(summary)),
        tables=tuple(tables),
    )


def overview(summaries: Sequence[Summary]) -> TextTable:
    """Return a table with one row a trace."""
    numbers = ["steps", "ms/step", "GPU busy", "gemm", "launches", "< 5 µs"]
    numbers += ["peak memory", "MFU"]
    columns = (Column("trace"), *(Column(title, number=True) for title in numbers))
    paths = [Path(summary.facts.path) for summary in summaries]
    # A folder that all are in does not tell them apart.
    one_folder = len({path.parent for path in paths}) == 1
    rows = (
        (_overview_name(path.name if one_folder else str(path), summary), *row)
        for path, summary, row in zip(
            paths, summaries, map(_overview_row, summaries), strict=True
        )
    )
    return TextTable(columns, tuple(rows))


def _overview_name(name: str, summary: Summary) -> str:
    return printable(name) + (" (incomplete)" if summary.facts.incomplete else "")


def _overview_row(summary: Summary) -> tuple[str, ...]:
    gemm = int(summary.kinds.filter(pl.col("kind") == "gemm")["time"].sum())
    memory, mfu = summary.memory, summary.compute.utilisation
    on_gpu = (
        units.share(summary.part.gpu_busy, summary.part.time),
        units.share(gemm, summary.gpu_time),
        f"{summary.launches:,.0f}",
        f"{100 * summary.small_kernels:.0f}%",
    )
    return (
        str(summary.part.count) if summary.steps.height else "-",
        units.milliseconds(summary.step_time),
        *(on_gpu if summary.facts.gpu else ["-"] * len(on_gpu)),
        units.size(memory.allocated) if memory else "-",
        f"{100 * mfu:.1f}%" if mfu is not None else "-",
    )


def _facts(summary: Summary) -> Iterator[tuple[str, str]]:
    facts = summary.facts
    yield "Device", _device(summary)
    yield "Recorded", _recorded(summary)
    yield "Steps", _steps(summary)
    if not facts.gpu:
        return
    yield "GPU", _gpu(summary)
    yield "Launches", _launches(summary)
    yield "Compute", _compute(summary)
    yield "Memory", _memory(summary)
    if facts.stacks:
        yield (
            "Note",
            "stacks were recorded, which makes the host up to three times slower"
            " than it is: without the profiler the GPU idles less",
        )


def _device(summary: Summary) -> str:
    names = [
        (name or "unknown GPU") + (f", {units.size(memory)}" if memory else "")
        for name, memory in summary.devices.select("name", "memory").iter_rows()
    ]
    counted = {name: names.count(name) for name in names}
    parts = [
        f"{count} × {name}" if count > 1 else name for name, count in counted.items()
    ]
    if not parts:
        parts = ["no GPU work in the trace"]
    facts = summary.facts
    parts += [text for text in (facts.runtime_version, facts.torch) if text]
    if facts.rank is not None:
        of = f" of {facts.world_size}" if facts.world_size else ""
        parts.append(f"rank {facts.rank}{of}")
    return " · ".join(parts)


def _recorded(summary: Summary) -> str:
    facts = summary.facts
    kinds = {"shapes": facts.shapes, "stacks": facts.stacks, "memory": facts.memory}
    on = [kind for kind, recorded in kinds.items() if recorded]
    off = [kind for kind, recorded in kinds.items() if not recorded]
    text = ", ".join(on) or "times only"
    if off:
        text += f" (no {', no '.join(off)})"
    size = units.size(facts.unpacked_bytes)
    return f"{text}; {facts.events:,} events, {size} unpacked"


def _steps(summary: Summary) -> str:
    if not summary.steps.height:
        return (
            f"none recorded; the whole trace counts as one, of {_ms(summary.step_time)}"
        )
    source = summary.facts.steps_from
    taken = "" if source == "ProfilerStep" else f", taken from {source}"
    text = f"{summary.part.count} of {_ms(summary.step_time)} on average{taken}: "
    rows = list(summary.steps.select("step", "time", "warmup").iter_rows())
    shown = [
        f"#{step} {_ms(time)}" + (" (warm-up, left out)" if warmup else "")
        for step, time, warmup in rows[:_MOST_STEPS]
    ]
    if len(rows) > _MOST_STEPS:
        times = sorted(time for _, time, warmup in rows if not warmup)
        shown.append(f"… (from {_ms(times[0])} to {_ms(times[-1])})")
    return text + ", ".join(shown)


def _ms(nanoseconds: float) -> str:
    return f"{units.milliseconds(nanoseconds)} ms"


def _gpu(summary: Summary) -> str:
    whole = summary.part.time
    idle = int(summary.idle["time"].sum())
    text = f"busy {units.share(summary.part.gpu_busy, whole)}"
    text += f", idle {units.share(idle, whole)}"
    if not idle:
        return text
    causes = [
        f"{_cause(cause, summary)} {units.share(time, whole)}"
        for cause, time in summary.idle.head(_MOST_CAUSES).iter_rows()
    ]
    per_step = units.time(idle / summary.part.count)
    return f"{text} ({per_step} a step) while the host was " + ", ".join(causes)


def _cause(cause: str, summary: Summary) -> str:
    if cause != UNKNOWN:
        return cause
    return "elsewhere" if summary.facts.stacks else "outside operators"


def _launches(summary: Summary) -> str:
    kernels = summary.part.kernels.height / summary.part.count
    return (
        f"{summary.launches:,.0f} a step, of {kernels:,.0f} kernels, copies and sets;"
        f" {100 * summary.small_kernels:.0f}% of the kernels are shorter than"
        f" {SMALL_KERNEL_NS // 1000} µs"
    )


def _compute(summary: Summary) -> str:
    found = summary.compute
    if found.flops is None or found.rate is None:
        return f"unknown: {found.unknown}"
    text = f"{_prefixed(found.flops)}FLOP a step, {_prefixed(found.rate)}FLOP/s"
    if found.utilisation is None:
        return f"{text}; MFU unknown: no peak is known for this GPU in {found.dtype}"
    peak = f"{_prefixed(found.peak or 0)}FLOP/s"
    return f"{text}: MFU {100 * found.utilisation:.1f}% ({found.dtype} peak {peak})"


def _prefixed(count: float) -> str:
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.3g} {prefix}"
    return f"{count:.3g} "


def _memory(summary: Summary) -> str:
    peak = summary.memory
    if peak is None:
        return "unknown: the trace does not say how much was allocated on the GPU"
    text = f"peak {units.size(peak.allocated)} allocated"
    if peak.reserved:
        text += f", {units.size(peak.reserved)} reserved"
    where = [f"step {peak.step}"] if peak.step is not None else []
    where += [part for part in (peak.phase, peak.op, peak.place) if part]
    return f"{text}; reached in {', '.join(where)}" if where else text


def _kinds(summary: Summary) -> TextTable:
    """Kinds of kernels down, the step and its phases across."""
    times = {
        (kind, phase): time
        for kind, phase, time in summary.kinds.select(
            "kind", "phase", "time"
        ).iter_rows()
    }
    kinds = list(dict.fromkeys(kind for kind, _ in times))
    phases = [
        phase for phase in PHASES if any((kind, phase) in times for kind in kinds)
    ]

    def row(chosen: Sequence[str]) -> tuple[str, ...]:
        cells = []
        for phase in (None, *phases):
            column = {
                key: time for key, time in times.items() if phase in (None, key[1])
            }
            time = sum(time for (kind, _), time in column.items() if kind in chosen)
            share = units.share(time, sum(column.values()))
            steps = summary.part.count
            cells.append(
                f"{units.milliseconds(time / steps)} {share:>4}" if time else "-"
            )
        return tuple(cells)

    by_time = sorted(
        kinds,
        key=lambda kind: -sum(time for key, time in times.items() if key[0] == kind),
    )
    titles = ("step, ms", *phases)
    return TextTable(
        (Column("GPU time by kind"), *(Column(title, number=True) for title in titles)),
        (*((kind, *row([kind])) for kind in by_time), ("all", *row(kinds))),
    )


def _ops(summary: Summary) -> TextTable:
    where = "GPU" if summary.facts.gpu else "host"
    total = int(summary.ops["time"].sum())
    rows = summary.ops.head(_MOST_OPS).iter_rows(named=True)
    return TextTable(
        (
            *_listing(f"Ops with the most {where} time"),
            Column("shapes", ratio=3),
            Column("where", ratio=3),
        ),
        tuple(
            (
                printable(row["name"] or "(no op)"),
                *_numbers(row["time"], total, row["calls"], summary.part.count),
                shapes(row["dims"]),
                place(row["file"], row["line"], row["function"]),
            )
            for row in rows
        ),
    )


def _kernels(summary: Summary) -> TextTable:
    rows = summary.kernels.head(_MOST_KERNELS).iter_rows(named=True)
    return TextTable(
        (*_listing("Kernels with the most time"), Column("kind"), Column("library")),
        tuple(
            (
                short_kernel(row["name"]),
                *_numbers(
                    row["time"], summary.gpu_time, row["kernels"], summary.part.count
                ),
                " ".join(part for part in (row["kind"], row["dtype"]) if part),
                row["library"] or "",
            )
            for row in rows
        ),
    )


def _listing(title: str) -> tuple[Column, ...]:
    numbers = (Column(title, number=True) for title in ("ms/step", "share", "calls"))
    return (Column(title, ratio=4), *numbers)


def _numbers(time: int, total: int, count: int, steps: int) -> tuple[str, str, str]:
    calls = count / steps
    return (
        units.milliseconds(time / steps),
        units.share(time, total),
        f"{calls:,.0f}" if calls == int(calls) else f"{calls:,.1f}",
    )

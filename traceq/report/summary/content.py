"""The words of a summary: what every format that people read has in it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq import units
from traceq.analysis.base.assumptions import SMALL_KERNEL_NS
from traceq.analysis.time.idle_causes import UNKNOWN
from traceq.model.schema import PHASES
from traceq.report import bound as bound_words
from traceq.report import replayed as replayed_words
from traceq.report import steps as steps_words
from traceq.report.base.columns import Column, cut_list, cut_middle, cut_place
from traceq.report.base.content import Content, TextTable, telling_names
from traceq.report.base.text import of_function, printable, shapes, short_kernel
from traceq.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from traceq.analysis.replay.bound import Bound
    from traceq.analysis.replay.critical_path import CriticalPath
    from traceq.analysis.replay.host_account import HostAccount
    from traceq.analysis.summary import Summary
    from traceq.model.run import StepTime

_NUMBERS = (
    "busy",
    "gemm",
    "launches",
    "<5 µs",
    "memory",
    "MFU",
)
_MOST_STEPS = 6
_MOST_OPS = 8
_MOST_KERNELS = 6
_MOST_CRITICAL = 12
_MOST_CAUSES = 4
_MOST_MODULES = 20
_LEAST_IN_MODULE = 0.01
_LEAST_PERCENT = 0.001
# Below this much GPU time a step, times are written in microseconds.
_TINY_NS = 100_000


def content(summary: Summary) -> Content:
    """Return the words for one trace."""
    unit = "ms/step" if summary.steps.height else "ms"
    tables = [_ops(summary)]
    if summary.facts.gpu:
        tables = [_kinds(summary), _ops(summary), _kernels(summary)]
    if summary.path:
        tables = [
            _critical_kernels(summary.path, unit),
            _critical_host(summary.path, unit),
        ]
    if summary.host:
        tables = [
            part(summary.host, unit)
            for part in (_host_kinds, _host_entries, _host_modules)
        ]
    return Content(
        title=printable(summary.facts.path),
        warnings=tuple(map(printable, (*summary.facts.damage, *_unrecorded(summary)))),
        facts=tuple((label, printable(text)) for label, text in _facts(summary)),
        tables=tuple(table for table in tables if table.rows),
    )


def label_keys(summaries: Sequence[Summary]) -> list[str]:
    """Return the keys of all labels, in the order in which they come."""
    return list(dict.fromkeys(key for one in summaries for key in one.labels))


def overview(summaries: Sequence[Summary]) -> TextTable:
    """Return a table with one row a trace, with its labels."""
    measured = any(summary.bound.measured for summary in summaries)
    title = "trace" if measured else "trace (as recorded)"
    keys = label_keys(summaries)
    columns = (
        Column(title, cut=cut_middle),
        *(_label_column(key, summaries) for key in keys),
        *(Column(title, number=True) for title in _numbers_of_all(measured=measured)),
    )
    names = telling_names([summary.facts.path for summary in summaries])
    return TextTable(
        columns,
        tuple(
            (
                printable(name) + (" (incomplete)" if summary.facts.incomplete else ""),
                *(printable(summary.labels.get(key, "-")) for key in keys),
                *_overview_row(summary, measured=measured),
            )
            for name, summary in zip(names, summaries, strict=True)
        ),
    )


def _label_column(key: str, summaries: Sequence[Summary]) -> Column:
    values = [one.labels[key] for one in summaries if key in one.labels]
    return Column(printable(key), number=all(map(_is_number, values)))


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _numbers_of_all(*, measured: bool) -> tuple[str, ...]:
    step = ("recorded ms", "measured ms") if measured else ("ms/step",)
    return ("steps", *step, *_NUMBERS)


def _overview_row(summary: Summary, *, measured: bool) -> tuple[str, ...]:
    gemm = int(summary.kinds.filter(pl.col("kind") == "gemm")["time"].sum())
    memory, mfu = summary.memory, summary.compute.utilisation
    on_gpu = (
        units.share(summary.true_gpu_busy, 1),
        units.share(gemm, summary.gpu_time),
        f"{summary.launches:,.0f}",
        units.share(summary.small_kernels, 1),
    )
    return (
        str(summary.steady.count) if summary.steps.height else "-",
        units.milliseconds(summary.step_time),
        *([_measured_ms(summary)] if measured else ()),
        *(on_gpu if summary.facts.gpu else ["-"] * len(on_gpu)),
        units.size(memory.allocated) if memory else "-",
        _percent(mfu) if mfu is not None else "-",
    )


def _measured_ms(summary: Summary) -> str:
    known = summary.bound.measured
    return units.milliseconds(summary.bound.step_ns) if known else "-"


def _facts(summary: Summary) -> Iterator[tuple[str, str]]:
    facts = summary.facts
    if summary.run or summary.labels:
        yield "Run", _run(summary)
    yield "Device", _device(summary)
    yield "Recorded", _recorded(summary)
    yield "Steps", _steps(summary)
    if summary.rank and summary.rank.step_time:
        yield "Measured", _measured_step(summary.rank.step_time, summary.bound)
    if not facts.gpu:
        if not summary.ops.height:
            yield "Ops", "none in the steps"
        return
    yield "GPU", _gpu(summary)
    yield "Bound", bound_words.sentence(summary.bound)
    if bar := bound_words.bar(summary.bound):
        yield "Time", bar
    if each := bound_words.by_step(summary.bound):
        yield "Each step", each
    yield "Phases", _phases(summary)
    yield "Launches", _launches(summary)
    if summary.replayed:
        yield "CUDA graphs", replayed_words.sentence(summary.replayed)
    yield "Compute", _compute(summary)
    yield "Memory", _memory(summary)
    if summary.path:
        yield "Critical path", _path(summary.path)
    if facts.stacks and not summary.bound.measured:
        yield (
            "Note",
            "recording stacks makes the host up to three times slower, so what bounds"
            " the step is an estimate: give the step time measured without the profiler"
            " with --step-ms",
        )


def _unrecorded(summary: Summary) -> Iterator[str]:
    """Return what a run lacks."""
    if summary.rank:
        yield from summary.rank.missing
    if summary.run and summary.run.state != "finished":
        yield "the run did not end while traceq collect watched it"


def _run(summary: Summary) -> str:
    run = summary.run
    parts = [shlex.join(run.command) or "command unknown"] if run else []
    parts += [f"{key}={value}" for key, value in summary.labels.items()]
    if run and len(run.ranks) > 1:
        parts.append(f"{len(run.ranks)} ranks")
    return " · ".join(parts)


def _measured_step(true: StepTime, bound: Bound) -> str:
    over = counted(true.steps, "step")
    text = (
        f"{_ms(true.ns)} a step without the profiler"
        f" ({_ms(true.min_ns)} to {_ms(true.max_ns)} over {over})"
    )
    if true.differ:
        text += f"; {_ms(true.median_ns)} at the median, as steps differ"
        if bound.step_ns == true.median_ns:
            text += ", which is what the recorded ones are compared with"
    return text


def _device(summary: Summary) -> str:
    names = [
        (name or "unknown GPU") + (f", {units.size(memory)}" if memory else "")
        for name, memory in summary.devices.select("name", "memory").iter_rows()
    ]
    numbers = {name: names.count(name) for name in names}
    parts = [
        f"{count} × {name}" if count > 1 else name for name, count in numbers.items()
    ]
    if not parts:
        parts = ["unknown GPU" if summary.facts.gpu else bound_words.NO_GPU]
    facts = summary.facts
    parts += [text for text in (facts.runtime_version, facts.torch) if text]
    if facts.rank is not None:
        world = f" of {facts.world_size}" if facts.world_size else ""
        parts.append(f"rank {facts.rank}{world}")
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
    return f"{text}; {counted(facts.events, 'event')}, {size} unpacked"


def _steps(summary: Summary) -> str:
    if not summary.steps.height:
        return (
            f"none recorded; the whole trace counts as one, {_ms(summary.step_time)} as"
            " recorded"
        )
    taken = steps_words.taken(summary.facts)
    rows = list(summary.steps.select("step", "time", "warmup").iter_rows())
    if len(rows) == 1:
        return f"1 (#{rows[0][0]}) of {_ms(summary.step_time)} as recorded{taken}"
    text = (
        f"{summary.steady.count} of {_ms(summary.step_time)} on average, as"
        f" recorded{taken}: "
    )
    shown = [
        f"#{step} {_ms(time)}" + (" (warm-up, excluded)" if warmup else "")
        for step, time, warmup in rows[:_MOST_STEPS]
    ]
    if len(rows) > _MOST_STEPS:
        times = sorted(time for _, time, warmup in rows if not warmup)
        shown.append(f"… (from {_ms(times[0])} to {_ms(times[-1])})")
    return text + ", ".join(shown)


def _ms(nanoseconds: float) -> str:
    return f"{units.milliseconds(nanoseconds)} ms"


def _gpu(summary: Summary) -> str:
    whole = summary.steady.time
    idle = int(summary.idle["time"].sum())
    text = f"as recorded: busy {units.share(summary.steady.gpu_busy, whole)}"
    text += f", idle {units.share(idle, whole)}"
    if not idle:
        return text
    causes = [
        f"{_cause(cause, summary)} {units.share(time, whole)}"
        for cause, time in summary.idle.head(_MOST_CAUSES).iter_rows()
    ]
    each = units.time(idle / summary.steady.count) + _a_step(summary)
    return f"{text} ({each}) while the host was " + ", ".join(causes)


def _path(path: CriticalPath) -> str:
    """Return what the critical path is made of."""
    text = (
        f"{_ms(path.gpu_ns)} GPU + {_ms(path.host_ns)} host; speeding up anything off"
        " it saves nothing"
    )
    if path.complete:
        return text
    return (
        f"{text}; times in the trace contradict each other, so only the end of it is"
        " known"
    )


def _a_step(summary: Summary) -> str:
    return " a step" if summary.steps.height else ""


def _cause(cause: str, summary: Summary) -> str:
    if cause != UNKNOWN:
        return cause
    return "elsewhere" if summary.facts.stacks else "outside operators"


def _phases(summary: Summary) -> str:
    times = dict(summary.kinds.group_by("phase").agg(pl.col("time").sum()).iter_rows())
    named = [(phase, times[phase]) for phase in (*PHASES, None) if times.get(phase)]
    shares = ", ".join(
        f"{phase or 'none'} {units.share(time, summary.gpu_time)}"
        for phase, time in named
    )
    return f"{shares} of the GPU's time"


def _launches(summary: Summary) -> str:
    work = summary.steady.kernels
    kernels = work.filter(pl.col("activity") == "kernel").height
    small = units.share(summary.small_kernels, 1)
    others = round((work.height - kernels) / summary.steady.count)
    moved = "1 copy or set" if others == 1 else f"{others:,} copies and sets"
    return (
        f"{summary.launches:,.0f}{_a_step(summary)} for"
        f" {counted(round(kernels / summary.steady.count), 'kernel')}, and"
        f" {moved}; {small} of the kernels are shorter than"
        f" {SMALL_KERNEL_NS // 1000} µs"
    )


def _compute(summary: Summary) -> str:
    found = summary.compute
    if found.flops is None or found.rate is None:
        return f"unknown: {found.unknown}"
    text = f"{_prefixed(found.flops)}FLOP{_a_step(summary)}"
    when = "without the profiler" if summary.bound.measured else "as recorded"
    text += f", {_prefixed(found.rate)}FLOP/s {when}"
    if found.utilisation is None:
        where = f" in {found.dtype}" if found.dtype else ""
        return f"{text}; MFU unknown: no peak is known for this GPU{where}"
    peak = f"{_prefixed(found.peak or 0)}FLOP/s"
    return f"{text}: MFU {_percent(found.utilisation)} ({found.dtype} peak {peak})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if share >= _LEAST_PERCENT else "<0.1%"


def _prefixed(count: float) -> str:
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.3g} {prefix}"
    return f"{count:.3g} "


def _memory(summary: Summary) -> str:
    peak = summary.memory
    if peak is None:
        return "unknown: the trace does not have what was allocated on the GPU"
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
    unit = _Unit.of(summary)

    def row(chosen: Sequence[str]) -> tuple[str, ...]:
        cells = []
        for phase in (None, *phases):
            column = {
                key: time for key, time in times.items() if phase in (None, key[1])
            }
            time = sum(time for (kind, _), time in column.items() if kind in chosen)
            share = units.share(time, sum(column.values()))
            cells.append(f"{unit.written(time)} {share:>4}" if time else "-")
        return tuple(cells)

    by_time = sorted(
        kinds,
        key=lambda kind: -sum(time for key, time in times.items() if key[0] == kind),
    )
    return TextTable(
        (
            Column("GPU time"),
            *(Column(title, number=True) for title in (unit.title, *phases)),
        ),
        (*((kind, *row([kind])) for kind in by_time), ("all", *row(kinds))),
    )


def _ops(summary: Summary) -> TextTable:
    where = "GPU" if summary.facts.gpu else "host"
    total = int(summary.ops["time"].sum())
    unit = _Unit.of(summary)
    return TextTable(
        (
            *_listing(f"Ops by {where} time", unit),
            Column("phase", spare=True),
            Column("shapes", weight=3, cut=cut_list),
            Column("where", weight=3, cut=cut_place),
        ),
        tuple(
            (
                printable(row["name"] or "(no op)"),
                *_numbers(row["time"], total, row["calls"], unit),
                row["phase"] or "",
                shapes(row["dims"]),
                of_function(row["file"], row["line"], row["function"]),
            )
            for row in summary.ops.head(_MOST_OPS).iter_rows(named=True)
        ),
    )


def _kernels(summary: Summary) -> TextTable:
    unit = _Unit.of(summary)
    return TextTable(
        (
            *_listing("Kernels by time", unit),
            Column("kind", weight=3),
            Column("library", weight=2, spare=True),
        ),
        tuple(
            (
                short_kernel(row["name"]),
                *_numbers(row["time"], summary.gpu_time, row["kernels"], unit),
                printable(" ".join(filter(None, (row["kind"], row["dtype"])))),
                printable(row["library"] or ""),
            )
            for row in summary.kernels.head(_MOST_KERNELS).iter_rows(named=True)
        ),
    )


def _critical_kernels(path: CriticalPath, unit: str) -> TextTable:
    whole = path.gpu_ns + path.host_ns
    return TextTable(
        (
            Column("Critical path: GPU", weight=4, cut=cut_middle),
            *(Column(title, number=True) for title in (unit, "share", "calls")),
            Column("where", weight=3, cut=cut_place),
        ),
        tuple(
            (
                short_kernel(row["name"]),
                units.milliseconds(row["time"]),
                units.share(row["time"], whole),
                f"{row['calls']:,.3g}",
                of_function(row["file"], row["line"], row["function"]),
            )
            for row in path.kernels.head(_MOST_CRITICAL).iter_rows(named=True)
        ),
    )


def _critical_host(path: CriticalPath, unit: str) -> TextTable:
    whole = path.gpu_ns + path.host_ns
    return TextTable(
        (
            Column("Critical path: host"),
            *(Column(title, number=True) for title in (unit, "share")),
        ),
        tuple(
            (cause, units.milliseconds(time), units.share(time, whole))
            for cause, time in path.host.iter_rows()
        ),
    )


def _host_columns(unit: str) -> tuple[Column, ...]:
    titles = (f"{unit} as recorded", "share", "GPU idle", "estimated")
    return tuple(Column(title, number=True) for title in titles)


def _host_times(row: Mapping[str, Any], whole: float) -> tuple[str, ...]:
    return (
        units.milliseconds(row["recorded"]),
        units.share(row["recorded"], whole),
        units.milliseconds(row["idle"]),
        units.milliseconds(row["estimated"]),
    )


def _host_kinds(account: HostAccount, unit: str) -> TextTable:
    whole = float(account.entries["recorded"].sum())
    return TextTable(
        (Column("Time of the host", weight=2), *_host_columns(unit)),
        tuple(
            (row["kind"], *_host_times(row, whole))
            for row in account.kinds.iter_rows(named=True)
        ),
    )


def _host_entries(account: HostAccount, unit: str) -> TextTable:
    whole = float(account.entries["recorded"].sum())
    return TextTable(
        (
            Column("Largest entries", weight=3, cut=cut_middle),
            *_host_columns(unit),
            Column("calls", number=True),
            Column("where", weight=2, cut=cut_place),
        ),
        tuple(
            (
                printable(": ".join(filter(None, (row["kind"], row["name"])))),
                *_host_times(row, whole),
                units.amount(round(row["calls"], 1), ""),
                of_function(row["file"], row["line"], row["function"]),
            )
            for row in account.lines.head(_MOST_CRITICAL).iter_rows(named=True)
        ),
    )


def _host_modules(account: HostAccount, unit: str) -> TextTable:
    whole = float(account.entries["recorded"].sum())
    found = account.modules.filter(pl.col("recorded") >= _LEAST_IN_MODULE * whole)
    return TextTable(
        (Column("Time of the host by module", weight=3), *_host_columns(unit)),
        tuple(
            (
                "  " * row["depth"] + printable(row["module"].rpartition("/")[2]),
                *_host_times(row, whole),
            )
            for row in found.head(_MOST_MODULES).iter_rows(named=True)
        ),
    )


@dataclass(frozen=True)
class _Unit:
    """How the tables of one trace write times: per step, in ms or, if tiny, in µs."""

    title: str
    nanoseconds: int
    steps: int

    @classmethod
    def of(cls, summary: Summary) -> _Unit:
        steps = summary.steady.count
        whole = summary.gpu_time if summary.facts.gpu else summary.ops["time"].sum()
        unit, size = ("µs", 1_000) if whole < steps * _TINY_NS else ("ms", 1_000_000)
        return cls(f"{unit}/step" if summary.steps.height else unit, size, steps)

    def written(self, time: float) -> str:
        return f"{time / self.steps / self.nanoseconds:,.2f}"


def _listing(title: str, unit: _Unit) -> tuple[Column, ...]:
    numbers = (Column(title, number=True) for title in (unit.title, "share", "calls"))
    return (Column(title, weight=4, cut=cut_middle), *numbers)


def _numbers(time: int, total: int, count: int, unit: _Unit) -> tuple[str, str, str]:
    calls = count / unit.steps
    return (
        unit.written(time),
        units.share(time, total),
        f"{calls:,.0f}" if calls == int(calls) else f"{calls:,.1f}",
    )

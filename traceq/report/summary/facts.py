"""The lines of a summary: what was recorded, what bounds it, and its few numbers."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import SMALL_KERNEL_NS
from traceq.analysis.time.idle_causes import UNKNOWN
from traceq.common import units
from traceq.common.words import counted
from traceq.report import bound as bound_words
from traceq.report import graph_replays as replayed_words
from traceq.report import steps as steps_words
from traceq.report.summary.gpu_tables import gpu_words
from traceq.report.summary.rates import rates
from traceq.report.summary.serving import phases_of_steps, serving_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.analysis.replay.critical_path import CriticalPath
    from traceq.analysis.summary import Summary
    from traceq.model.lint_report import Bound
    from traceq.model.run import StepTime

_MOST_STEPS = 6
_MOST_CAUSES = 4
_LEAST_PERCENT = 0.001


def facts_of(summary: Summary) -> Iterator[tuple[str, str]]:
    """Return the lines: what each is about, and its text."""
    facts = summary.facts
    if summary.run or summary.labels:
        yield "Run", _run(summary)
    yield "Device", _device(summary)
    yield "Recorded", _recorded(summary)
    yield "Steps", _steps(summary)
    yield from _measured(summary)
    yield from _parameters(summary)
    yield from serving_facts(summary.serving)
    if not facts.gpu:
        if not summary.ops.height:
            yield "Ops", "none in the steps"
        return
    yield from _gpu_facts(summary)
    yield from _notes(summary)


def _gpu_facts(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield what the GPU did, and what bounds the steps."""
    yield "GPU", _gpu(summary)
    yield "Bound", bound_words.sentence(summary.bound)
    if bar := bound_words.bar(summary.bound):
        yield "Time", bar
    if each := bound_words.by_step(summary.bound):
        yield "Each step", each
    yield "Launches", _launches(summary)
    if summary.replayed:
        yield "CUDA graphs", replayed_words.sentence(summary.replayed)
    yield "Compute", _compute(summary)
    yield from rates(summary)
    yield "Memory", _memory(summary)
    if summary.path:
        yield "Critical path", _path(summary.path)
    if summary.gpu:
        yield "Account", gpu_words(summary.gpu)


def _notes(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield what to know of the figures."""
    facts = summary.facts
    if summary.queued_ns:
        yield (
            "Note",
            f"the GPU starts the first recorded work {units.time(summary.queued_ns)}"
            " after its launch: it was busy with work from before the recording, so the"
            " time until then is not taken for idle time, and the first step tells no"
            " tokens/s",
        )
    if facts.dtypes_inferred:
        yield "Note", "dtypes are inferred from kernel names: none were recorded"
    if facts.recorder and not summary.bound.measured:
        yield (
            "Note",
            f"how much {facts.recorder} slows the host down is not known: the host's"
            " time counts as recorded, less the overhead that it reports; --step-ms"
            " takes the time of a step that was measured without it",
        )
    elif facts.stacks and not summary.bound.measured:
        yield (
            "Note",
            "recording stacks makes the host up to three times slower, so what bounds"
            " the step is an estimate: give the step time measured without the profiler"
            " with --step-ms",
        )


def unrecorded(summary: Summary) -> Iterator[str]:
    """Yield the missing parts of a run."""
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


def _parameters(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield how many parameters are trained, if anything is."""
    trained = "backward" in {phase.phase for phase in summary.phases}
    if summary.parameters:
        yield "Trained", f"{summary.parameters:,} parameters with a gradient"
    elif trained:
        yield "Trained", "parameters unknown: no shapes of gradients were recorded"


def _measured(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield the step without the profiler, and whether it can be of these steps."""
    if summary.rank and summary.rank.step_time:
        yield "Measured", _measured_step(summary.rank.step_time, summary.bound)
    if summary.doubtful_step_ns:
        text = bound_words.doubt(summary.doubtful_step_ns, summary.step_time)
        yield "Doubtful", text


def _measured_step(true: StepTime, bound: Bound) -> str:
    over = counted(true.steps, "step")
    text = (
        f"{_ms(true.ns)} a step without the profiler"
        f" ({_ms(true.min_ns)} to {_ms(true.max_ns)} over {over})"
    )
    if true.long:
        often, long = steps_words.one_in(true.long_share), _ms(true.long.ns)
        return f"{text}; {often} takes {long}, the others {_ms(true.long.typical_ns)}"
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
    if facts.recorder:
        text += f" by {facts.recorder}"
    size = units.size(facts.unpacked_bytes)
    return f"{text}; {counted(facts.events, 'event')}, {size} unpacked"


def _steps(summary: Summary) -> str:
    if not summary.steps.height:
        return (
            f"none recorded; the whole trace counts as one, {_ms(summary.step_time)} as"
            " recorded"
        )
    taken = steps_words.taken(summary.facts)
    rows = list(summary.steps.select("step", "time", "warmup", "averaged").iter_rows())
    if len(rows) == 1:
        return f"1 (#{rows[0][0]}) of {_ms(summary.step_time)} as recorded{taken}"
    text = (
        f"{summary.steady.count} of {_ms(summary.step_time)} on average, as"
        f" recorded{taken}: "
    )
    phases = phases_of_steps(summary.serving)
    shown = [
        f"#{step} {_ms(time)}"
        + (f" ({phases.get(step, 'warm-up')}, excluded)" if warmup else "")
        + (" (excluded)" if not warmup and not averaged else "")
        for step, time, warmup, averaged in rows[:_MOST_STEPS]
    ]
    if len(rows) > _MOST_STEPS:
        times = sorted(time for _, time, warmup, _ in rows if not warmup)
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
    """Return the composition of the critical path."""
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


def _launches(summary: Summary) -> str:
    work, steps = summary.steady.kernels, summary.steady.count
    ran = work.filter(pl.col("activity") == "kernel").height / steps
    small = units.share(summary.small_kernels, 1)
    moved = work.height / steps - ran
    kernels = "1 kernel" if ran == 1 else f"{units.average(ran)} kernels"
    others = (
        "1 copy or set" if moved == 1 else f"{units.average(moved)} copies and sets"
    )
    return (
        f"{units.average(summary.launches)}{_a_step(summary)} for {kernels}, and"
        f" {others}; {small} of the kernels are shorter than"
        f" {SMALL_KERNEL_NS // 1000} µs"
    )


def _compute(summary: Summary) -> str:
    compute = summary.compute
    if compute.flops is None or compute.rate is None:
        return f"unknown: {compute.unknown}"
    text = f"{_prefixed(compute.flops)}FLOP{_a_step(summary)}"
    when = "without the profiler" if summary.bound.measured else "as recorded"
    text += f", {_prefixed(compute.rate)}FLOP/s {when}"
    if compute.utilisation is None:
        where = f" in {compute.dtype}" if compute.dtype else ""
        return f"{text}; MFU unknown: no peak is known for this GPU{where}"
    peak = f"{_prefixed(compute.peak or 0)}FLOP/s"
    return f"{text}: MFU {percent(compute.utilisation)} ({compute.dtype} peak {peak})"


def percent(share: float) -> str:
    """Write a share with a decimal."""
    return f"{100 * share:.1f}%" if share >= _LEAST_PERCENT else "<0.1%"


def _prefixed(count: float) -> str:
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if count >= size:
            return f"{units.number(count / size)} {prefix}"
    return f"{units.number(count)} "


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

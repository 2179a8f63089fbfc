"""Caveats: properties in which two recordings differ, so that they do not compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base.device import used_gpu
from traceq.common.words import counted
from traceq.differ.structure import REGION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.differ.structure import Parts
    from traceq.model.recording import Recording
    from traceq.model.trace import Trace


def caveats_of(
    before: Recording,
    after: Recording,
    traces: tuple[Trace, Trace],
    parts: tuple[Parts, Parts],
    *,
    by_module: bool = False,
) -> tuple[str, ...]:
    """Return sentences on what is different about the recordings themselves."""
    return (
        *_step_times(before, after, traces),
        *_machines(traces),
        *_detail(traces),
        *_compiled(parts, by_module=by_module),
        *_programs(traces),
        *(
            f"{side} is incomplete: {text}"
            for side, trace in zip(("before", "after"), traces, strict=True)
            for text in trace.facts.damage
        ),
    )


def _step_times(
    before: Recording, after: Recording, traces: tuple[Trace, Trace]
) -> Iterator[str]:
    measured = [bool(recording.step_ns) for recording in (before, after)]
    stacks = [trace.frames.height > 0 for trace in traces]
    if any(measured) and not all(measured):
        side = "before" if measured[1] else "after"
        yield (
            f"the step of {side} was not measured without the profiler, so steps are"
            " compared as recorded: give both with --step-ms BEFORE,AFTER"
        )
    elif not all(measured) and any(stacks):
        yield (
            "steps are compared as recorded, and recording stacks makes the host up to"
            " three times slower: give step times measured without the profiler with"
            " --step-ms BEFORE,AFTER, or record with traceq collect"
        )
    if not all(measured) and stacks[0] != stacks[1]:
        side = "before" if stacks[0] else "after"
        yield (
            f"stacks were recorded {side} only, which slows that one's host down: idle"
            " time cannot be compared"
        )
    steps = [trace.steps.filter("averaged").height for trace in traces]
    for side, count in zip(("before", "after"), steps, strict=True):
        if not count:
            yield f"{side} has no steps: its whole trace counts as one"
        elif count == 1 and not all(measured):
            yield f"{side} has a single step, which may be an unusual one"


def _machines(traces: tuple[Trace, Trace]) -> Iterator[str]:
    gpus = [used_gpu(trace).name for trace in traces]
    facts = [trace.facts for trace in traces]
    if facts[0].gpu != facts[1].gpu:
        side = "before" if facts[0].gpu else "after"
        yield f"only {side} has GPU work: ops are compared by the host's time"
    elif gpus[0] and gpus[1] and gpus[0] != gpus[1]:
        yield f"the GPUs differ, {gpus[0]} and {gpus[1]}, and so do kernel times"
    if facts[0].torch != facts[1].torch and not _same_torch_possible(traces):
        yield f"the torch versions differ, {facts[0].torch} and {facts[1].torch}"
    if facts[0].runtime_version != facts[1].runtime_version and all(
        fact.runtime_version for fact in facts
    ):
        yield f"{facts[0].runtime_version} before, {facts[1].runtime_version} after"
    ranks = [fact.world_size or 1 for fact in facts]
    if ranks[0] != ranks[1]:
        yield f"{counted(ranks[0], 'rank')} before, {ranks[1]} after"
    elif facts[0].rank != facts[1].rank and None not in (facts[0].rank, facts[1].rank):
        yield f"rank {facts[0].rank} is compared with rank {facts[1].rank}"


def _same_torch_possible(traces: tuple[Trace, Trace]) -> bool:
    """Return whether a torch there is may have written both."""
    first, second = (trace.facts for trace in traces)
    lows = [_number(side.torch_from) for side in (first, second) if side.torch_from]
    highs = [_number(side.torch_to) for side in (first, second) if side.torch_to]
    return not lows or not highs or max(lows) <= min(highs)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _detail(traces: tuple[Trace, Trace]) -> Iterator[str]:
    facts = [trace.facts for trace in traces]
    for what, loses in (
        ("shapes", "ops are matched without them"),
        ("stacks", "ops are matched without module and line"),
        ("memory", "memory cannot be compared"),
    ):
        there = [bool(getattr(fact, what)) for fact in facts]
        if there[0] != there[1]:
            side = "before" if there[0] else "after"
            yield f"{what} were recorded {side} only: {loses}".replace(
                "memory were", "memory was"
            )


def _compiled(parts: tuple[Parts, Parts], *, by_module: bool) -> Iterator[str]:
    compiled = [bool((part.rows["op"] == REGION).any()) for part in parts]
    if compiled[0] == compiled[1] or by_module:
        return
    side = "before" if compiled[0] else "after"
    yield (
        f"torch.compile is used {side} only: compiled code is compared as a whole with"
        " the ops that it replaces; recorded with traceq collect, it is by module"
    )


def _programs(traces: tuple[Trace, Trace]) -> Iterator[str]:
    same = [
        trace.run.command
        for trace in traces
        if trace.run is not None and trace.run.command
    ]
    if len(same) == len(traces) and same[0] != same[1]:
        yield f"the commands differ: {' '.join(same[0])} and {' '.join(same[1])}"

"""Comparison of two jobs of many ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

import polars as pl

from traceq.common.words import counted
from traceq.differ.findings import FindingChanges, compare_findings
from traceq.differ.metrics import Metric, metrics
from traceq.differ.steps import Step, significant
from traceq.ranks.analysis import by_kind
from traceq.ranks.columns import highest, lowest, total

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.differ.compare import Verdict
    from traceq.model.lint_report import RecordingReport
    from traceq.ranks.analysis import Analysis, Straggler

StragglerState = Literal["new", "changed", "same", "gone"]


@dataclass(frozen=True, eq=False)
class JobHalf:
    """One job, analysed alone."""

    name: str
    """The path that was given."""
    analysis: Analysis
    outcome: RecordingReport


@dataclass(frozen=True, eq=False)
class JobSide:
    """One of the two jobs, as the comparison shows it."""

    name: str
    analysis: Analysis
    step: Step | None
    """None where a job has no steps."""


@dataclass(frozen=True)
class Meetings:
    """The collectives of one kind in a step of a rank, on average."""

    count: float
    ns: float
    waiting_ns: float
    hidden_ns: float
    """The part of the transfer in which the GPU computed."""


@dataclass(frozen=True)
class KindChange:
    """The collectives of one kind, before and after; None where there are none."""

    kind: str
    before: Meetings | None
    after: Meetings | None


@dataclass(frozen=True)
class StragglerChange:
    """Ranks that the others wait for, before, after, or in both jobs."""

    state: StragglerState
    """``changed`` is for another cause."""
    numbers: tuple[int, ...]
    before: Straggler | None
    after: Straggler | None


@dataclass(frozen=True, eq=False)
class JobDiff:
    """The change from one job to another."""

    before: JobSide
    after: JobSide
    verdict: Verdict
    metrics: tuple[Metric, ...]
    kinds: tuple[KindChange, ...]
    """Those that take longest first."""
    stragglers: tuple[StragglerChange, ...]
    """Those of the job after first, worst first; then those that are gone."""
    findings: FindingChanges
    caveats: tuple[str, ...]


def compare_jobs(before: JobHalf, after: JobHalf) -> JobDiff:
    """Return the change from one job to another."""
    steps = _steps(before.analysis, after.analysis)
    first, second = (
        JobSide(half.name, half.analysis, step)
        for half, step in zip((before, after), steps, strict=True)
    )
    return JobDiff(
        first,
        second,
        _verdict(*steps),
        metrics(job_numbers(first), job_numbers(second)),
        tuple(_kinds(before.analysis, after.analysis)),
        tuple(_stragglers(before.analysis, after.analysis)),
        compare_findings(before.outcome, after.outcome),
        tuple(_caveats(first, second)),
    )


def _steps(before: Analysis, after: Analysis) -> tuple[Step | None, Step | None]:
    """Return both step times: as measured if all ranks have that, else as recorded."""
    measured = [_measured(analysis) for analysis in (before, after)]
    if all(measured):
        return measured[0], measured[1]
    return _recorded(before), _recorded(after)


def step_of_job(analysis: Analysis) -> Step | None:
    """Return the duration of a step: as measured, else as recorded."""
    return _measured(analysis) or _recorded(analysis)


def _measured(analysis: Analysis) -> Step | None:
    """Return the duration of a step without the profiler, the median of the ranks."""
    ns = analysis.job.measured_step_ns
    return Step(ns, ns, ns, 1, measured=True) if ns else None


def _recorded(analysis: Analysis) -> Step | None:
    """Return the duration of a step in the traces, the median of the ranks."""
    step = analysis.job.step_ns
    if not step:
        return None
    rows = pl.concat([digest.table("steps") for digest in analysis.job.digests])
    lengths = (
        rows.group_by("step")
        .agg(length=(pl.col("end") - pl.col("start")).median())
        .select(pl.col("length").round().cast(pl.Int64))["length"]
    )
    low, high = min(lowest(lengths), step), max(highest(lengths), step)
    return Step(step, low, high, len(lengths), measured=False)


def _verdict(before: Step | None, after: Step | None) -> Verdict:
    if before is None or after is None or not significant(before, after):
        return "no change"
    return "slower" if after.ns > before.ns else "faster"


def job_numbers(side: JobSide) -> dict[str, float | None]:
    """Return the numbers of a job by the names of metrics."""
    analysis = side.analysis
    each = analysis.job.ranks.height * analysis.steps
    stepped = analysis.job.step_ns is not None
    waiting, transfer = (total(analysis.by_rank[name]) for name in ("wait", "sending"))
    return {
        "step": side.step.ns if side.step else None,
        "waiting": waiting / each if stepped else None,
        "transfer": transfer / each if stepped else None,
        "slowdown": analysis.whatifs.slowdown,
    }


def _kinds(before: Analysis, after: Analysis) -> Iterator[KindChange]:
    """Yield the collectives by kind, those that take longest first."""
    first, second = meetings_of(before), meetings_of(after)
    kinds = [
        KindChange(kind, first.get(kind), second.get(kind))
        for kind in dict.fromkeys((*second, *first))
    ]
    yield from sorted(
        kinds,
        key=lambda kind_change: (
            -max(side.ns for side in (kind_change.before, kind_change.after) if side)
        ),
    )


def meetings_of(analysis: Analysis) -> dict[str, Meetings]:
    """Return the collectives of a step of a rank, by kind."""
    each = analysis.job.ranks.height * analysis.steps
    return {
        row["kind"]: Meetings(
            row["calls"],
            row["length"] / each,
            row["wait"] / each,
            (row["length"] - row["wait"] - row["exposed"]) / each,
        )
        for row in by_kind(analysis.job).iter_rows(named=True)
    }


def _stragglers(before: Analysis, after: Analysis) -> Iterator[StragglerChange]:
    """Yield the stragglers: those after, then those before only."""
    old = _by_numbers(before)
    for numbers, ones in _by_numbers(after).items():
        for was, straggler in zip_longest(old.pop(numbers, []), ones):
            yield StragglerChange(_state(was, straggler), numbers, was, straggler)
    for numbers, ones in old.items():
        yield from (StragglerChange("gone", numbers, item, None) for item in ones)


def _by_numbers(analysis: Analysis) -> dict[tuple[int, ...], list[Straggler]]:
    """Return the stragglers by the numbers of their ranks, worst first."""
    numbers = analysis.job.ranks["number"].to_list()
    by: dict[tuple[int, ...], list[Straggler]] = {}
    for straggler in analysis.stragglers:
        by.setdefault(
            tuple(sorted(numbers[row] for row in straggler.ranks)), []
        ).append(straggler)
    return by


def _state(was: Straggler | None, straggler: Straggler | None) -> StragglerState:
    if was is None or straggler is None:
        return "new" if was is None else "gone"
    return "same" if was.cause.cause == straggler.cause.cause else "changed"


def _caveats(before: JobSide, after: JobSide) -> Iterator[str]:
    """Yield the differences between the two jobs, and what is missing of each."""
    first, second = before.analysis.job.ranks, after.analysis.job.ranks
    if first.height != second.height:
        yield (
            f"{counted(first.height, 'rank')} before, {second.height} after: each has"
            " other shares of the work, and other collectives"
        )
    gpus = [_devices(side) for side in (first, second)]
    if gpus[0] != gpus[1]:
        yield f"other GPUs: {_named(gpus[0])} before, {_named(gpus[1])} after"
    sides = (("before", before), ("after", after))
    for title, side in sides:
        if side.step is None:
            yield f"{title} has no steps, so times are of its whole window"
        yield from (f"{title}: {text}" for text in side.analysis.job.notices)


def _devices(ranks: pl.DataFrame) -> list[str]:
    return ranks["device"].unique().sort().to_list()


def _named(devices: Sequence[str]) -> str:
    return ", ".join(device or "none" for device in devices)

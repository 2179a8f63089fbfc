"""Bisection: which commit to measure next between a good and a bad one."""

from __future__ import annotations

from math import ceil, log2
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from traceq.analysis.base.assumptions import MEASURED_NOISE
from traceq.errors import UsageError
from traceq.history.jumps import NUMBERS, Name, Number, deviation_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from traceq.history.store import Run

State = Literal["good", "bad", "unclear"]
# Nearer to the middle than this many standard deviations, a commit is neither.
_UNCLEAR = 1.0
_CLEAR = 2.0
# Fewer runs show no noise.
_ENOUGH = 6


class Measured(Struct, frozen=True):
    """A commit that was measured."""

    commit: str
    state: State
    value: float
    """Median of its runs."""
    runs: int


class Bisection(Struct, frozen=True):
    """Commits between a good and a bad one, as far as they are measured."""

    number: Name
    good: Measured
    """The last commit that is as the good one."""
    bad: Measured
    """The first commit that is as the bad one."""
    measured: tuple[Measured, ...]
    """All measured commits of the span, in order."""
    between: tuple[str, ...]
    """Commits between the last good and the first bad one: one of these or the first
    bad one made the change."""
    next: str
    """Commit to measure next; empty if the first bad one is known."""
    again: bool
    """True if the next commit was measured, and its runs do not tell."""
    runs_left: int
    """Number of commits that are left to measure, if all goes well."""


def bisect(
    commits: Sequence[str], runs: Sequence[Run], name: Name | None = None
) -> Bisection:
    """Return the next commit to measure.

    ``commits`` are in order from the good one to the bad one, both included; ``runs``
    are those of one series, in order.
    """
    by_commit: dict[str, list[Run]] = {}
    for run in runs:
        by_commit.setdefault(run.commit, []).append(run)
    for end in (commits[0], commits[-1]):
        if end not in by_commit:
            msg = f"{end[:12]} was not measured: traceq history add its run first"
            raise UsageError(msg)
    number, noise = _number(by_commit, commits, runs, name)
    values = {
        commit: _values(by_commit[commit], number)
        for commit in commits
        if commit in by_commit
    }
    levels = median(values[commits[0]]), median(values[commits[-1]])
    measured = [
        Measured(
            commit,
            _state(median(known), levels, noise / len(known) ** 0.5),
            median(known),
            len(known),
        )
        for commit, known in values.items()
        if known
    ]
    return _narrowed(number.name, commits, measured)


def _narrowed(
    name: Name, commits: Sequence[str], measured: Sequence[Measured]
) -> Bisection:
    bad = next(point for point in measured[1:] if point.state == "bad")
    before = measured[: measured.index(bad)]
    good = next(point for point in reversed(before) if point.state == "good")
    low, high = (commits.index(point.commit) for point in (good, bad))
    between = commits[low + 1 : high]
    following = between[(len(between) - 1) // 2] if between else ""
    known = {point.commit for point in measured}
    if following in known:
        # One that was not measured tells more than one that tells nothing.
        middle = commits.index(following)
        fresh = [commit for commit in between if commit not in known]
        following = min(
            fresh,
            key=lambda commit: abs(commits.index(commit) - middle),
            default=following,
        )
    return Bisection(
        name,
        good,
        bad,
        tuple(measured),
        tuple(between),
        following,
        again=following in known,
        runs_left=ceil(log2(len(between) + 1)),
    )


def _number(
    by_commit: Mapping[str, Sequence[Run]],
    commits: Sequence[str],
    runs: Sequence[Run],
    name: Name | None,
) -> tuple[Number, float]:
    """Return the number that differs most, measured by its noise, and the noise."""
    ends = commits[0], commits[-1]
    clearest: tuple[float, Number, float] | None = None
    for number in NUMBERS:
        if name not in (None, number.name):
            continue
        sides = [_values(by_commit[end], number) for end in ends]
        if not all(sides):
            continue
        before, after = map(median, sides)
        repeats = [_values(repeated, number) for repeated in by_commit.values()]
        noise = max(_noise(_values(runs, number), number), _spread(repeats))
        least = max(number.least * abs(before), number.least_count, _CLEAR * noise)
        clearness = abs(after - before) / (least or 1.0)
        if clearness > 1 and (clearest is None or clearness > clearest[0]):
            clearest = clearness, number, noise
    if clearest is None:
        what = name or "the step, memory and the counts"
        msg = (
            f"{ends[0][:12]} and {ends[1][:12]} do not differ in {what} by more than"
            " neighbouring runs do: there is nothing to bisect"
        )
        raise UsageError(msg)
    return clearest[1], clearest[2]


def _noise(values: Sequence[float], number: Number) -> float:
    """Return the standard deviation of runs; of few runs, what programs have."""
    if len(values) >= _ENOUGH:
        return deviation_of(values)
    return 0.0 if number.least_count else MEASURED_NOISE / 2 * median(values)


def _spread(repeats: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation of runs of the same commit; 0 if all ran once."""
    squares, free = 0.0, 0
    for values in repeats:
        if values:
            squares += sum((value - fmean(values)) ** 2 for value in values)
            free += len(values) - 1
    return float((squares / free) ** 0.5) if free else 0.0


def _values(runs: Sequence[Run], number: Number) -> list[float]:
    values = [getattr(run, number.column) for run in runs]
    return [float(value) for value in values if value is not None]


def _state(value: float, levels: tuple[float, float], noise: float) -> State:
    middle = sum(levels) / 2
    if abs(value - middle) < _UNCLEAR * noise:
        return "unclear"
    return "good" if (value < middle) == (levels[0] < middle) else "bad"

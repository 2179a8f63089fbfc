"""Series of runs with their jumps, and the difference between any two runs."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from msgspec import Struct

from traceq.common.progress import notify
from traceq.errors import UsageError
from traceq.history.changes import Difference, difference
from traceq.history.jumps import NEIGHBOURS, Jump, Shift, against, jumps_of
from traceq.history.store import Run, reading, run_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from traceq.history.digest import Digest
    from traceq.history.store import History

_SHORTEST_COMMIT = 4
# Runs of each side that the cause of a jump is taken from.
_COMPARED = 5


class ExplainedJump(Struct, frozen=True):
    """A jump with what differs between the runs on its sides."""

    jump: Jump
    difference: Difference


class Series(Struct, frozen=True):
    """Runs that are compared with each other, in order."""

    runs: tuple[Run, ...]
    jumps: tuple[ExplainedJump, ...]

    def cut(self, first: int) -> Series:
        """Return the runs from an index on, with the jumps among them."""
        jumps = [
            ExplainedJump(jump.jump.moved(-first), jump.difference)
            for jump in self.jumps
            if jump.jump.at >= first
        ]
        return Series(self.runs[first:], tuple(jumps))

    @property
    def name(self) -> str:
        """Series, GPU, ranks and source of the step time."""
        run = self.runs[0]
        ranks = f"{run.ranks} ranks" if run.ranks > 1 else ""
        parts = (run.series, run.gpu, ranks)
        return ", ".join(part for part in parts if part) or "runs"


def series_in(file: Path, *, name: str = "", last: int | None = None) -> list[Series]:
    """Return the runs by series, with the jumps and their causes.

    ``last`` runs of each are returned; jumps are looked for in all.
    """
    with reading(file) as history:
        return [
            _series_of(history, list(group), last)
            for _, group in groupby(_chosen(history, name), key=lambda run: run.group)
        ]


def _chosen(history: History, name: str) -> list[Run]:
    """Return the runs of a series by name; of all without one."""
    runs = [run for run in history.runs() if not name or run.series == name]
    if name and not runs:
        msg = f"{history.file} has no runs of the series {name}"
        raise UsageError(msg)
    return runs


def _series_of(history: History, runs: Sequence[Run], last: int | None) -> Series:
    first = max(0, len(runs) - last) if last else 0
    jumps = [
        ExplainedJump(jump, difference(*_sides(history, runs, jump)))
        for jump in jumps_of(runs)
        if jump.at >= first
    ]
    return Series(tuple(runs), tuple(jumps)).cut(first)


def _sides(
    history: History, runs: Sequence[Run], jump: Jump
) -> tuple[list[Digest], list[Digest]]:
    """Return the digests of the runs next to a jump."""
    before = runs[max(jump.first, jump.at - _COMPARED) : jump.at]
    after = runs[jump.at : min(jump.last + 1, jump.at + _COMPARED)]
    return history.digests(before), history.digests(after)


def find_runs(history: History, name: str) -> list[Run]:
    """Return the runs that a name means: of a commit, or of a path; raise if none.

    A commit may be shortened; ``last`` is the newest run, ``last~2`` the second before.
    """
    runs = history.runs()
    if matching := [run for run in runs if run.name == name]:
        return matching
    if matching := [run for run in runs if str(run.id) == name.removeprefix("#")]:
        return matching
    if len(name) >= _SHORTEST_COMMIT:
        matching = [run for run in runs if run.commit.startswith(name)]
        if len({run.commit for run in matching}) > 1:
            msg = f"{name} is the beginning of several commits: give more of it"
            raise UsageError(msg)
        if matching:
            return matching
    word, _, back = name.partition("~")
    if word == "last" and (not back or back.isdigit()):
        ordered = sorted(runs, key=lambda run: (run.at_ns, run.id))
        at = len(ordered) - 1 - int(back or 0)
        if at >= 0:
            return [ordered[at]]
    msg = f"{history.file} has no run {name}: traceq history show lists all"
    raise UsageError(msg)


class Explained(Struct, frozen=True):
    """Two runs, or all runs of two commits, and what differs."""

    before: tuple[Run, ...]
    after: tuple[Run, ...]
    difference: Difference


def explain(file: Path, before: str, after: str) -> Explained:
    """Return what differs between two runs, or two commits, by their digests."""
    with reading(file) as history:
        sides = [find_runs(history, name) for name in (before, after)]
        groups = [{run.group for run in side} for side in sides]
        common = groups[0] & groups[1]
        # Of commits that were measured in several series, one that both have.
        if common:
            group = min(common)
            sides = [[run for run in side if run.group == group] for side in sides]
        else:
            first, second = (side[0] for side in sides)
            notify(
                f"{first.name} and {second.name} are of different series, or on other"
                " GPUs: their times say little about each other"
            )
        digests = [history.digests(side) for side in sides]
    return Explained(
        tuple(sides[0]), tuple(sides[1]), difference(digests[0], digests[1])
    )


class Compared(Struct, frozen=True):
    """A new run against the last ones of its series."""

    run: Run
    earlier: tuple[Run, ...]
    """The last runs, in order; empty if the history has none of its series."""
    shifts: tuple[Shift, ...]
    """Numbers that differ beyond the noise."""
    difference: Difference | None


def compare_new(file: Path, key: str, digest: Digest) -> Compared:
    """Return what differs in a run from the last runs of its series.

    A run of the same content is not compared with itself.
    """
    run = run_of(key, digest)
    with reading(file) as history:
        same = [item for item in history.runs() if item.group == run.group]
        earlier = [row for row in same if row.key != key]
        if not earlier:
            return Compared(run, (), (), None)
        last = history.digests(earlier[-NEIGHBOURS:])
    return Compared(
        run,
        tuple(earlier[-NEIGHBOURS:]),
        tuple(against(run, earlier)),
        difference(last, [digest]),
    )

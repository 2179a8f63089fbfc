"""Hangs: who has not joined which collective, and where ranks call different ones.

Calls of one group and number are one collective. A rank waits in its first call that
has not ended, for the members that have not called it. A rank that waits itself is not
to blame: the chain of waits ends at one that waits for nothing, at ranks whose calls
differ, or in a circle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import polars as pl
from msgspec import Struct

from traceq.model.finding import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from traceq.ranks.dumps import DumpJob

Kind: TypeAlias = Literal[
    "different-collective",
    "different-size",
    "different-dtype",
    "not-joined",
    "circle",
    "not-completed",
    "late",
]
How: TypeAlias = Literal["", "order", "left-out", "added", "no-dump", "unknown-members"]
_COLLECTIVE = ["key", "seq", "nth"]
# Their sizes may differ from rank to rank: of both ends, of the root's input or output.
_UNEVEN = r"(?i)all_?to_?all|coalesced"
_ROOT_INPUT, _ROOT_OUTPUT = "scatter", "gather"
# Calls after the first that differs, in which a shift is looked for.
_AHEAD = 16


class Call(Struct, frozen=True):
    """One call of a collective, a send or a receive."""

    rank: int
    group: str
    """Description of the process group, or its name."""
    seq: int
    op: str
    shape: str | None
    dtype: str | None
    done: bool
    created: int | None
    """Wall clock in nanoseconds."""
    file: str | None
    line: int | None
    function: str | None


class Problem(Struct, frozen=True):
    """One reason why ranks wait for each other."""

    kind: Kind
    severity: Severity
    ranks: tuple[int, ...]
    """Ranks that differ from the others, have not joined, or are late."""
    waiting: tuple[int, ...]
    """Ranks that wait for them, or have the other call."""
    calls: tuple[Call, ...]
    """The calls in question: of each side one, the one of ``ranks`` first; of a rank
    that has not joined the collective, then the last call of each."""
    how: How = ""
    late_ns: int = 0
    """Of a late rank: how late it is at the median, where it is late."""
    share: float = 0
    """Of a late rank: its lateness as a share of the time from first to last call."""


def hangs(job: DumpJob) -> list[Problem]:
    """Return why ranks wait, the first cause first; nothing if no rank does."""
    differences = _Differences(job)
    problems = [*differences.problems, *_Waits(job, differences.from_seq).problems()]
    return sorted(
        problems, key=lambda problem: min(c.created or 0 for c in problem.calls)
    )


class _Differences:
    """Collectives of which ranks have different ideas, the first of each group."""

    def __init__(self, job: DumpJob) -> None:
        self._calls = job.calls.filter(pl.col("lane") == "")
        self.from_seq: dict[str, int] = {}
        """The first number of a group at which calls differ."""
        self.problems = [self._problem(row) for row in self._first().to_dicts()]

    def _first(self) -> pl.DataFrame:
        """Return the first collective of each group that differs, and in what."""
        op = pl.col("op")
        uneven = op.str.contains(_UNEVEN)
        facts = self._calls.with_columns(
            input_size=pl.when(~uneven & (op != _ROOT_INPUT)).then("input_elements"),
            output_size=pl.when(~uneven & (op != _ROOT_OUTPUT)).then("output_elements"),
        )
        different = {
            "op": op,
            "size": pl.col("input_size"),
            "result": pl.col("output_size"),
            "dtype": pl.col("input_dtype"),
            "result_dtype": pl.col("output_dtype"),
        }
        result = (
            facts.group_by(_COLLECTIVE)
            .agg(
                **{
                    name: column.drop_nulls().n_unique() > 1
                    for name, column in different.items()
                }
            )
            .filter(pl.any_horizontal(*different))
            .sort("seq", "nth")
        )
        return result.unique("key", keep="first", maintain_order=True)

    def _problem(self, row: dict[str, Any]) -> Problem:
        self.from_seq[row["key"]] = row["seq"]
        same = [pl.col(name) == row[name] for name in _COLLECTIVE]
        calls = self._calls.filter(*same).sort("rank")
        kind: Kind = "different-dtype"
        by: tuple[str, ...] = ("input_dtype", "output_dtype")
        if row["op"]:
            kind, by = "different-collective", ("op",)
        elif row["size"] or row["result"]:
            kind, by = "different-size", ("input_elements", "output_elements")
        sides: dict[Any, list[dict[str, Any]]] = {}
        for call in calls.to_dicts():
            sides.setdefault(tuple(call[name] for name in by), []).append(call)
        # Of as many ranks, those differ that have never called it like this.
        *odd, most = sorted(
            sides.values(), key=lambda side: (len(side), self._repeats(side[0]))
        )
        ranks = sorted(call["rank"] for side in odd for call in side)
        how, more = self._shift(odd[0][0], most[0])
        return Problem(
            kind,
            Severity.error,
            ranks=tuple(ranks),
            waiting=tuple(call["rank"] for call in most),
            calls=(*(call_of(side[0]) for side in (*odd, most)), *more),
            how=how,
        )

    def _shift(
        self, odd: dict[str, Any], usual: dict[str, Any]
    ) -> tuple[How, tuple[Call, ...]]:
        """Return how the calls that follow fit: another order, or some left out."""
        own, theirs = self._next(odd), self._next(usual)
        signs, others = [*map(_sign, own)], [*map(_sign, theirs)]
        if signs[0] not in others and others[0] not in signs:
            return "", ()
        if _shifted(signs, others):
            return "left-out", (call_of(theirs[0]),)
        if _shifted(others, signs):
            return "added", (call_of(own[0]),)
        both = signs[0] in others and others[0] in signs
        return ("order" if both else ""), ()

    def _repeats(self, call: dict[str, Any]) -> bool:
        """Return whether a rank has made the same call before, at the same line."""
        same = ("rank", "op", "input_elements", "input_dtype", "file", "line")
        before = self._calls.filter(
            pl.col("at") < call["at"],
            *(pl.col(name).eq_missing(pl.lit(call[name])) for name in same),
        )
        return before.height > 0

    def _next(self, call: dict[str, Any]) -> list[dict[str, Any]]:
        same = [pl.col(name) == call[name] for name in ("key", "rank")]
        return (
            self._calls.filter(*same, pl.col("at") >= call["at"])
            .head(_AHEAD)
            .to_dicts()
        )


def _sign(call: dict[str, Any]) -> tuple[Any, ...]:
    return call["op"], call["input_elements"], call["input_dtype"]


def _shifted(behind: Sequence[Any], ahead: Sequence[Any]) -> bool:
    """Return whether calls are others without the first of them, as far as both go."""
    if behind[0] not in ahead:
        return False
    rest = ahead[ahead.index(behind[0]) :]
    pairs = [*zip(behind, rest, strict=False)]
    return len(pairs) > 1 and all(one == other for one, other in pairs)


class _Waits:
    """Ranks that wait in a call, and for whom."""

    def __init__(self, job: DumpJob, different: dict[str, int]) -> None:
        self._job = job
        self._different = different
        """Numbers from which the calls of a group differ, which explains waits."""
        pending = job.calls.filter(~pl.col("done")).unique(
            "rank", keep="first", maintain_order=True
        )
        self._pending = {call["rank"]: call for call in pending.to_dicts()}
        last = job.calls.group_by("key", "lane", "rank").agg(pl.col("seq").max())
        self._last = {tuple(key): seq for *key, seq in last.iter_rows()}
        self._for = {rank: self._absent(call) for rank, call in self._pending.items()}

    def problems(self) -> Iterator[Problem]:
        """Yield the ends of all chains of waits."""
        absent = {rank for blockers in self._for.values() for rank in blockers}
        ends = {rank for rank in absent | {*self._pending} if not self._for.get(rank)}
        yield from self._not_joined(ends)
        lost = self._pending.keys() - self._leading_to(ends)
        for circle in sorted({self._circle(rank) for rank in lost}):
            calls = tuple(call_of(self._pending[rank]) for rank in circle)
            yield Problem("circle", Severity.error, circle, (), calls)

    def _leading_to(self, ends: set[int]) -> set[int]:
        """Return the ranks that wait for one of the ends, if only by others."""
        leading = set(ends)
        while more := {
            rank
            for rank, blockers in self._for.items()
            if rank not in leading and not leading.isdisjoint(blockers)
        }:
            leading |= more
        return leading

    def _absent(self, call: dict[str, Any]) -> list[int]:
        """Return the ranks with a dump that have not joined a call."""
        return [
            rank
            for rank in self._expected(call)
            if rank in self._job.ranks
            and self._last.get((call["key"], call["lane"], rank), -1) < call["seq"]
        ]

    def _expected(self, call: dict[str, Any]) -> Iterable[int]:
        members = self._job.members[call["key"]]
        if not call["lane"]:
            return members
        ends = [int(text) for text in call["lane"].split("->")]
        # The ends of a send are numbers within the group.
        certain = call["key"] not in self._job.uncertain and max(ends) < len(members)
        return [members[end] for end in ends] if certain else ends

    def _circle(self, rank: int) -> tuple[int, ...]:
        """Return the circle that the waits of a rank lead into, sorted."""
        path = [rank]
        while (after := self._for[path[-1]][0]) not in path:
            path.append(after)
        return tuple(sorted(path[path.index(after) :]))

    def _not_joined(self, ends: set[int]) -> Iterator[Problem]:
        """Yield what the ranks at the ends of chains have not joined or completed."""
        missed: dict[tuple[Any, ...], list[int]] = {}
        stuck: dict[tuple[Any, ...], list[int]] = {}
        for rank in sorted(ends):
            own = self._pending.get(rank)
            if own is not None:
                if own["seq"] < self._different.get(own["key"], own["seq"] + 1):
                    stuck.setdefault(_meeting(own), []).append(rank)
                continue
            waited = [c for r, c in self._pending.items() if rank in self._for[r]]
            first = min(waited, key=lambda call: (call["created"] or 0, call["rank"]))
            if first["seq"] < self._different.get(first["key"], first["seq"] + 1):
                missed.setdefault(_meeting(first), []).append(rank)
        for meeting, ranks in missed.items():
            yield self._missed(meeting, ranks)
        for meeting in stuck:
            yield self._stuck(meeting)

    def _missed(self, meeting: tuple[Any, ...], ranks: list[int]) -> Problem:
        waiting = self._waiting(meeting)
        ends = (self._last_call(rank) for rank in ranks)
        calls = (call_of(waiting[0]), *(call for call in ends if call))
        return Problem(
            "not-joined",
            Severity.error,
            tuple(ranks),
            tuple(call["rank"] for call in waiting),
            calls,
        )

    def _stuck(self, meeting: tuple[Any, ...]) -> Problem:
        """Return the problem of a call that all ranks with a dump have joined."""
        waiting = self._waiting(meeting)
        call = waiting[0]
        ranks = tuple(entry["rank"] for entry in waiting)
        unseen = {*self._expected(call)} - {*self._job.ranks}
        if unseen:
            return Problem(
                "not-joined",
                Severity.error,
                tuple(sorted(unseen)),
                ranks,
                (call_of(call),),
                "no-dump",
            )
        if call["key"] in self._job.uncertain:
            calls = (call_of(call),)
            how: How = "unknown-members"
            return Problem("not-joined", Severity.error, (), ranks, calls, how)
        return Problem("not-completed", Severity.warning, ranks, (), (call_of(call),))

    def _waiting(self, meeting: tuple[Any, ...]) -> list[dict[str, Any]]:
        return [
            call
            for _, call in sorted(self._pending.items())
            if _meeting(call) == meeting
        ]

    def _last_call(self, rank: int) -> Call | None:
        calls = self._job.calls.filter(pl.col("rank") == rank)
        return call_of(calls.row(-1, named=True)) if calls.height else None


def _meeting(call: dict[str, Any]) -> tuple[Any, ...]:
    return call["key"], call["lane"], call["seq"]


def left_behind(job: DumpJob) -> list[Call]:
    """Return the last call of each rank that others of its group are ahead of.

    The last one is the call that these have reached; nothing if no rank is behind.
    """
    last = (
        job.calls.filter(pl.col("lane") == "")
        .sort("seq", "nth")
        .unique(["key", "rank"], keep="last", maintain_order=True)
    )
    ahead = last.filter(
        pl.col("seq").max().over("key") > pl.col("seq").min().over("key")
    )
    if ahead.is_empty():
        return []
    group = ahead.filter(pl.col("key") == ahead["key"][0]).sort("seq", "rank")
    behind = group.filter(pl.col("seq") < pl.col("seq").max())
    return [call_of(row) for row in [*behind.to_dicts(), group.row(-1, named=True)]]


def last_calls(job: DumpJob) -> list[Call]:
    """Return the call that each rank waits in, or its last, by rank."""
    pending = job.calls.filter(~pl.col("done"))
    shown = pl.concat([pending, job.calls.sort("rank", "at", descending=[False, True])])
    firsts = shown.unique("rank", keep="first", maintain_order=True).sort("rank")
    return [call_of(row) for row in firsts.to_dicts()]


def call_of(row: dict[str, Any]) -> Call:
    """Return a row of a job's calls."""
    described = row["description"] not in ("", "undefined")
    group = row["description"] if described else f"group {row['group']}"
    op = f"{row['op']} {row['lane']}".strip()
    return Call(
        row["rank"],
        group,
        row["seq"],
        op,
        row["inputs"] or row["outputs"],
        row["input_dtype"] or row["output_dtype"],
        row["done"],
        row["created"],
        row["file"],
        row["line"],
        row["function"],
    )

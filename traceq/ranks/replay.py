"""Replay of a job with other times for some ranks.

A rank does its own work until a collective is ready, meets the others there, and goes
on; where it needs the result it goes on when the collective is done, that is when the
last rank has arrived and the transfer is over. No collective is ready before the host
has launched it, and the host has its own pace. The order of all this is computed once;
then a run with other times is one pass over flat lists.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.ranks.timeline import READY

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, eq=False)
class JobReplay:
    """A job, ready to be run again.

    Operation k adds its time to the later of two moments and moves a third one there,
    if that is later. Times are of a piece of own work, or of a transfer.
    """

    first: list[int]
    second: list[int]
    time_of: list[int]
    """Index of the time: own work by its row, the host's by its row, transfers by their
    instance, and 0."""
    result: list[int]
    start: list[float]
    """The moments before the first operation."""
    ends: list[int]
    """The moments that are the ends of collectives."""
    begin: float
    """End of the first of the collectives."""
    joins: list[tuple[int, float]]
    """Ranks whose windows begin later: the time of their first meeting, and how long
    before the end of that collective they, or their hosts, came."""
    stuck: int
    """Number of meetings that could not be put in order, and are left out."""

    def run(
        self,
        own: Sequence[float],
        issue: Sequence[float],
        transfers: Sequence[float],
    ) -> float:
        """Return the duration of the job with these times, in nanoseconds."""
        moments = list(self.start)
        times = [*own, *issue, *transfers, 0.0]
        for which, time in self.joins:
            times[which] = time
        for one, other, which, result in zip(
            self.first, self.second, self.time_of, self.result, strict=True
        ):
            a, b = moments[one], moments[other]
            # Comparisons take half the time that max() does, and this is the loop.
            moment = (a if a > b else b) + times[which]  # noqa: FURB136
            if moment > moments[result]:  # noqa: PLR1730
                moments[result] = moment
        return max((moments[end] for end in self.ends), default=self.begin) - self.begin


def job_replay(meetings: pl.DataFrame, instances: pl.DataFrame) -> JobReplay:
    """Put a job's meetings in order.

    The meetings are in the order of each rank, with ``rank``, ``instance`` (null if
    nobody else is known to take part), ``meeting``, ``at`` and ``launched`` on one
    clock and ``before``, the instance before it on its stream; ``instances`` are all
    instances.
    """
    return _Order(meetings, instances).ordered()


class _Order:
    """Walks along all ranks, each until it has to wait for the others."""

    def __init__(self, meetings: pl.DataFrame, instances: pl.DataFrame) -> None:
        self.count = instances.height
        self.rows = list(
            meetings.select(
                "instance",
                pl.col("meeting") == READY,
                "before",
                "at",
                _host_at(),
            ).iter_rows()
        )
        ranks = (
            meetings.select("rank")
            .with_row_index("row")
            .group_by("rank", maintain_order=True)
        )
        self.of_rank = ranks.agg("row")["row"].to_list()
        self.end_at: list[float] = instances["end"].cast(pl.Float64).to_list()
        self.missing = _arrivals(meetings, self.count)
        self.fixed = [False] * self.count
        self.joins: list[tuple[int, float]] = []
        self.joined: dict[int, int] = {}
        self.first: list[int] = []
        self.second: list[int] = []
        self.time_of: list[int] = []
        self.result: list[int] = []
        # Moments: the ends of collectives, where each rank and its host are, and one
        # long ago.
        self.start = [-1e30] * (self.count + 2 * len(self.of_rank) + 1)
        self.long_ago = len(self.start) - 1
        self.zero = 2 * len(self.rows) + self.count
        self.parked: dict[int, list[int]] = {}
        self.next = [0] * len(self.of_rank)

    def ordered(self) -> JobReplay:
        """Return the replay."""
        self._begin()
        waiting = list(range(len(self.of_rank)))
        while waiting:
            waiting += self._walk(waiting.pop())
        left = sum(
            len(rows) - at for rows, at in zip(self.of_rank, self.next, strict=True)
        )
        ends = [at for at in range(self.count) if not self.missing[at]]
        begin = min((self.end_at[at] for at in ends), default=0.0)
        return JobReplay(
            self.first,
            self.second,
            self.time_of,
            self.result,
            self.start,
            ends,
            begin,
            self.joins,
            left,
        )

    def _begin(self) -> None:
        """Start each rank at its first collective.

        One that is the first of all its ranks ends when it did. Ranks that come to one
        of ranks that have begun follow these: what they did before is not known.
        """
        firsts = {}
        for rank, rows in enumerate(self.of_rank):
            arrivals = (at for at, row in enumerate(rows) if self._is_arrival(row))
            self.next[rank] = next(arrivals, len(rows))
            if self.next[rank] < len(rows):
                firsts[rank] = self.rows[rows[self.next[rank]]][0]
        beginners = Counter(firsts.values())
        self.fixed = [beginners[at] == self.missing[at] > 0 for at in range(self.count)]
        for rank, instance in firsts.items():
            row = self.of_rank[rank][self.next[rank]]
            moments = [float(self.rows[row][3]), float(self.rows[row][4])]
            if self.fixed[instance]:
                self.start[instance] = self.end_at[instance]
                self.start[self.count + rank], self.start[self._host(rank)] = moments
                self.next[rank] += 1
            else:
                end = self.end_at[instance]
                self.joins += [
                    (row + at * len(self.rows), min(0.0, moment - end))
                    for at, moment in enumerate(moments)
                ]
                self.joined[row] = instance
            self.missing[instance] -= 1

    def _host(self, rank: int) -> int:
        return self.count + len(self.of_rank) + rank

    def _is_arrival(self, row: int) -> bool:
        instance, ready, *_ = self.rows[row]
        return instance is not None and ready

    def _arrived(self, instance: int) -> list[int]:
        """Count an arrival; return who waited for the last one."""
        self.missing[instance] -= 1
        return [] if self.missing[instance] else self.parked.pop(instance, [])

    def _operation(self, one: int, other: int, time: int, result: int) -> None:
        self.first.append(one)
        self.second.append(other)
        self.time_of.append(time)
        self.result.append(result)

    def _walk(self, rank: int) -> list[int]:
        """Go on with one rank as far as it gets; return who can go on by that."""
        rows, here, host = self.of_rank[rank], self.count + rank, self._host(rank)
        freed: list[int] = []
        while self.next[rank] < len(rows):
            row = rows[self.next[rank]]
            instance, ready, before, *_ = self.rows[row]
            needed = before if ready else instance
            if instance is None:
                needed = None
            if row in self.joined:
                needed = instance
            if needed is not None and self.missing[needed]:
                self.parked.setdefault(needed, []).append(rank)
                return freed
            self.next[rank] += 1
            if row in self.joined:
                self._operation(instance, self.long_ago, row, here)
                self._operation(instance, self.long_ago, row + len(self.rows), host)
                continue
            self._operation(here, self.long_ago, row, here)
            if ready:
                self._operation(host, self.long_ago, row + len(self.rows), host)
                self._operation(here, host, self.zero, here)
            if instance is None:
                continue
            if not ready:
                self._operation(here, instance, self.zero, here)
                continue
            if not self.fixed[instance]:
                self._operation(
                    here,
                    self.long_ago if before is None else before,
                    2 * len(self.rows) + instance,
                    instance,
                )
            freed += self._arrived(instance)
        return freed


def _host_at() -> pl.Expr:
    """Return when the host was at each meeting.

    What was launched before the recording has no launch: the host was as far ahead of
    the GPU then as it is at the next one.
    """
    done = pl.col("issue").cum_sum()
    next_launch = (pl.col("launched") - done).backward_fill() + done
    return pl.coalesce("launched", next_launch.over("rank"), "at")


def _arrivals(meetings: pl.DataFrame, count: int) -> list[int]:
    """Return the number of ranks that are to arrive at each instance."""
    counts = [0] * count
    arrivals = (
        meetings.filter(pl.col("meeting") == READY)
        .drop_nulls("instance")
        .group_by("instance")
        .len()
    )
    for instance, ranks in arrivals.iter_rows():
        counts[instance] = ranks
    return counts

"""The steps once more, as they would go after a change: what they take then.

The host's time falls into epochs, from one blocking call to the next, and the work of a
stream into groups: work that was launched in one epoch and that nothing but its own
stream waits for. Inside a group only sums and the latest launch decide when it is done:

    done = max(entered + time, host + reach)

    entered   when the work before it, on its stream or another one, is done
    time      what all its work takes, gaps included
    host      when the host began the epoch
    reach     the maximum over its work of launch in the epoch + latency + time from
              there on

``time`` and ``reach`` are computed for all groups at once; only from blocking call to
blocking call the replay goes step by step. The steps are run several times in a row, as
a training loop does, and the last round counts: in it the GPU is as far behind the host
as it will be.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.intervals import Cover
from traceq.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from traceq.analysis.replay.model import StepModel

    _Asked: TypeAlias = "tuple[tuple[Change, ...], TimeScale]"

_ROUNDS = 3
_SPANS = {"start": pl.Int64, "end": pl.Int64}


@dataclass(frozen=True, eq=False)
class Change:
    """What a fix changes in the steps."""

    kernels: frozenset[int] = frozenset()
    """GPU work that is removed or gets faster."""
    kernel_share: float = 0.0
    """The share of its time that is removed."""
    spans: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_SPANS))
    """When the host did what is removed or gets faster: ``start`` and ``end``."""
    host_share: float = 0.0
    """The share of that time that is removed."""
    syncs: frozenset[int] = frozenset()
    """Calls that do not block any more."""

    @cached_property
    def cover(self) -> Cover:
        """The spans, to be asked how much of the time they cover."""
        return Cover(self.spans)


@dataclass(frozen=True)
class TimeScale:
    """How long host and GPU take, relative to what the model states."""

    host: float = 1.0
    gpu: float = 1.0
    recorded: bool = False
    """Whether the host takes as long as recorded, or as estimated without that."""


AS_RECORDED = TimeScale(recorded=True)


@dataclass(frozen=True)
class Result:
    """How the steps went."""

    step_ns: float
    """What one of them takes in the long run."""
    host: Sequence[float]
    """When the host began each epoch of the last round."""
    entered: Sequence[float]
    """When each group of work could begin, launches aside."""


class _HostClock(NamedTuple):
    """The host's own work, counted from the beginning of each epoch."""

    launches: pl.Series
    """How much it has worked at each launch."""
    epochs: list[float]
    """How much it works in each epoch."""


class _Times(NamedTuple):
    """What each piece of work takes."""

    time: pl.Series
    """With the gap before it."""
    gap: pl.Series
    before: pl.Series
    """The time of all work before it."""


class Replay:
    """The steps of a trace, ready to be run again with changes."""

    def __init__(self, model: StepModel) -> None:
        """Cut the host's time into epochs and the work into groups."""
        self.model = model
        self._runs: dict[TimeScale, Result] = {}
        # The next question is often about the same changes, but of all of them the
        # answers would be large: the last one is kept.
        self._last: tuple[_Asked, Result] | None = None
        self._last_worked: tuple[_Asked, pl.Series] | None = None
        self._clocks: dict[TimeScale, _HostClock] = {}
        self._usual_times: dict[float, _Times] = {}
        self._host_left: dict[Change, tuple[pl.Series, pl.Series]] = {}
        self._work_left: dict[Change, pl.Series] = {}
        pieces, waits = model.host, model.waits
        self._edges = pl.concat([pieces["start"][:1], pieces["end"]])
        self._length = (pieces["end"] - pieces["start"]).cast(pl.Float64)
        blocked, by = Cover(waits).between(self._edges)
        whole = pl.repeat(1.0, pieces.height, dtype=pl.Float64, eager=True)
        self._awake = whole.scatter(blocked, 1 - by / self._length[blocked])
        self.work = _grouped(model)
        self._whole = pl.repeat(1.0, model.work.height, dtype=pl.Float64, eager=True)
        self._launch_edge, self._wait_end_edge, self._wait_start_edge = (
            self._edges.search_sorted(moments).clip(upper_bound=pieces.height)
            for moments in (self.work["launched_at"], waits["end"], waits["start"])
        )
        # Work whose launch is not in the file may begin when the host is done.
        self._late = (self.work["launched_at"] - self._edges.last()).clip(lower_bound=0)
        groups = self.work.group_by("group", maintain_order=True).agg(
            pl.col("lane", "epoch", "start", "after").first()
        )
        group_of = self.work["group"]
        self._lanes = max(groups["lane"], default=0) + 1
        self._waits_for = group_of[waits["waits_for"]].to_list()
        self._resume = waits["resume"].to_list()
        self._order = _ordered(
            groups.with_columns(group_of[groups["after"]].alias("after")), waits
        )

    def run(
        self, changes: Sequence[Change] = (), scale: TimeScale = AS_RECORDED
    ) -> Result:
        """Return how the steps go with these changes, at these speeds."""
        if not changes and scale in self._runs:
            return self._runs[scale]
        asked = (tuple(changes), scale)
        # Looked at once: rules run at once, and another one may ask meanwhile.
        last = self._last
        if last is not None and last[0] == asked:
            return last[1]
        rounds = _ROUNDS if self.model.repeats else 1
        idle = [0.0] * self._lanes
        result = self._played(changes, scale, idle, rounds)
        if not changes:
            self._runs[scale] = result
        self._last = (asked, result)
        return result

    def once(self) -> float:
        """Return what the steps take when they are run as recorded, and only once.

        As in the recording, the GPU may be behind when they begin.
        """
        begin = self._edges[0] if len(self._edges) else 0
        firsts = self.work.group_by("lane").agg(pl.col("before").first()).sort("lane")
        behind = [max(0.0, time - begin) for time in firsts["before"].fill_null(begin)]
        run = self._played((), AS_RECORDED, behind or [0.0], 1)
        return run.step_ns - max(behind, default=0.0) / self.model.steps

    def _played(
        self,
        changes: Sequence[Change],
        scale: TimeScale,
        behind: list[float],
        rounds: int,
    ) -> Result:
        """Go from blocking call to blocking call and from group to group."""
        clock = self._host_clock(changes, scale)
        gone = frozenset[int]().union(*(change.syncs for change in changes))
        blocks = [call not in gone for call in self.model.waits["id"].to_list()]
        time, reach = self._sums(changes, scale, clock)
        lanes = [*behind]
        done = [0.0] * len(time)
        entered = [0.0] * len(time)
        host = [0.0] * len(clock.epochs)
        totals = [0.0]
        for _ in range(rounds):
            for group, lane, epoch, after in self._order:
                if group is not None:
                    ready = lanes[lane]
                    if after is not None and done[after] > ready:
                        ready = done[after]
                    entered[group] = ready
                    launched = host[epoch] + reach[group]
                    ready += time[group]
                    # Not by max(): this is what a replay spends its time with.
                    if launched > ready:  # noqa: PLR1730
                        ready = launched
                    lanes[lane] = done[group] = ready
                else:
                    now = host[epoch] + clock.epochs[epoch]
                    if blocks[epoch]:
                        target = self._waits_for[epoch]
                        finished = max(lanes) if target is None else done[target]
                        now = max(now, finished) + self._resume[epoch]
                    host[epoch + 1] = now
            began, host[0] = host[0], host[-1] + clock.epochs[-1]
            totals.append(max(host[0], *lanes))
        host[0] = began
        return Result((totals[-1] - totals[-2]) / self.model.steps, host, entered)

    def timeline(
        self, scale: TimeScale, changes: Sequence[Change] = ()
    ) -> pl.DataFrame:
        """Return when work begins and is done in the last round, as ``work`` has it.

        ``begin`` and ``done`` count from when the host began the first round;
        ``by_launch`` is whether its launch decided when it began, ``host_ns`` how much
        the host had worked until that launch in this round.
        """
        run = self.run(changes, scale)
        clock = self._host_clock(changes, scale)
        worked_before = pl.Series([0.0, *clock.epochs[:-1]], dtype=pl.Float64).cum_sum()
        epoch, group = self.work["epoch"], self.work["group"]
        entered = pl.Series(run.entered, dtype=pl.Float64)[group]
        host = pl.Series(run.host, dtype=pl.Float64)[epoch]
        # Counted without the time of the work before it, starts can be compared.
        times = self._times(changes, scale)
        entered_alone = pl.col("entered") - pl.col("time_before").first().over("group")
        before_it = pl.max_horizontal(
            pl.col("reach").cum_max().shift(1).over("group"), "entered"
        )
        return (
            self.work.with_columns(
                host_ns=clock.launches + worked_before[epoch],
                time_before=times.before,
                reach=host + self._reach_alone(times, clock),
                entered=entered,
            )
            .with_columns(entered=entered_alone)
            .with_columns(
                by_launch=pl.col("reach") > before_it,
                done=pl.max_horizontal("reach", before_it) + times.before + times.time,
            )
            .with_columns(begin=pl.col("done") - times.time + times.gap)
            .drop("time_before", "reach", "entered")
        )

    def host_time(
        self, scale: TimeScale, changes: Sequence[Change] = ()
    ) -> tuple[pl.Series, pl.Series]:
        """Return moments as recorded, and how much the host has worked until each."""
        changes = [one for one in changes if one.host_share and one.spans.height]
        return self._edges, self._worked(changes, scale)

    def moments(self, worked: pl.Series, scale: TimeScale) -> pl.Series:
        """Return when, as recorded, the host had worked that much."""
        edges, reached = self.host_time(scale)
        last = max(0, len(edges) - 2)
        piece = (reached.search_sorted(worked, side="right").cast(pl.Int64) - 1).clip(
            0, last
        )
        start, end = (reached[found] for found in (piece, piece + 1))
        inside = ((worked - start) / (end - start)).fill_nan(0).clip(0, 1)
        length = edges[piece + 1] - edges[piece]
        return edges[piece] + (inside * length).cast(pl.Int64)

    def _host_clock(self, changes: Sequence[Change], scale: TimeScale) -> _HostClock:
        """Return the host's own work in its epochs."""
        changes = [one for one in changes if one.host_share and one.spans.height]
        if not changes and scale in self._clocks:
            return self._clocks[scale]
        worked = self._worked(changes, scale)
        begins = pl.concat([worked[:1], worked[self._wait_end_edge]])
        ends = pl.concat([worked[self._wait_start_edge], worked[-1:]])
        launched = worked[self._launch_edge]
        clock = _HostClock(
            launched - begins[self.work["epoch"]] + self._late,
            (ends - begins).to_list(),
        )
        if not changes:
            self._clocks[scale] = clock
        return clock

    def _worked(self, changes: Sequence[Change], scale: TimeScale) -> pl.Series:
        """Return how much the host has worked at each edge of its pieces of time."""
        asked = (tuple(changes), scale)
        last = self._last_worked
        if last is not None and last[0] == asked:
            return last[1]
        left = self._awake
        if changes:
            left = left.clone()
        for change in changes:
            rows, less = self._left_of_host(change)
            before = left[rows]
            left = left.scatter(rows, less.zip_with(less < before, before))
        own = self._length if scale.recorded else self.model.host["own"]
        worked = pl.concat([pl.Series([0.0]), (own * left * scale.host).cum_sum()])
        self._last_worked = (asked, worked)
        return worked

    def _left_of_host(self, change: Change) -> tuple[pl.Series, pl.Series]:
        """Return the pieces of the host's time that a change is in, and what it leaves.

        Most changes are in few pieces. What is left is a part of each.
        """
        if change not in self._host_left:
            rows, covered = change.cover.between(self._edges)
            left = 1 - change.host_share * (covered / self._length[rows])
            self._host_left[change] = rows, left
        return self._host_left[change]

    def _left_of_work(self, change: Change) -> pl.Series:
        """Return which part of the time of each piece of work a change leaves."""
        if change not in self._work_left:
            mine = self.work["id"].is_in(list(change.kernels))
            self._work_left[change] = 1 - mine.cast(pl.Float64) * min(
                1.0, change.kernel_share
            )
        return self._work_left[change]

    def _times(self, changes: Sequence[Change], scale: TimeScale) -> _Times:
        """Return what each piece of work takes."""
        changes = [one for one in changes if one.kernel_share and one.kernels]
        if not changes and scale.gpu in self._usual_times:
            return self._usual_times[scale.gpu]
        work = self.work
        left = self._whole
        for change in changes:
            less = self._left_of_work(change)
            left = less.zip_with(less < left, left)
        # With removed work the gap before it is removed too.
        gap = work["gap"] * (left > 0) * scale.gpu
        time = gap + work["dur"] * left * scale.gpu
        times = _Times(time, gap, time.cum_sum() - time)
        if not changes:
            self._usual_times[scale.gpu] = times
        return times

    def _reach_alone(self, times: _Times, clock: _HostClock) -> pl.Series:
        """Return when launches let work begin, without the time of work before it."""
        return self.work["latency"] + clock.launches - times.gap - times.before

    def _sums(
        self, changes: Sequence[Change], scale: TimeScale, clock: _HostClock
    ) -> tuple[list[float], list[float]]:
        """Return ``time`` and ``reach`` of each group."""
        times = self._times(changes, scale)
        work = {
            "group": self.work["group"],
            "time": times.time,
            "time_before": times.before,
            "reach": self._reach_alone(times, clock),
        }
        sums = (
            pl.DataFrame(work)
            .group_by("group", maintain_order=True)
            .agg(
                pl.col("time").sum(),
                pl.max("reach") + pl.last("time_before") + pl.last("time"),
            )
        )
        return sums["time"].to_list(), sums["reach"].to_list()


def _grouped(model: StepModel) -> pl.DataFrame:
    """Return the work with its ``epoch`` of the host and its ``group``."""
    work, waits = model.work, model.waits
    epoch = waits["start"].search_sorted(work["launched_at"], side="left")
    targets = pl.concat([work["after"], waits["waits_for"]]).drop_nulls().unique()
    is_target = pl.int_range(pl.len(), dtype=pl.UInt32).is_in(targets.implode())
    first = (
        (pl.col("lane") != pl.col("lane").shift(1))
        | (pl.col("epoch") != pl.col("epoch").shift(1))
        | pl.col("after").is_not_null()
        | is_target.shift(1)
    ).fill_null(value=True)
    grouped = work.with_columns(epoch=epoch).with_columns(group=first.cum_sum() - 1)
    # Work of a group is next to each other, which makes grouping it faster.
    return grouped.with_columns(pl.col("group").set_sorted())


def _ordered(
    groups: pl.DataFrame, waits: pl.DataFrame
) -> list[tuple[int | None, int, int, int | None]]:
    """Return groups and blocking calls in the order in which they happened.

    A group is its number, lane and epoch, and the group that it comes after. A blocking
    call has no such number, and ends the epoch.
    """
    calls = waits.select(
        pl.lit(None).alias("group"),
        pl.lit(0).alias("lane"),
        pl.int_range(pl.len()).alias("epoch"),
        pl.lit(None).alias("after"),
        start="end",
        # A call that ends as work begins was over before it.
        item=-1 - pl.int_range(pl.len()),
    )
    work = groups.select(
        "group", "lane", "epoch", "after", "start", item=pl.col("group").cast(pl.Int64)
    )
    items = pl.concat([calls, work], how="vertical_relaxed").sort("start", "item")
    return items.select("group", "lane", "epoch", "after").rows()

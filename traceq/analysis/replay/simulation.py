"""The steps once more, as they would go after a change: what they take then.

Between two waits of the host, and between two things on a stream that others wait for,
nothing but sums and the latest launch decide when a group of work is done:

    done = max(done before + all its time, host + max(launch + time from there on))

Groups and their sums are computed for all of them at once; only from wait to wait the
replay goes step by step. The steps are run several times in a row, as a training loop
does, and the last round counts: in it the GPU is as far behind the host as it will be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from traceq.intervals import covered_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.replay.model import StepModel

_ROUNDS = 3
_SPANS = {"start": pl.Int64, "end": pl.Int64}


@dataclass(frozen=True, eq=False)
class Change:
    """What a fix changes in the steps."""

    kernels: frozenset[int] = frozenset()
    """Work on the GPU that goes or gets faster."""
    kernel_share: float = 0.0
    """The share of its time that goes."""
    spans: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_SPANS))
    """When the host was at what goes or gets faster: ``start`` and ``end``."""
    host_share: float = 0.0
    """The share of that time that goes."""
    syncs: frozenset[int] = frozenset()
    """Calls that do not block any more."""


@dataclass(frozen=True)
class TimeScale:
    """How long host and GPU take, against what they are thought to take."""

    host: float = 1.0
    gpu: float = 1.0
    recorded: bool = False
    """Whether the host takes as long as recorded, or as it does without that."""


AS_RECORDED = TimeScale(recorded=True)


@dataclass(frozen=True)
class Result:
    """How the steps went."""

    step_ns: float
    """What one of them takes in the long run."""
    host: Sequence[float]
    """When the host came out of each wait, from the beginning of the last round on."""
    entered: Sequence[float]
    """When each group of work could begin, launches aside."""


class Replay:
    """The steps of a trace, ready to be run again with changes."""

    def __init__(self, model: StepModel) -> None:
        """Cut the work into groups, and put groups and waits in one order."""
        self.model = model
        self._clocks: dict[TimeScale, tuple[pl.Series, list[float]]] = {}
        self._host_left: dict[Change, pl.Series] = {}
        self._work_left: dict[Change, pl.Series] = {}
        pieces, waits = model.host, model.waits
        self._edges = pl.concat([pieces["start"][:1], pieces["end"]])
        self._length = (pieces["end"] - pieces["start"]).cast(pl.Float64)
        self._awake = 1 - self._covered(waits)
        epoch = waits["start"].search_sorted(model.work["at"], side="left")
        marks = pl.concat([model.work["after"], waits["on"]]).drop_nulls().unique()
        row = pl.int_range(pl.len(), dtype=pl.UInt32)
        first = (
            (pl.col("lane") != pl.col("lane").shift(1))
            | (pl.col("epoch") != pl.col("epoch").shift(1))
            | pl.col("after").is_not_null()
            | row.is_in(marks.implode()).shift(1)
        ).fill_null(value=True)
        self.work = model.work.with_columns(epoch=epoch).with_columns(
            group=first.cum_sum() - 1
        )
        self._at = [
            self._edges.search_sorted(moments).clip(upper_bound=pieces.height)
            for moments in (self.work["at"], waits["end"], waits["start"])
        ]
        # Work whose launch is not in the file may begin when the host is done.
        self._late = (self.work["at"] - self._edges.last()).clip(lower_bound=0)
        group_of = self.work["group"]
        self.groups = self.work.group_by("group", maintain_order=True).agg(
            pl.col("lane", "epoch", "start", "after").first()
        )
        self._lane = self.groups["lane"].to_list()
        self._epoch = self.groups["epoch"].to_list()
        self._after = group_of.gather(self.groups["after"]).to_list()
        self._on = group_of.gather(waits["on"]).to_list()
        self._resume = waits["resume"].to_list()
        self._order = (
            pl.concat(
                [
                    self.groups.select("start", item=pl.col("group").cast(pl.Int64)),
                    waits.select(
                        start="end",
                        item=-1 - pl.int_range(pl.len(), dtype=pl.Int64),
                    ),
                ]
            )
            # A wait that ends as work begins was over before it.
            .sort("start", "item")["item"]
            .to_list()
        )

    def run(
        self, changes: Sequence[Change] = (), scale: TimeScale = AS_RECORDED
    ) -> Result:
        """Return how the steps go with these changes, host and GPU at this pace."""
        rounds = _ROUNDS if self.model.repeats else 1
        idle = [0.0] * (max(self._lane, default=0) + 1)
        return self._played(changes, scale, idle, rounds)

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
        """Go from wait to wait and from group to group, so many rounds."""
        launched, lengths = self._host_clock(changes, scale)
        gone = frozenset[int]().union(*(change.syncs for change in changes))
        waits = [call not in gone for call in self.model.waits["id"].to_list()]
        time, reach = self._sums(changes, scale, launched)
        lanes = [*behind]
        ends = [0.0] * len(self._lane)
        entered = [0.0] * len(self._lane)
        host = [0.0] * len(lengths)
        totals = [0.0]
        for _ in range(rounds):
            for item in self._order:
                if item >= 0:
                    lane, after = self._lane[item], self._after[item]
                    ready = lanes[lane]
                    if after is not None and ends[after] > ready:
                        ready = ends[after]
                    entered[item] = ready
                    launch = host[self._epoch[item]] + reach[item]
                    ready += time[item]
                    lanes[lane] = ends[item] = max(ready, launch)
                else:
                    at = -1 - item
                    now = host[at] + lengths[at]
                    if waits[at]:
                        on = self._on[at]
                        done = max(lanes) if on is None else ends[on]
                        now = max(now, done) + self._resume[at]
                    host[at + 1] = now
            began, host[0] = host[0], host[-1] + lengths[-1]
            totals.append(max(host[0], *lanes))
        host[0] = began
        return Result((totals[-1] - totals[-2]) / self.model.steps, host, entered)

    def timeline(self, scale: TimeScale) -> pl.DataFrame:
        """Return when work begins and is done in the last round, as ``work`` has it.

        ``begin`` and ``done`` count from when the host began the first round;
        ``launched`` says that it waited for the host's launch, ``worked`` how much the
        host had worked by then in this round.
        """
        run = self.run(scale=scale)
        launched, lengths = self._host_clock((), scale)
        starts = pl.Series([0.0, *lengths[:-1]], dtype=pl.Float64).cum_sum()
        epoch, group = self.work["epoch"], self.work["group"]
        time = (pl.col("gap") + pl.col("dur")) * scale.gpu
        entered = pl.Series(run.entered, dtype=pl.Float64).gather(group)
        host = pl.Series(run.host, dtype=pl.Float64).gather(epoch)
        reach = host + launched + pl.col("latency") - pl.col("gap") * scale.gpu
        latest = pl.max_horizontal(
            pl.col("reach").cum_max().shift(1).over("group"), "entered"
        )
        return (
            self.work.with_columns(time=time, worked=launched + starts.gather(epoch))
            .with_columns(until=pl.col("time").cum_sum() - pl.col("time"))
            .with_columns(
                reach=reach - pl.col("until"),
                entered=entered - pl.col("until").first().over("group"),
            )
            .with_columns(launched=pl.col("reach") > latest)
            .with_columns(
                done=pl.max_horizontal("reach", latest)
                + pl.col("until")
                + pl.col("time"),
            )
            .with_columns(begin=pl.col("done") - pl.col("dur") * scale.gpu)
            .drop("time", "until", "reach", "entered")
        )

    def host_time(self, scale: TimeScale) -> tuple[pl.Series, pl.Series]:
        """Return moments as recorded, and how much the host has worked until each."""
        return self._edges, self._worked((), scale)

    def moments(self, worked: pl.Series, scale: TimeScale) -> pl.Series:
        """Return when, as recorded, the host had worked so much."""
        edges, reached = self.host_time(scale)
        last = max(0, len(edges) - 2)
        at = (reached.search_sorted(worked, side="right").cast(pl.Int64) - 1).clip(
            0, last
        )
        start, end = (reached.gather(found) for found in (at, at + 1))
        inside = ((worked - start) / (end - start)).fill_nan(0).clip(0, 1)
        length = edges.gather(at + 1) - edges.gather(at)
        return edges.gather(at) + (inside * length).cast(pl.Int64)

    def _host_clock(
        self, changes: Sequence[Change], scale: TimeScale
    ) -> tuple[pl.Series, list[float]]:
        """Return the host's work since the last wait at each launch and each wait."""
        changes = [one for one in changes if one.host_share and one.spans.height]
        if not changes and scale in self._clocks:
            return self._clocks[scale]
        worked = self._worked(changes, scale)
        launched, ended, began = (worked.gather(found) for found in self._at)
        starts, ends = pl.concat([worked[:1], ended]), pl.concat([began, worked[-1:]])
        since = launched - starts.gather(self.work["epoch"]) + self._late
        clock = (since, (ends - starts).to_list())
        if not changes:
            self._clocks[scale] = clock
        return clock

    def _worked(self, changes: Sequence[Change], scale: TimeScale) -> pl.Series:
        """Return how much the host has worked at each edge of its pieces of time."""
        left = self._awake
        for change in changes:
            less = self._left_of_host(change)
            left = less.zip_with(less < left, left)
        own = self._length if scale.recorded else self.model.host["own"]
        return pl.concat([pl.Series([0.0]), (own * left * scale.host).cum_sum()])

    def _left_of_host(self, change: Change) -> pl.Series:
        """Return which part of each piece of the host's time a change leaves."""
        if change not in self._host_left:
            self._host_left[change] = 1 - change.host_share * self._covered(
                change.spans
            )
        return self._host_left[change]

    def _covered(self, spans: pl.DataFrame) -> pl.Series:
        """Return which part of each piece of the host's time the spans cover."""
        return covered_until(spans, self._edges).diff()[1:] / self._length

    def _left_of_work(self, change: Change) -> pl.Series:
        """Return which part of the time of each piece of work a change leaves."""
        if change not in self._work_left:
            mine = self.work["id"].is_in(list(change.kernels))
            self._work_left[change] = 1 - mine.cast(pl.Float64) * min(
                1.0, change.kernel_share
            )
        return self._work_left[change]

    def _sums(
        self, changes: Sequence[Change], scale: TimeScale, launched: pl.Series
    ) -> tuple[list[float], list[float]]:
        """Return for each group all its time, and what the host's launches allow."""
        work = self.work
        time = (work["gap"] + work["dur"]).cast(pl.Float64)
        for change in changes:
            if change.kernel_share and change.kernels:
                left = self._left_of_work(change)
                # With the work that goes, the gap before it goes too.
                less = (work["gap"] * (left > 0)) + work["dur"] * left
                time = less.zip_with(less < time, time)
        time *= scale.gpu
        until = time.cum_sum()
        sums = (
            pl.DataFrame(
                {
                    "group": work["group"],
                    "reach": launched + work["latency"] - work["gap"] - until + time,
                    "until": until,
                    "time": time,
                }
            )
            .group_by("group", maintain_order=True)
            .agg(pl.col("time").sum(), pl.max("reach") + pl.last("until"))
        )
        return sums["time"].to_list(), sums["reach"].to_list()

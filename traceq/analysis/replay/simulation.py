"""Discrete-event simulation of the steps with changes applied.

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

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
from msgspec import Struct, field

from traceq.analysis.replay import native_simulation
from traceq.common.intervals import Cover, count_before, count_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from traceq.analysis.replay.model import StepModel

    _Asked: TypeAlias = "tuple[tuple[Change, ...], TimeScale]"

_ROUNDS = 3
NO_SPANS = pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64})


class Change(Struct, frozen=True, eq=False, dict=True):
    """The effect of a fix on the steps."""

    kernels: frozenset[int] = frozenset()
    """GPU work that is removed or gets faster."""
    kernel_share: float = 0.0
    """The share of its time that is removed."""
    spans: pl.DataFrame = field(default_factory=lambda: NO_SPANS)
    """Host time that is removed or gets faster: ``start`` and ``end``."""
    host_share: float = 0.0
    """The share of that time that is removed."""
    syncs: frozenset[int] = frozenset()
    """Calls that do not block any more."""

    @cached_property
    def cover(self) -> Cover:
        """The spans, as a cover that can be queried."""
        return Cover(self.spans)


class TimeScale(Struct, frozen=True):
    """Scale of host and GPU time, relative to the model."""

    host: float = 1.0
    gpu: float = 1.0
    recorded: bool = False
    """True for the host's time as recorded, False for the estimate without the
    profiler."""


AS_RECORDED = TimeScale(recorded=True)


class Result(Struct, frozen=True):
    """The result of a run."""

    step_ns: float
    """Duration of a step in the steady state."""
    host: pl.Series
    """Start of each epoch of the last round on the host."""
    entered: pl.Series
    """Earliest start of each group of work, launches aside."""


class _HostClock(NamedTuple):
    """The host's own work, counted from the beginning of each epoch."""

    launches: pl.Series
    """Host work from the beginning of the epoch to each launch."""
    epochs: pl.Series
    """Host work of each epoch."""


class _Times(NamedTuple):
    """The duration of each piece of work."""

    time: pl.Series
    """With the gap before it."""
    gap: pl.Series
    before: pl.Series
    """The time of all work before it."""


class Replay:
    """The steps of a trace, ready to be simulated with changes."""

    def __init__(self, model: StepModel) -> None:
        """Cut the host's time into epochs and the work into groups."""
        self.model = model
        self._runs: dict[TimeScale, Result] = {}
        # The next question is often about the same changes, but of all of them the
        # answers would be large: the last one is kept.
        self._last: tuple[_Asked, Result] | None = None
        self._last_worked: tuple[_Asked, pl.Series] | None = None
        self._host_left: dict[Change, tuple[pl.Series, pl.Series]] = {}
        self._rows_of: dict[Change, pl.Series] = {}
        pieces, waits = model.host, model.waits
        self._edges = pl.concat([pieces["start"][:1], pieces["end"]], rechunk=True)
        self._length = (pieces["end"] - pieces["start"]).cast(pl.Float64)
        blocked, by = Cover(waits).between(self._edges)
        whole = pl.repeat(1.0, pieces.height, dtype=pl.Float64, eager=True)
        self._awake = whole.scatter(blocked, 1 - by / self._length[blocked])
        self.work = _grouped(model)
        launch, wait_start, wait_end = (
            count_before(self._edges, moments).clip(upper_bound=pieces.height)
            for moments in (self.work["launched_at"], waits["start"], waits["end"])
        )
        # Work whose launch is not in the file may begin when the host is done.
        late = (self.work["launched_at"] - self._edges.last()).clip(lower_bound=0)
        self._usual = native_simulation.Steps(
            worked=pl.Series([0.0]),
            stays=pl.repeat(1.0, model.work.height, dtype=pl.Float64, eager=True),
            launch=launch,
            late=late.cast(pl.Float64),
            epoch=self.work["epoch"],
            group=self.work["group"],
            latency=self.work["latency"].cast(pl.Float64),
            gap=self.work["gap"].cast(pl.Float64),
            dur=self.work["dur"].cast(pl.Float64),
            wait_start=wait_start,
            wait_end=wait_end,
        )
        groups = self.work.group_by("group", maintain_order=True).agg(
            pl.col("lane", "epoch", "start", "after").first()
        )
        self._groups = groups.height
        self._lanes = max(groups["lane"], default=0) + 1
        group_of = self.work["group"]
        order = _ordered(
            groups.with_columns(group_of[groups["after"]].alias("after")), waits
        )
        self._order = native_simulation.Order(
            group=_places(order["group"]),
            lane=_places(order["lane"]),
            epoch=_places(order["epoch"]),
            after=_places(order["after"]),
            waits_for=_places(group_of[waits["waits_for"]]),
            blocks=pl.repeat(1, waits.height, dtype=pl.UInt32, eager=True),
            resume=waits["resume"].cast(pl.Float64),
            behind=pl.repeat(0.0, self._lanes, dtype=pl.Float64, eager=True),
        )

    def run(
        self, changes: Sequence[Change] = (), scale: TimeScale = AS_RECORDED
    ) -> Result:
        """Return the result of the steps with these changes, at these speeds."""
        if not changes and scale in self._runs:
            return self._runs[scale]
        key = (tuple(changes), scale)
        # Looked at once: rules run at once, and another one may ask meanwhile.
        last = self._last
        if last is not None and last[0] == key:
            return last[1]
        rounds = _ROUNDS if self.model.repeats else 1
        result = self._played(changes, scale, self._order, rounds)
        if not changes:
            self._runs[scale] = result
        self._last = (key, result)
        return result

    def once(self) -> float:
        """Return the time of the steps when they run as recorded, and only once.

        As in the recording, the GPU may be behind when they begin.
        """
        begin = self._edges[0] if len(self._edges) else 0
        firsts = self.work.group_by("lane").agg(pl.col("before").first()).sort("lane")
        behind = [max(0.0, time - begin) for time in firsts["before"].fill_null(begin)]
        order = self._order._replace(
            behind=pl.Series(behind or [0.0], dtype=pl.Float64)
        )
        run = self._played((), AS_RECORDED, order, 1)
        return run.step_ns - max(behind, default=0.0) / self.model.steps

    def _played(
        self,
        changes: Sequence[Change],
        scale: TimeScale,
        order: native_simulation.Order,
        rounds: int,
    ) -> Result:
        """Go from blocking call to blocking call and from group to group."""
        steps = self._steps(changes, scale)
        removed = frozenset[int]().union(*(change.syncs for change in changes))
        if removed:
            calls = self.model.waits["id"]
            stay = ~calls.is_in(pl.Series(list(removed), dtype=calls.dtype).implode())
            order = order._replace(blocks=stay.cast(pl.UInt32))
        took, host, entered = native_simulation.played(
            steps, order, self._groups, scale.gpu, rounds
        ) or _rounds(steps, order, scale.gpu, rounds)
        return Result(took / self.model.steps, host, entered)

    def timeline(
        self, scale: TimeScale, changes: Sequence[Change] = ()
    ) -> pl.DataFrame:
        """Return start and end of the GPU work in the last round, ordered as ``work``.

        ``begin`` and ``done`` count from when the host began the first round;
        ``by_launch`` is whether its launch decided when it began, ``host_ns`` how much
        the host had worked until that launch in this round.
        """
        run = self.run(changes, scale)
        steps = self._steps(changes, scale)
        return self.work.hstack(
            native_simulation.timeline(steps, run.host, run.entered, scale.gpu)
            or _timeline(steps, run, scale.gpu)
        )

    def host_time(
        self, scale: TimeScale, changes: Sequence[Change] = ()
    ) -> tuple[pl.Series, pl.Series]:
        """Return moments as recorded, and how much the host has worked until each."""
        changes = [
            change for change in changes if change.host_share and change.spans.height
        ]
        return self._edges, self._worked(changes, scale)

    def moments(self, worked: pl.Series, scale: TimeScale) -> pl.Series:
        """Return the recorded moments at which the host has done this much work."""
        edges, reached = self.host_time(scale)
        last = max(0, len(edges) - 2)
        part = (count_until(reached, worked).cast(pl.Int64) - 1).clip(0, last)
        start, end = (reached[index] for index in (part, part + 1))
        inside = ((worked - start) / (end - start)).fill_nan(0).clip(0, 1)
        length = edges[part + 1] - edges[part]
        return edges[part] + (inside * length).cast(pl.Int64)

    def _steps(
        self, changes: Sequence[Change], scale: TimeScale
    ) -> native_simulation.Steps:
        """Return the steps with these changes."""
        _, worked = self.host_time(scale, changes)
        return self._usual._replace(worked=worked, stays=self._stays(changes))

    def _worked(self, changes: Sequence[Change], scale: TimeScale) -> pl.Series:
        """Return the cumulative host work at each edge of its pieces of time."""
        key = (tuple(changes), scale)
        last = self._last_worked
        if last is not None and last[0] == key:
            return last[1]
        left = self._awake
        if changes:
            left = left.clone()
        for change in changes:
            rows, less = self._left_of_host(change)
            before = left[rows]
            left = left.scatter(rows, less.zip_with(less < before, before))
        own = self._length if scale.recorded else self.model.host["own"]
        worked = native_simulation.worked(own, left, scale.host)
        if worked is None:
            sums = (own * left * scale.host).cum_sum()
            worked = pl.concat([pl.Series([0.0]), sums], rechunk=True)
        self._last_worked = (key, worked)
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

    def _stays(self, changes: Sequence[Change]) -> pl.Series:
        """Return the fraction of the time of each piece of work that remains."""
        stays = self._usual.stays
        changes = [item for item in changes if item.kernel_share and item.kernels]
        if changes:
            stays = stays.clone()
        for change in changes:
            rows = self._rows(change)
            left = 1 - min(1.0, change.kernel_share)
            stays = stays.scatter(rows, stays[rows].clip(upper_bound=left))
        return stays

    def _rows(self, change: Change) -> pl.Series:
        """Return the rows of the work that a change is in."""
        if change not in self._rows_of:
            chosen = pl.Series([*change.kernels], dtype=pl.UInt32)
            chosen = chosen.filter(chosen < len(self._row_of))
            self._rows_of[change] = self._row_of[chosen].drop_nulls()
        return self._rows_of[change]

    @cached_property
    def _row_of(self) -> pl.Series:
        """The row of each kernel's work, by its id; none for other kernels."""
        ids = self.work["id"]
        last = ids.max()
        count = last + 1 if isinstance(last, int) else 0
        rows = pl.int_range(len(ids), dtype=pl.UInt32, eager=True)
        return pl.repeat(None, count, dtype=pl.UInt32, eager=True).scatter(ids, rows)


def _rounds(
    steps: native_simulation.Steps,
    order: native_simulation.Order,
    scale: float,
    rounds: int,
) -> native_simulation.Played:
    """Return the simulated steps: the reference of the compiled code."""
    clock, times = _host_clock(steps), _times(steps, scale)
    epochs = clock.epochs.to_list()
    time, reach = _sums(steps, times, clock)
    items = list(zip(*order[:4], strict=True))
    waits_for, blocks, resume = (column.to_list() for column in order[4:7])
    lanes = order.behind.to_list()
    done = [0.0] * len(time)
    entered = [0.0] * len(time)
    host = [0.0] * len(epochs)
    totals = [0.0]
    for _ in range(rounds):
        for group, lane, epoch, after in items:
            if group != native_simulation.NO_GROUP:
                ready = lanes[lane]
                if after != native_simulation.NO_GROUP and done[after] > ready:
                    ready = done[after]
                entered[group] = ready
                launched = host[epoch] + reach[group]
                ready += time[group]
                # Not by max(): this is what a replay spends its time with.
                if launched > ready:  # noqa: PLR1730
                    ready = launched
                lanes[lane] = done[group] = ready
            else:
                now = host[epoch] + epochs[epoch]
                if blocks[epoch]:
                    target = waits_for[epoch]
                    every = target == native_simulation.NO_GROUP
                    finished = max(lanes) if every else done[target]
                    now = max(now, finished) + resume[epoch]
                host[epoch + 1] = now
        began, host[0] = host[0], host[-1] + epochs[-1]
        totals.append(max(host[0], *lanes))
    host[0] = began
    return native_simulation.Played(
        totals[-1] - totals[-2],
        pl.Series(host, dtype=pl.Float64),
        pl.Series(entered, dtype=pl.Float64),
    )


def _timeline(
    steps: native_simulation.Steps, run: Result, scale: float
) -> list[pl.Series]:
    """Return the columns of ``Replay.timeline``: the reference of the compiled code."""
    clock, times = _host_clock(steps), _times(steps, scale)
    worked_before = clock.epochs.cum_sum().shift(1, fill_value=0.0)
    # Counted without the time of the work before it, starts can be compared.
    entered_alone = pl.col("entered") - pl.col("time_before").first().over("group")
    before_it = pl.max_horizontal(
        pl.col("reach").cum_max().shift(1).over("group"), "entered"
    )
    return (
        pl.DataFrame(
            {
                "group": steps.group,
                "host_ns": clock.launches + worked_before[steps.epoch],
                "time_before": times.before,
                "reach": run.host[steps.epoch] + _reach_alone(steps, times, clock),
                "entered": run.entered[steps.group],
            }
        )
        .with_columns(entered=entered_alone)
        .with_columns(
            by_launch=pl.col("reach") > before_it,
            done=pl.max_horizontal("reach", before_it) + times.before + times.time,
        )
        .with_columns(begin=pl.col("done") - times.time + times.gap)
        .select("host_ns", "begin", "done", "by_launch")
        .get_columns()
    )


def _host_clock(steps: native_simulation.Steps) -> _HostClock:
    """Return the host's own work in its epochs."""
    worked = steps.worked
    begins = pl.concat([worked[:1], worked[steps.wait_end]])
    ends = pl.concat([worked[steps.wait_start], worked[-1:]])
    launched = worked[steps.launch]
    return _HostClock(launched - begins[steps.epoch] + steps.late, ends - begins)


def _times(steps: native_simulation.Steps, scale: float) -> _Times:
    """Return the duration of each work item."""
    # With removed work the gap before it is removed too.
    gap = steps.gap * (steps.stays > 0) * scale
    time = gap + steps.dur * steps.stays * scale
    return _Times(time, gap, time.cum_sum() - time)


def _reach_alone(
    steps: native_simulation.Steps, times: _Times, clock: _HostClock
) -> pl.Series:
    """Return the earliest starts by launches, without the time of earlier work."""
    return steps.latency + clock.launches - times.gap - times.before


def _sums(
    steps: native_simulation.Steps, times: _Times, clock: _HostClock
) -> tuple[list[float], list[float]]:
    """Return ``time`` and ``reach`` of each group."""
    work = {
        "group": steps.group,
        "time": times.time,
        "time_before": times.before,
        "reach": _reach_alone(steps, times, clock),
    }
    sums = (
        pl.DataFrame(work)
        .group_by("group", maintain_order=True)
        .agg(
            # One after the other, as compiled code adds; sum() has an order of its own.
            pl.col("time").cum_sum().last(),
            pl.max("reach") + pl.last("time_before") + pl.last("time"),
        )
    )
    return sums["time"].to_list(), sums["reach"].to_list()


def _places(column: pl.Series) -> pl.Series:
    """Return numbers of groups or others, as compiled code takes them."""
    return column.cast(pl.UInt32).fill_null(native_simulation.NO_GROUP)


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
    number = (first.cum_sum() - 1).cast(pl.UInt32)
    grouped = work.with_columns(epoch=epoch).with_columns(group=number)
    # Work of a group is next to each other, which makes grouping it faster.
    return grouped.with_columns(pl.col("group").set_sorted())


def _ordered(groups: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
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
    return items.select("group", "lane", "epoch", "after")

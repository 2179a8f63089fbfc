"""An account of the host's time: every nanosecond of a step belongs to one entry.

Operators are at their usual cost, or beyond it: the usual cost of an operator is what
its calls take on inputs that were seen before. Python is self time by function, with
what it calls in C++. Each entry has its time as recorded, the part of it during which
the GPU idled, which is all that can be saved, and an estimate without the profiler.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
from msgspec import Struct, structs

from traceq.analysis.base.assumptions import FIRST_USE_NS
from traceq.analysis.base.gpu_idle import idle_gaps
from traceq.analysis.base.ownership import named_like, outermost_ops
from traceq.analysis.base.sync_calls import FULL_QUEUE, blocking_calls
from traceq.analysis.patterns.optimizers import closures
from traceq.analysis.replay.unseen_stalls import unseen_stalls
from traceq.analysis.time.host_activity import (
    ENGINE,
    HOOKS,
    INTERRUPTED,
    LAUNCHES,
    LIBRARY,
    LOADING,
    MODULES,
    NO_STACKS,
    OPTIMIZER,
    PAUSED,
    PLACE,
    PYTHON,
    UNKNOWN,
    WITH_LIBRARIES,
    Described,
    describe,
)
from traceq.analysis.time.host_pauses import host_pauses, rows_of
from traceq.analysis.time.host_segments import host_segments
from traceq.analysis.time.op_calls import op_calls
from traceq.common.expressions import constant, known, rows_where
from traceq.common.intervals import covered_until, overlap
from traceq.common.progress import report_progress
from traceq.common.words import layer_names
from traceq.graph.host import only
from traceq.graph.nesting import INDEX, marked_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from traceq.analysis.replay.simulation import Replay, TimeScale
    from traceq.analysis.time.host_segments import HostSegments
    from traceq.model.trace import Trace

REPLAY_STAGES = 7
"""Number of progress reports of the replay and of this account."""
NEW_SHAPE = "operators on new shapes"
SLOW = "operators slower than usual"
_NODE = "^autograd::engine::evaluate_function"
# Activities of the main thread while backward runs in a thread of its own.
_OF_CALLER = (PYTHON, WITH_LIBRARIES, LIBRARY, MODULES, NO_STACKS, UNKNOWN)


_COLUMNS = (
    *("start", "end", "step", "at", "idle", "recorded", "estimated", "kind", "name"),
    *(*PLACE, "module", "op", "own", "caller", "library", "called"),
)
_TIMES = ("recorded", "idle", "estimated")
# Entries that are functions of the user's.
_FUNCTIONS = (PYTHON, WITH_LIBRARIES, HOOKS)


class HostAccount(Struct, frozen=True, dict=True):
    """The host's time of a step, by entry.

    A long recording has millions of spans: what the host did in them is looked up for
    those that are asked for.
    """

    calls: pl.DataFrame
    """Operator calls: ``op``, ``name``, ``own`` (time in no other op, launches aside),
    ``usual``, ``excess`` (0 unless it is far beyond the usual), ``idle``, ``new`` (the
    first use of this op on these inputs), ``planned``, ``loads`` and ``unseen`` (of the
    excess, what steps timed without the profiler do not have)."""
    spans: pl.DataFrame
    """The host's time in order: ``start``, ``end``, ``at`` (the row of the host's
    tree) and ``activity``, what the host did."""
    described: Described
    """Descriptions of the activities and of the rows of the host's tree."""
    host: HostSegments
    pauses: pl.DataFrame
    """Long pauses of the host in few steps, in order: ``start``, ``end``,
    ``step``, ``usual`` (what is there in the median step), and of what takes longest of
    it ``at``, ``activity`` and ``longest_start`` to ``longest_end``."""
    gaps: pl.DataFrame
    """Idle gaps of the GPU."""
    replay: Replay
    scale: TimeScale
    """Speed of the host without the profiler."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.host.steps

    @property
    def idle_ns(self) -> int:
        """Idle time of the GPU in all steps, as recorded."""
        return int(overlap(self.host.windows, self.gaps).sum())

    @cached_property
    def segments(self) -> pl.DataFrame:
        """All of the host's time, with all columns of ``describe``."""
        return self.describe(self.spans)

    def of(self, activity: pl.Expr, *columns: str) -> pl.DataFrame:
        """Return the host time at activities for which this holds, as ``describe``."""
        chosen = known(self.described.activities.select(activity).to_series())
        if not chosen.any():
            return self.describe(self.spans.clear(), *columns)
        # Few are chosen, mostly: these are looked up, not all spans filtered.
        rows = rows_where(marked_at(chosen, self.spans["activity"]))
        return self.describe(self.spans[rows], *columns)

    def own_time(self, ops: Collection[int]) -> pl.DataFrame:
        """Return the host's self time in ops, without ops or launches in them."""
        chosen = known(self.host.op.is_in(list(ops)))
        chosen &= self.described.activities["own"][self.described.activity]
        return self.describe(self.spans.filter(chosen[self.spans["at"]]))

    def describe(self, spans: pl.DataFrame, *columns: str) -> pl.DataFrame:
        """Return all columns, or some, that describe the given spans.

        ``start``, ``end``, ``step``, ``at``, ``idle`` (of it, while the GPU idled),
        ``recorded``, ``estimated`` (without the profiler), ``kind``, ``name``,
        ``file``, ``line``, ``function``, ``module``, ``op`` (around it), ``own``
        (whether it is of that op), ``caller``, ``library`` and ``called`` (see
        host_kinds); ``activity`` if it is asked for.
        """
        return pl.DataFrame(
            {column: self._column(spans, column) for column in columns or _COLUMNS}
        )

    def _column(self, spans: pl.DataFrame, column: str) -> pl.Series:
        if column in self.described.activities.columns:
            return self.described.activities[column][spans["activity"]]
        return _COMPUTED[column](self, spans) if column in _COMPUTED else spans[column]

    @cached_property
    def entries(self) -> pl.DataFrame:
        """The entries, the largest estimate first.

        ``kind``, ``name`` (of the op, function, library or call), the user's ``file``,
        ``line`` and ``function``, ``module``; per step ``calls`` and, in ns,
        ``recorded``, ``idle`` (of it, while the GPU idled) and ``estimated`` (without
        the profiler).
        """
        return _entries(self)

    @property
    def kinds(self) -> pl.DataFrame:
        """The entries by ``kind``, the largest estimate first."""
        return self._by("kind")

    @property
    def lines(self) -> pl.DataFrame:
        """The entries by kind, name and place, all modules together."""
        return self._by("kind", "name", *PLACE)

    @property
    def modules(self) -> pl.DataFrame:
        """The time in each module, with what it calls, all layers together.

        ``module`` is a path without numbers, ``depth`` its length less one; the largest
        estimate is first among siblings. Without the time that is in no module.
        """
        parts = layer_names(pl.col("module")).str.split("/")
        depths = pl.int_ranges(pl.col("path").list.len())
        by_module = (
            self.entries.select(*_TIMES, path=parts)
            .drop_nulls("path")
            .group_by("path")
            .agg(pl.col(_TIMES).sum())
            .with_columns(depth=depths)
            .explode("depth")
            .with_columns(path=pl.col("path").list.head(pl.col("depth") + 1))
            .group_by("path", "depth")
            .agg(pl.col(_TIMES).sum())
            .with_columns(module=pl.col("path").list.join("/"))
        )
        return _in_order(by_module).drop("path")

    def _by(self, *keys: str) -> pl.DataFrame:
        return (
            self.entries.group_by(keys)
            .agg(pl.col(*_TIMES, "calls").sum())
            .sort("estimated", *keys, descending=[True, *(False for _ in keys)])
        )


def host_account(trace: Trace, replay: Replay, scale: TimeScale) -> HostAccount:
    """Return the account of the steady-state steps, or of a trace without steps."""
    report_progress("replay", 3, REPLAY_STAGES)
    host = host_segments(trace)
    report_progress("replay", 4, REPLAY_STAGES)
    full = blocking_calls(trace).filter(pl.col("kind") == FULL_QUEUE)
    waits = pl.concat([replay.model.waits["id"], full["id"]]).unique()
    calls = _with_unseen(trace, op_calls(trace))
    report_progress("replay", 5, REPLAY_STAGES)
    described = _with_excess(describe(trace, host, waits), calls)
    report_progress("replay", 6, REPLAY_STAGES)
    # Where nothing is open, nothing is known either.
    nothing = UNKNOWN if trace.frames.height else NO_STACKS
    activities = described.activities.with_columns(
        pl.col("kind").replace(UNKNOWN, nothing)
    )
    activity = described.activity[host.segments["at"]]
    # Work in an optimizer's closure is not the optimizer's.
    moved = _Moved((OPTIMIZER,), nothing, _NO_NAME)
    activities, activity = _as_others(
        activities, activity, _in_closures(trace, host), moved
    )
    moved = _Moved((LAUNCHES,), LOADING, _NO_NAME)
    activities, activity = _as_others(
        activities, activity, _in_first_launches(trace, host, waits), moved
    )
    # Between nodes the main thread knows no more than that it waits.
    moved = _Moved(_OF_CALLER, ENGINE, pl.lit("torch"))
    activities, activity = _as_others(
        activities, activity, _between_nodes(trace, host), moved
    )
    pauses = host_pauses(trace, host, activities, activity)
    longest = host.segments[pauses["longest"]]
    pauses = pauses.with_columns(
        at=longest["at"],
        activity=activity[pauses["longest"]],
        longest_start=longest["start"],
        longest_end=longest["end"],
    )
    # A mean over all steps would count a part of them as work of each.
    moved = _Moved(INTERRUPTED, PAUSED, pl.col("name"))
    activities, activity = _as_others(activities, activity, rows_of(pauses), moved)
    return HostAccount(
        calls,
        host.segments.with_columns(activity=activity),
        structs.replace(described, activities=activities),
        host,
        pauses,
        idle_gaps(trace),
        replay,
        scale,
    )


def _with_unseen(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls with ``unseen``: what timed steps do not have of the excess."""
    unseen = constant(0, trace.ops.height, pl.Int64)
    stalls = unseen_stalls(trace)
    if stalls.height:
        unseen = unseen.scatter(stalls["op"], stalls["unseen"])
    return calls.with_columns(unseen=unseen[calls["op"]])


def _between(spans: pl.DataFrame, until: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """Return the amount in each of the ordered spans, from a cumulative function."""
    start, end = spans["start"], spans["end"]
    before = until(start)
    # Nearly all end where the next one begins.
    after = before.shift(-1)
    last = rows_where(end.ne_missing(start.shift(-1)))
    return after.scatter(last, until(end[last])) - before


def _worked(replay: Replay, scale: TimeScale, moments: pl.Series) -> pl.Series:
    """Return the host's work until each moment; the moments are in order."""
    edges, worked = replay.host_time(scale)
    pieces = pl.DataFrame({"begin": edges, "before": worked}).select(
        "begin",
        "before",
        rate=(pl.col("before").diff() / pl.col("begin").diff()).shift(-1, fill_value=0),
    )
    inside = moments.clip(edges[0], edges[-1]).alias("moment").to_frame()
    return (
        inside.join_asof(pieces, left_on="moment", right_on="begin")
        .select(
            pl.col("before") + (pl.col("moment") - pl.col("begin")) * pl.col("rate")
        )
        .to_series()
    )


def _between_nodes(trace: Trace, host: HostSegments) -> pl.Series:
    """Return the segments that lie between nodes of a backward in another thread."""
    is_node = named_like(trace.ops, _NODE)
    if not is_node.any():
        return pl.Series(dtype=INDEX)
    contexts, at = host.contexts, host.segments["at"]
    of_node = is_node[outermost_ops(trace)[contexts.op]]
    in_op = rows_where(host.in_contexts(of_node.is_not_null()))
    # Nearly all segments in ops follow each other: what lies between others is short.
    wide = rows_where(in_op[1:] - in_op[:-1] > 1)
    gaps = pl.DataFrame({"before": in_op[wide], "after": in_op[wide + 1]})
    both = (
        known(of_node[contexts.number[at[gaps[side]]]]) for side in ("before", "after")
    )
    pairs = (
        gaps.filter(*both)
        .select("before", segment=pl.int_ranges(pl.col("before") + 1, "after"))
        .explode("segment")
    )
    before, between = (
        host.thread(at[pairs[column]]) for column in ("before", "segment")
    )
    return pairs["segment"].filter(before != between)


def _in_first_launches(trace: Trace, host: HostSegments, waits: pl.Series) -> pl.Series:
    """Return the segments of a kernel's first launch that loads the kernel's code.

    It takes far longer than a launch, and does not wait for room in the queue.
    """
    launched = trace.kernels[["name", "ts", "launch"]].drop_nulls("launch").sort("ts")
    first = launched.unique("name", keep="first", maintain_order=True)["launch"]
    long = trace.runtime["dur"][first] >= FIRST_USE_NS
    loading = first.filter(long & ~first.is_in(waits.implode()))
    if not len(loading):
        return pl.Series(dtype=INDEX)
    at = host.contexts.rows_of("runtime").is_in(loading.implode())
    return rows_where(host.in_contexts(known(at)))


def _in_closures(trace: Trace, host: HostSegments) -> pl.Series:
    """Return the segments of optimizers' regions in which a closure was running."""
    closed = closures(trace)
    if not closed.height:
        return pl.Series(dtype=INDEX)
    until = constant(0, trace.annotations.height, pl.Int64)
    until = until.scatter(closed["region"], closed["closed"])
    regions = host.contexts.rows_of("annotations")
    rows = rows_where(host.in_contexts(known((until > 0)[regions])))
    inside = host.segments[rows]
    # Regions that are called alike share a context, but each has its own closure.
    return rows.filter(inside["start"] < until[host.tree["row"][inside["at"]]])


_NO_NAME = pl.lit(None, pl.String)


class _Moved(NamedTuple):
    """Activities that are reassigned to another kind."""

    kinds: Sequence[str]
    """Of which kinds they are."""
    kind: str
    name: pl.Expr


def _as_others(
    activities: pl.DataFrame, activity: pl.Series, segments: pl.Series, moved: _Moved
) -> tuple[pl.DataFrame, pl.Series]:
    """Return the activities, and which each segment is, with some segments moved."""
    if not len(segments):
        return activities, activity
    chosen = activities["kind"].is_in(moved.kinds)
    number = only(chosen.cast(INDEX).cum_sum() - 1, chosen) + activities.height
    other = number[activity[segments]]
    rows = segments.filter(other.is_not_null())
    more = activities.filter(chosen).with_columns(
        kind=pl.lit(moved.kind), name=moved.name.cast(pl.String)
    )
    return pl.concat([activities, more]), activity.scatter(rows, other.drop_nulls())


def _with_excess(described: Described, calls: pl.DataFrame) -> Described:
    """Return rows described, those of ops slower than usual with another kind."""
    reason = (
        pl.when(pl.col("new") & pl.col("planned"))
        .then(pl.lit(NEW_SHAPE))
        .when("loads")
        .then(pl.lit(LOADING))
        .otherwise(pl.lit(SLOW))
    )
    slow = calls.filter(pl.col("excess") > 0).select("op", kind=reason)
    if not slow.height:
        return described
    activity, activities = described.activity, described.activities
    own = rows_where(marked_at(activities["own"], activity))
    slow_rows = pl.DataFrame(
        {"row": own, "activity": activity[own], "op": described.host.op[own]}
    ).join(slow, on="op", maintain_order="left")
    more = slow_rows.select("activity", "kind").unique(maintain_order=True)
    number = slow_rows.join(
        more.with_row_index("number", activities.height),
        on=["activity", "kind"],
        maintain_order="left",
    )["number"]
    return structs.replace(
        described,
        activity=activity.clone().scatter(slow_rows["row"], number),
        activities=pl.concat(
            [activities, activities[more["activity"]].with_columns(more["kind"])],
        ),
    )


def _in_order(modules: pl.DataFrame) -> pl.DataFrame:
    """Return a tree of modules with each after the one around it."""
    sizes = dict(modules.select("module", "estimated").iter_rows())

    def rank(path: Sequence[str]) -> list[tuple[float, str]]:
        outer = ("/".join(path[:end]) for end in range(1, len(path) + 1))
        return [(-sizes[module], module) for module in outer]

    order = sorted(range(modules.height), key=[*map(rank, modules["path"])].__getitem__)
    return modules[order]


def _entries(account: HostAccount) -> pl.DataFrame:
    spans, steps = account.spans, account.steps
    activities = account.described.activities.select("kind", "name", *PLACE, "module")
    entries = activities.unique(maintain_order=True).with_row_index("entry")
    entry = activities.join(
        entries, on=activities.columns, nulls_equal=True, maintain_order="left"
    )["entry"]
    # Calls of the function, not of what is built in to it.
    of_function = activities["kind"].is_in(_FUNCTIONS)[spans["activity"]]
    timed = account.describe(spans, "at", "caller", *_TIMES)
    called = timed["caller"].zip_with(of_function, timed["at"])
    return (
        timed.with_columns(entry=entry[spans["activity"]], called=called)
        .group_by("entry")
        .agg(
            calls=pl.col("called").drop_nulls().n_unique() / steps,
            **{column: pl.col(column).sum() / steps for column in _TIMES},
        )
        .join(entries, on="entry")
        .select(*activities.columns, "calls", *_TIMES)
        .sort("estimated", "kind", "name", descending=[True, False, False])
    )


def _step(account: HostAccount, spans: pl.DataFrame) -> pl.Series:
    windows = account.host.windows
    begun = windows["start"].search_sorted(spans["start"], side="right")
    return windows["step"][begun - 1]


def _idle(account: HostAccount, spans: pl.DataFrame) -> pl.Series:
    return _between(spans, partial(covered_until, account.gaps))


def _estimated(account: HostAccount, spans: pl.DataFrame) -> pl.Series:
    """Return the time without the profiler, which is never longer than with it.

    A step that was measured to take longer than those that were recorded scales all of
    the host's time, that of searches too.
    """
    result = _between(spans, partial(_worked, account.replay, account.scale))
    recorded = spans["end"] - spans["start"]
    return result.zip_with(result <= recorded, recorded.cast(result.dtype))


# Columns that are looked up or computed only for the requested spans.
_COMPUTED: Mapping[str, Callable[[HostAccount, pl.DataFrame], pl.Series]] = {
    "step": _step,
    "at": lambda account, of: only(of["at"], of["at"] < account.host.nothing),
    "op": lambda account, of: account.host.op[of["at"]],
    "caller": lambda account, of: account.described.caller[of["at"]],
    "recorded": lambda _, of: of["end"] - of["start"],
    "idle": _idle,
    "estimated": _estimated,
}

"""An account of the host's time: every nanosecond of a step belongs to one entry.

Operators are at their usual cost, or beyond it: the usual cost of an operator is what
its calls take on inputs that were seen before. Python is self time by function, with
what it calls in C++. Each entry has its time as recorded, the part of it during which
the GPU idled, which is all that can be saved, and an estimate without the profiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.sync_calls import FULL_QUEUE, blocking_calls
from traceq.analysis.time.host_kinds import (
    ENGINE,
    HOOKS,
    LIBRARY,
    MODULES,
    NO_STACKS,
    PLACE,
    PYTHON,
    UNKNOWN,
    WITH_LIBRARIES,
    describe,
)
from traceq.analysis.time.host_segments import host_segments
from traceq.analysis.time.op_calls import op_calls
from traceq.expressions import known
from traceq.graph.nesting import nearest
from traceq.watching import tell
from traceq.words import layer_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.replay.simulation import Replay, TimeScale
    from traceq.analysis.time.host_segments import HostSegments
    from traceq.trace import Trace

REPLAY_STAGES = 7
"""How often it is said how far the replay and this account of it are."""
NEW_SHAPE = "operators on new shapes"
LOADING = "loading kernels"
SLOW = "operators slower than usual"
_NODE = "^autograd::engine::evaluate_function"
# What belongs to the main thread while backward runs in one of its own.
_OF_CALLER = (PYTHON, WITH_LIBRARIES, LIBRARY, MODULES, NO_STACKS, UNKNOWN)


_TIMES = ("recorded", "idle", "estimated")
# Entries that are functions of the user's.
_FUNCTIONS = (PYTHON, WITH_LIBRARIES, HOOKS)


@dataclass(frozen=True)
class HostAccount:
    """Where the host's time of a step goes."""

    calls: pl.DataFrame
    """Operator calls: ``op``, ``name``, ``own`` (time in no other op, launches aside),
    ``usual``, ``excess`` (0 unless it is far beyond the usual), ``idle``, ``new`` (the
    first use of this op on these inputs), ``planned`` and ``loads``."""
    segments: pl.DataFrame
    """The host's time in order: ``start``, ``end``, ``idle``, ``kind``, ``name``,
    ``file``, ``line``, ``function``, ``op`` (around it), ``own`` (of that op),
    ``caller``, ``library`` and ``called`` (see host_kinds)."""
    steps: int

    @cached_property
    def entries(self) -> pl.DataFrame:
        """The entries, the largest estimate first.

        ``kind``, ``name`` (of the op, function, library or call), the user's ``file``,
        ``line`` and ``function``, ``module``; per step ``calls`` and, in ns,
        ``recorded``, ``idle`` (of it, while the GPU idled) and ``estimated`` (without
        the profiler).
        """
        return _entries(self.segments, self.steps)

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
        found = (
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
        return _in_order(found).drop("path")

    def _by(self, *keys: str) -> pl.DataFrame:
        return (
            self.entries.group_by(keys)
            .agg(pl.col(*_TIMES, "calls").sum())
            .sort("estimated", *keys, descending=[True, *(False for _ in keys)])
        )


def host_account(trace: Trace, replay: Replay, scale: TimeScale) -> HostAccount:
    """Return the account of the steady-state steps, or of a trace without steps."""
    tell("replay", 3, REPLAY_STAGES)
    host = host_segments(trace)
    tell("replay", 4, REPLAY_STAGES)
    worked = [_worked(replay, scale, host.segments[side]) for side in ("start", "end")]
    segments = host.segments.with_columns(
        recorded=pl.col("end") - pl.col("start"), estimated=worked[1] - worked[0]
    )
    full = blocking_calls(trace).filter(pl.col("kind") == FULL_QUEUE)
    waits = pl.concat([replay.model.waits["id"], full["id"]]).unique()
    tell("replay", 5, REPLAY_STAGES)
    rows = describe(trace, host, waits)
    calls = op_calls(trace)
    nothing = UNKNOWN if trace.frames.height else NO_STACKS
    described = segments.join(
        _with_excess(rows, calls), on="at", how="left", maintain_order="left"
    ).with_columns(
        pl.col("kind").replace(UNKNOWN, nothing).fill_null(nothing),
        pl.col("own").fill_null(value=False),
    )
    tell("replay", 6, REPLAY_STAGES)
    described = _with_engine(trace, host, described)
    return HostAccount(calls, described, host.steps)


def _with_engine(
    trace: Trace, host: HostSegments, segments: pl.DataFrame
) -> pl.DataFrame:
    """Return the segments, with autograd's engine between the nodes of a backward.

    Of that time the main thread knows nothing but that it waits, if that.
    """
    ops, op = trace.ops, segments["op"]
    root = nearest(ops["parent"], ops["parent"].is_null())[op]
    node = ops["name"].cast(pl.String).str.contains(_NODE)[root]
    thread = ops["thread"][op]
    mine = host.tree["thread"][segments["at"]]
    around = pl.DataFrame({"node": node, "thread": thread, "mine": mine}).with_columns(
        before=pl.col("node").forward_fill(),
        after=pl.col("node").backward_fill(),
        of=pl.col("thread").forward_fill(),
    )
    between = around.select(
        known(pl.col("before") & pl.col("after"))
        & pl.col("node").is_null()
        & (pl.col("mine").is_null() | (pl.col("mine") != pl.col("of")))
    ).to_series()
    engine = between & segments["kind"].is_in(_OF_CALLER)
    return segments.with_columns(
        kind=pl.when(engine).then(pl.lit(ENGINE)).otherwise("kind"),
        name=pl.when(engine).then(pl.lit("torch")).otherwise("name"),
    )


def _worked(replay: Replay, scale: TimeScale, moments: pl.Series) -> pl.Series:
    """Return how long the host has worked until each moment, at this speed."""
    edges, worked = replay.host_time(scale)
    at = edges.search_sorted(moments, side="right").cast(pl.Int64) - 1
    at = at.clip(0, max(0, len(edges) - 2))
    begin, end = edges[at], edges[at + 1]
    into = ((moments - begin) / (end - begin)).clip(0, 1)
    return worked[at] + into * (worked[at + 1] - worked[at])


def _with_excess(rows: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the rows, with a kind of their own where an op was slower than usual."""
    reason = (
        pl.when(pl.col("new") & pl.col("planned"))
        .then(pl.lit(NEW_SHAPE))
        .when("loads")
        .then(pl.lit(LOADING))
        .otherwise(pl.lit(SLOW))
    )
    slow = calls.filter(pl.col("excess") > 0).select("op", reason=reason)
    return rows.join(slow, on="op", how="left", maintain_order="left").with_columns(
        kind=pl.when(pl.col("own") & pl.col("reason").is_not_null())
        .then("reason")
        .otherwise("kind")
    )


def _called() -> pl.Expr:
    """Return what to count: calls of the function, not of what is built in to it."""
    return pl.when(pl.col("kind").is_in(_FUNCTIONS)).then("caller").otherwise("at")


def _in_order(modules: pl.DataFrame) -> pl.DataFrame:
    """Return a tree of modules with each after the one around it."""
    sizes = dict(modules.select("module", "estimated").iter_rows())

    def rank(path: Sequence[str]) -> list[tuple[float, str]]:
        outer = ("/".join(path[:end]) for end in range(1, len(path) + 1))
        return [(-sizes[one], one) for one in outer]

    order = sorted(range(modules.height), key=[*map(rank, modules["path"])].__getitem__)
    return modules[order]


def _entries(segments: pl.DataFrame, steps: int) -> pl.DataFrame:
    return (
        segments.group_by("kind", "name", *PLACE, "module", maintain_order=True)
        .agg(
            calls=_called().drop_nulls().n_unique() / steps,
            **{one: pl.col(one).sum() / steps for one in _TIMES},
        )
        .sort("estimated", "kind", "name", descending=[True, False, False])
    )

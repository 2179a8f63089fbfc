"""Host time of a step that compiling or CUDA graphs remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions, ownership
from traceq.analysis.patterns import optimizers
from traceq.analysis.time import host_activity
from traceq.linter import Fix, View, cached_per_trace, fill_false, text

from ._graphed_model import OUTER_MODULE, accumulates, graphed_model
from ._obstacle import UNCOMPILED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.replay.host_account import HostAccount
    from traceq.linter import Trace

    from ._graphed_model import GraphedModel
    from ._obstacle import Obstacle

_CALLS = (
    host_activity.LAUNCHES,
    "copies and sets",
    "allocating memory",
    "other runtime calls",
)
# What a model that runs as a CUDA graph does not do any more; its Python goes with it.
OF_OPS = (host_activity.DISPATCH, host_activity.ENGINE, *_CALLS)
_OF_MODEL = (
    *OF_OPS,
    host_activity.MODULES,
    host_activity.LIBRARY,
    host_activity.NO_STACKS,
)


def replayed(view: View) -> bool:
    """Return whether CUDA graphs are replayed in the steps."""
    return bool((view.runtime["call"] == "graph launch").any())


_IS_TORCH = text("library").str.contains("^(torch|<)").fill_null(value=True)


def _of(kinds: Sequence[str]) -> pl.Expr:
    """Return the activities of these kinds that a graph removes, in modules only."""
    removed = pl.col("kind").is_in(list(kinds))
    if host_activity.LIBRARY in kinds:
        # What a trainer does around the model, as logging, stays.
        around = pl.col("module").is_null() & ~_IS_TORCH
        removed &= ~((pl.col("kind") == host_activity.LIBRARY) & around)
    if host_activity.MODULES in kinds:
        python = pl.col("kind").is_in(
            [host_activity.PYTHON, host_activity.WITH_LIBRARIES]
        )
        removed |= python & pl.col("module").is_not_null()
    return removed


def removed_time(view: View, activities: pl.Expr) -> pl.DataFrame:
    """Return when the host is at activities, but for those that the optimizer does."""
    return _without_optimizer(
        view.trace, view.host_account.of(activities, "start", "end", "op")
    )


def _without_optimizer(trace: Trace, segments: pl.DataFrame) -> pl.DataFrame:
    stays = fill_false(trace.ops["phase"] == "optimizer")[segments["op"]]
    return segments.select("start", "end").filter(~fill_false(stays))


@cached_per_trace
def _in_graph(trace: Trace, account: HostAccount, model: GraphedModel) -> pl.DataFrame:
    """Return when the host is at what the model does not do any more as a graph."""
    columns = ("start", "end", "op", "kind")
    if model.modules is not None:
        own = OUTER_MODULE.is_in(model.modules.implode())
        segments = account.of(_of(_OF_MODEL) & own, *columns)
    else:
        segments = account.of(
            _of(_OF_MODEL) & (pl.col("kind") != host_activity.ENGINE), *columns
        )
        segments = segments.filter(model.are_in_windows(trace, segments))
    return _only_dispatch(trace, account, segments)


@cached_per_trace
def _outside_optimizer(trace: Trace, account: HostAccount) -> pl.DataFrame:
    """Return when the host is at ops and their Python, in a model or around it."""
    segments = account.of(_of(_OF_MODEL), "start", "end", "op", "kind")
    return _only_dispatch(trace, account, segments)


def _only_dispatch(
    trace: Trace, account: HostAccount, segments: pl.DataFrame
) -> pl.DataFrame:
    """Return what only calls kernels: no gaps, no pauses, and no work on the host."""
    longest = (
        assumptions.MOST_IN_TRAINER_NS
        if optimizers.closures(trace).height
        else assumptions.MOST_OF_MODEL_NS
    )
    slow = account.calls.filter(
        pl.col("own") > assumptions.MOST_DISPATCH_NS,
        pl.col("name").str.starts_with("aten::"),
    )
    working = fill_false(pl.col("op").is_in(slow["op"].implode()))
    paused = pl.col("end") - pl.col("start") > assumptions.MOST_BETWEEN_OPS_NS
    return _without_optimizer(
        trace, segments.filter(~_is_gap(longest), ~paused, ~working)
    )


@cached_per_trace
def _one_by_one(trace: Trace, account: HostAccount) -> pl.DataFrame:
    """Return when the host is at ops that launch beside graphs which are replayed.

    What is around a replay, as guards and wrappers of compiled code, stays.
    """
    calls = trace.runtime.filter(pl.col("kernels") > 0)
    replays = calls["call"] == "graph launch"
    launching, around = (
        calls["op"].filter(chosen).drop_nulls().unique()
        for chosen in (~replays, replays)
    )
    outermost = ownership.outermost_ops(trace)
    apart = outermost[launching].unique()
    apart = apart.filter(~apart.is_in(outermost[around].implode()))
    segments = account.of(_of(OF_OPS), "start", "end", "op")
    op = segments["op"]
    chosen = outermost[op].is_in(apart.implode()) | op.is_in(launching.implode())
    return _without_optimizer(trace, segments.filter(fill_false(chosen)))


def _is_gap(most_ns: int = assumptions.MOST_BETWEEN_OPS_NS) -> pl.Expr:
    """Return whether unrecorded time is too long to be Python of the model."""
    long = pl.col("end") - pl.col("start") > most_ns
    return long & (pl.col("kind") == host_activity.NO_STACKS)


@cached_per_trace
def gaps_between(trace: Trace, account: HostAccount) -> tuple[int, float]:  # noqa: ARG001 - it is kept for the trace
    """Return how often nothing was recorded for too long, and for how long in all."""
    if not (account.described.activities["kind"] == host_activity.NO_STACKS).any():
        return 0, 0.0
    columns = ("start", "end", "kind", "estimated")
    gaps = account.of(pl.col("kind") == host_activity.NO_STACKS, *columns).filter(
        _is_gap()
    )
    return gaps.height, float(gaps["estimated"].sum())


def mostly_gaps(view: View) -> bool:
    _, gaps_ns = gaps_between(view.trace, view.host_account)
    return gaps_ns / view.steps > view.waits.idle_ns / 2


def fixes_of_graph(view: View, obstacles: Sequence[Obstacle]) -> list[Fix]:
    """Return what a graph removes: the host's part, and the gaps between kernels.

    A model that is compiled for it also computes chains of small operators at once.
    """
    trace, account = view.trace, view.host_account
    if replayed(view):
        return [
            Fix(
                spans=_one_by_one(trace, account),
                host_share=assumptions.GRAPH_HOST_SAVED,
            )
        ]
    gaps_ns = float(view.replay.work["gap"].sum())
    share = min(
        1 - assumptions.COMPILED_GPU_SHARE, gaps_ns / max(1, view.steady.gpu_busy)
    )
    if view.compiled or uncompiled(obstacles):
        # It is compiled, and calls take what they take; or it is not to be compiled.
        spans = _outside_optimizer(trace, account)
        kernels = view.kernels.filter(~fill_false(view.kernels["phase"] == "optimizer"))
        return [
            Fix(spans=spans, host_share=assumptions.GRAPH_HOST_SAVED),
            Fix(kernels=kernels["id"], kernel_share=share),
        ]
    model = graphed_model(trace, view.steady)
    if not model.host_share:
        return []
    engine = removed_time(view, pl.col("kind") == host_activity.ENGINE)
    return [
        Fix(spans=_in_graph(trace, account, model), host_share=model.host_share),
        Fix(spans=engine, host_share=model.host_share * model.node_share),
        Fix(kernels=model.kernels, kernel_share=share),
        *(
            Fix(kernels=fused, kernel_share=saved)
            for fused, saved in view.all_chains.by_share(model.kernels).iter_rows()
        ),
    ]


def around_ns(view: View) -> float:
    """Return how long the host is at ops outside of the model in a step."""
    if replayed(view) or view.compiled:
        return 0.0
    model = graphed_model(view.trace, view.steady)
    if model.modules is None:
        return 0.0
    own = OUTER_MODULE.is_in(model.modules.implode())
    ops = pl.col("kind").is_in([host_activity.DISPATCH, host_activity.LAUNCHES])
    segments = view.host_account.of(ops & ~fill_false(own), "op", "estimated")
    phase = view.trace.ops["phase"][segments["op"]]
    accumulated = accumulates(view.trace, segments["op"])
    stays = ~fill_false(phase == "optimizer") & ~accumulated
    return float(segments["estimated"].filter(stays).sum()) / view.steps


def uncompiled(obstacles: Sequence[Obstacle]) -> bool:
    return any(obstacle.reason in UNCOMPILED for obstacle in obstacles)


def unexplained_idle_ns(view: View) -> float:
    """Return how long the GPU idled as recorded, in the share that is not explained."""
    before = view.bound.waits.idle_ns if view.bound.waits else 0.0
    # Of gaps between kernels; a step may also begin or end with the GPU idle.
    steady = view.steady
    idle_ns = view.host_account.idle_ns or steady.time - steady.gpu_busy
    recorded = idle_ns / view.steps
    lasting_ns = float(view.waits.lasting["time"].sum())
    return recorded * lasting_ns / before if before else 0.0

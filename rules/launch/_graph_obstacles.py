"""Obstacles to capturing a model's steps as one CUDA graph.

A graph replays the same launches on the same addresses: nothing in it may depend on a
value that only the GPU has, and no host work may run in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import ownership
from traceq.analysis.base.steady import in_steps
from traceq.analysis.patterns import kv_cache
from traceq.analysis.time import device_syncs
from traceq.analysis.time.new_sizes import in_model, new_sizes
from traceq.common import intervals
from traceq.linter import (
    fill_false,
    has_named,
    named,
    named_like,
    text,
)
from traceq.model import names

from ._compile_obstacles import (
    calls_in_loop,
    forward_calls,
    recurrent_layers,
    several_backwards,
    work_between_passes,
)
from ._obstacle import PLACE, Obstacle, largest_place

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.linter import Trace

# Ops with a data-dependent size, at which torch.compile breaks the graph.
_SIZED_BY_VALUES = r"^aten::(nonzero|masked_select|argwhere|_?unique|repeat_interleave)"
# ``if tensor`` of a model: a few are checks that can be removed, more are part of its
# algorithm. Heuristic threshold.
_BRANCH = "aten::is_nonzero"
_FEW_BRANCHES = 8
_EVENT_SYNCS = ("cudaEventSynchronize", "hipEventSynchronize")
# What makes the gradient of an embedding with ``sparse=True``.
_SPARSE = ("aten::embedding_sparse_backward", "aten::_embedding_bag_sparse_backward")
# What ``tensor.data = other`` asks first.
_SET_DATA = "aten::_has_compatible_shallow_copy_type"
# Steps of one program differ by less: in a step that logs, or at the end of an epoch.
# Heuristic threshold.
_OTHER_LAUNCHES = 0.01


def graph_obstacles(trace: Trace, steady: SteadySteps) -> list[Obstacle]:
    """Return the obstacles to a CUDA graph of the model, worst first."""
    syncs = _syncs(trace, steady)
    obstacles = (
        _shapes(trace, steady, syncs),
        _launches(trace, steady),
        *syncs,
        _cache(trace, steady),
        _replaced(trace, steady),
        _sparse(trace, steady),
        _copies(trace, steady),
        several_backwards(trace, steady),
        work_between_passes(trace, steady),
        recurrent_layers(trace, steady),
        calls_in_loop(trace, steady),
    )
    return [obstacle for obstacle in obstacles if obstacle]


def _shapes(
    trace: Trace, steady: SteadySteps, forbidding: list[Obstacle | None]
) -> Obstacle | None:
    """Return ops that launch work on a size no step before had, or what made it."""
    ops, reads = new_sizes(trace, steady)
    if not len(ops):
        return None
    if not reads.height:
        return largest_place("shapes", trace.ops[[*PLACE]][ops], text("name"), 1)
    if any(obstacle and obstacle.reason == "values" for obstacle in forbidding):
        return None
    of = trace.ops["name"][reads["op"]].cast(pl.String)
    reads = reads.with_columns(name=pl.coalesce(of, text("name")))
    return largest_place("values", reads, text("name"), 1)


def _launches(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return by how many launches of the model steps of as many passes differ."""
    if steady.count < 2:  # noqa: PLR2004 - there is no other
        return None
    launched = in_model(trace, steady.kernels[["module", "step"]])["step"]
    counts = launched.value_counts(name="kernels")
    # Where a program evaluates after every other step, each pass is as before.
    begun = forward_calls(trace)["ts"].sort()
    windows = trace.steps.select("step", "start", "end")
    first, last = (
        intervals.count_before(begun, windows[side]) for side in ("start", "end")
    )
    passes = windows.select("step", passes=last - first)
    alike = counts.join(passes, on="step", how="left").group_by("passes")
    kernels = alike.agg(most=pl.col("kernels").max(), least=pl.col("kernels").min())
    differ = [
        most - least
        for most, least in kernels.select("most", "least").iter_rows()
        if most - least > _OTHER_LAUNCHES * most
    ]
    return Obstacle("launches", max(differ)) if differ else None


def _syncs(trace: Trace, steady: SteadySteps) -> list[Obstacle | None]:
    """Return the syncs for a data-dependent size, those to branch, and all others."""
    syncs = in_model(trace, in_steps(device_syncs.device_syncs(trace), trace, steady))
    if (trace.kernels["kind"] == "communication").any():
        # DDP's reducer reads its timers, outside of ops.
        syncs = syncs.filter(~named(syncs, _EVENT_SYNCS) | pl.col("op").is_not_null())
    ops = trace.ops["name"][syncs["op"]].cast(pl.String)
    syncs = syncs.with_columns(of=ops, name=text("name"))
    sized, of = fill_false(syncs["of"].str.contains(_SIZED_BY_VALUES)), steady.count
    name = pl.coalesce("of", "name")
    branches = ownership.outermost_ops(trace, (_BRANCH,))[syncs["op"]].is_not_null()
    # A few are like any other sync.
    branches &= int(branches.sum()) > _FEW_BRANCHES * of
    return [
        largest_place("values", syncs.filter(sized), name, of),
        largest_place("branches", syncs.filter(branches), pl.lit(_BRANCH), of),
        largest_place("syncs", syncs.filter(~sized & ~branches), name, of),
    ]


def _copies(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    kernels = steady.kernels
    copies = kernels[["name", "module", "file", "line", "function"]].filter(
        named_like(kernels, names.HTOD)
    )
    copies = in_model(trace, copies)
    return largest_place("copies", copies, text("name"), steady.count)


def _cache(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return the copies of a KV cache that is longer for every token."""
    cats = in_steps(kv_cache.cache_cats(trace), trace, steady)
    return largest_place("cache", cats, text("name"), steady.count)


def _replaced(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return the tensors that get other memory, which a graph does not know."""
    if not has_named(trace.ops, [_SET_DATA]):
        return None
    sets = in_steps(trace.ops.filter(named(trace.ops, [_SET_DATA])), trace, steady)
    return largest_place("replaced", sets, pl.lit(None, pl.String), steady.count)


def _sparse(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return the sparse gradients, which make compiling fail."""
    if not has_named(trace.ops, _SPARSE):
        return None
    ops = in_steps(trace.ops.filter(named(trace.ops, _SPARSE)), trace, steady)
    return largest_place("sparse", ops, text("name"), steady.count)

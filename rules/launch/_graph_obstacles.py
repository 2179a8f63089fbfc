"""Obstacles to capturing a model's steps as one CUDA graph.

A graph replays the same launches on the same addresses: nothing in it may depend on a
value that only the GPU has, and no host work may run in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import polars as pl

from traceq.analysis.base import assumptions, ownership
from traceq.analysis.base.group_ids import alike
from traceq.analysis.base.steady import in_steps
from traceq.analysis.patterns import kv_cache
from traceq.analysis.patterns.loops import loops
from traceq.analysis.time import device_syncs
from traceq.linter import (
    END,
    asof,
    cached_per_trace,
    dataclass,
    fill_false,
    has_like,
    has_named,
    named,
    named_like,
    rows_where,
    text,
)
from traceq.model import names
from traceq.model.tables import COPY

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.linter import Trace

Reason = Literal[
    "shapes",
    "launches",
    "values",
    "branches",
    "cache",
    "replaced",
    "sparse",
    "passes",
    "between",
    "syncs",
    "copies",
    "backwards",
    "rnn",
    "loop",
]
HARD: tuple[Reason, ...] = (
    *("shapes", "launches", "values", "branches", "cache", "replaced", "sparse"),
    *("passes", "between"),
)
"""With these a step is another one every time, its passes overwrite each other, or the
host decides in the middle of one: no graph of it can be replayed."""
UNCOMPILED: tuple[Reason, ...] = ("backwards", "rnn", "loop")
"""With these torch.compile replays no graph, but make_graphed_callables does."""

# Ops with a data-dependent size, at which torch.compile breaks the graph.
_SIZED_BY_VALUES = r"^aten::(nonzero|masked_select|argwhere|_?unique|repeat_interleave)"

# ``if tensor`` of a model: a few are checks that can be removed, more are part of its
# algorithm. Heuristic threshold.
_BRANCH = "aten::is_nonzero"
_FEW_BRANCHES = 8
# What makes the gradient of an embedding with ``sparse=True``.
_SPARSE = ("aten::embedding_sparse_backward", "aten::_embedding_bag_sparse_backward")
# What ``tensor.data = other`` asks first.
_SET_DATA = "aten::_has_compatible_shallow_copy_type"

# Steps of one program differ by less: in a step that logs, or at the end of an epoch.
# Heuristic thresholds.
_OTHER_LAUNCHES = 0.01
_OTHER_SHAPES = 0.01
_CALLED = ("id", "name", "inputs", "ts", "step", "captured", "module")
_PLACE = ("name", "file", "line", "function")
_BACKWARD = "built-in method run_backward"
# What nn.LSTM, nn.GRU and nn.RNN call, which break torch.compile's graph.
_RNN = r"^aten::(lstm|gru|rnn_tanh|rnn_relu)$"
# Passes a step on average, where not every step has one that is recorded whole.
_ONE_BACKWARD = 1.5


@dataclass(frozen=True)
class Obstacle:
    """One reason why a step cannot be replayed as one CUDA graph."""

    reason: Reason
    """New shapes in every step, another number of launches, data-dependent sizes, many
    branches on values of the GPU's (an adaptive solver), a KV cache that grows, weights
    that lie elsewhere in every step, sparse gradients, several backward passes that are
    not alike (a GAN), syncs between modules of one pass, other syncs in the model,
    copies from the host in the model, several backward passes of one kind (gradient
    accumulation), a layer that torch.compile does not capture, or a loop of the model
    that it unrolls."""
    count: float
    """Number per step; of launches, by how many steps differ; of a loop, how
    many iterations it has."""
    name: str = ""
    """The op that most of them are of."""
    file: str | None = None
    line: int | None = None
    function: str | None = None


def graph_obstacles(trace: Trace, steady: SteadySteps) -> list[Obstacle]:
    """Return the obstacles to a CUDA graph of the model, worst first."""
    obstacles = (
        _shapes(trace, steady),
        _launches(trace, steady),
        *_syncs(trace, steady),
        _cache(trace, steady),
        _replaced(trace, steady),
        _sparse(trace, steady),
        _copies(trace, steady),
        _backwards(trace, steady),
        _between(trace, steady),
        _rnn(trace, steady),
        _loop(trace, steady),
    )
    return [one for one in obstacles if one]


def _in_model(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that are of a module; every row where none was recorded."""
    in_modules = trace.ops["module"].null_count() < trace.ops.height
    return rows.filter(pl.col("module").is_not_null()) if in_modules else rows


def _most(
    reason: Reason, rows: pl.DataFrame, name: pl.Expr, steps: int
) -> Obstacle | None:
    """Return an obstacle of these rows, with what most of them are."""
    if not rows.height:
        return None
    groups = (
        rows.group_by(text("file"), "line", text("function"), name=name)
        .len()
        .sort("len", "name", "file", "line", descending=[True, False, False, False])
    )
    file, line, function, op, _ = groups.row(0)
    return Obstacle(reason, rows.height / steps, op or "", file, line, function)


def _shapes(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return ops that launch work on a shape that no step before had."""
    if trace.steps.height < 2 or not trace.facts.shapes:  # noqa: PLR2004 - one is all new
        return None
    launching = trace.kernels["op"].drop_nulls().unique().sort()
    # Ops of a replay lie before the trace: the host does not run them.
    ops = _in_model(trace, trace.ops[[*_CALLED]][launching])
    ops = ops.filter(~COPY, pl.col("inputs").is_not_null())
    ops = ops.sort("ts", maintain_order=True)
    shape = trace.inputs["dims_text"].rank("dense")[ops["inputs"]]
    last = ops["step"] == steady.windows["step"].max()
    first = alike(ops["name"], shape).first
    # A module that only the last step runs, as an encoder of images, has no other size.
    again = ops["module"].is_null() | ops["module"].is_in(
        ops["module"].filter(~last).unique().implode()
    )
    new = first.filter(last[first] & again[first])
    if len(new) <= _OTHER_SHAPES * int(last.sum()):
        return None
    return _most("shapes", trace.ops[[*_PLACE]][ops["id"][new]], text("name"), 1)


def _launches(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return by how many launches of the model steps differ."""
    if steady.count < 2:  # noqa: PLR2004 - there is no other
        return None
    launched = _in_model(trace, steady.kernels[["module", "step"]])["step"]
    counts = launched.value_counts()["count"].to_list()
    most = max(counts, default=0)
    differ = most - min(counts, default=0)
    return Obstacle("launches", differ) if differ > _OTHER_LAUNCHES * most else None


def _syncs(trace: Trace, steady: SteadySteps) -> list[Obstacle | None]:
    """Return the syncs for a data-dependent size, those to branch, and all others."""
    syncs = _in_model(trace, in_steps(device_syncs.device_syncs(trace), trace, steady))
    ops = trace.ops["name"][syncs["op"]].cast(pl.String)
    named = syncs.with_columns(of=ops, name=text("name"))
    sized, of = fill_false(named["of"].str.contains(_SIZED_BY_VALUES)), steady.count
    name = pl.coalesce("of", "name")
    branches = ownership.outermost_ops(trace, (_BRANCH,))[syncs["op"]].is_not_null()
    # A few are like any other sync.
    branches &= int(branches.sum()) > _FEW_BRANCHES * of
    return [
        _most("values", named.filter(sized), name, of),
        _most("branches", named.filter(branches), pl.lit(_BRANCH), of),
        _most("syncs", named.filter(~sized & ~branches), name, of),
    ]


def _copies(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    kernels = steady.kernels
    copies = kernels[["name", "module", "file", "line", "function"]].filter(
        named_like(kernels, names.HTOD)
    )
    copies = _in_model(trace, copies)
    return _most("copies", copies, text("name"), steady.count)


def _cache(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return the copies of a KV cache that is longer for every token."""
    cats = in_steps(kv_cache.cache_cats(trace), trace, steady)
    return _most("cache", cats, text("name"), steady.count)


def _replaced(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return the tensors that get other memory, which a graph does not know."""
    if not has_named(trace.ops, [_SET_DATA]):
        return None
    sets = in_steps(trace.ops.filter(named(trace.ops, [_SET_DATA])), trace, steady)
    return _most("replaced", sets, pl.lit(None, pl.String), steady.count)


def _sparse(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return the sparse gradients, which make compiling fail."""
    if not has_named(trace.ops, _SPARSE):
        return None
    ops = in_steps(trace.ops.filter(named(trace.ops, _SPARSE)), trace, steady)
    return _most("sparse", ops, text("name"), steady.count)


def _backwards(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return the backward passes of a step where there are several."""
    begin, end = steady.windows["start"].min(), steady.windows["end"].max()
    begun = _outermost(trace, _BACKWARD)["ts"]
    begun = begun.filter(begun.is_between(begin, end))
    passes = len(begun) / steady.count
    if passes <= _ONE_BACKWARD:
        return None
    ran = _ran_before(trace, begun)
    # A graph keeps one set of activations for a module: none may run twice before its
    # backward, nor before that of another one.
    alike = ran.n_unique() <= 1 and ran.list.n_unique().eq(ran.list.len()).all()
    return Obstacle("backwards" if alike else "passes", passes)


def _ran_before(trace: Trace, backwards: pl.Series) -> pl.Series:
    """Return the outermost modules that ran before each backward, since the last."""
    modules = forward_calls(trace)
    number = backwards.search_sorted(modules["ts"])
    ran = modules.with_columns(number=number).group_by("number").agg(text("name"))
    # What ran after the last backward has none.
    numbers = (
        pl.int_range(len(backwards), dtype=pl.UInt32, eager=True)
        .alias("number")
        .to_frame()
    )
    return numbers.join(ran, on="number", how="left", maintain_order="left")["name"]


def _between(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return the syncs that lie between modules which run before one backward."""
    backwards, modules = _outermost(trace, _BACKWARD), forward_calls(trace)
    if not backwards.height or not modules.height:
        return None
    begun = backwards["ts"]
    ran = (
        modules.with_columns(number=begun.search_sorted(modules["ts"]))
        .filter(pl.col("number") < len(begun))
        .group_by("number")
        .agg(first=pl.col("end").min(), last=pl.col("ts").max())
    )
    syncs = in_steps(device_syncs.device_syncs(trace), trace, steady).filter(
        pl.col("module").is_null()
    )
    number = begun.search_sorted(syncs["ts"]).alias("number")
    joined = syncs.hstack([number]).join(ran, on="number", maintain_order="left")
    joined = joined.filter(pl.col("ts").is_between("first", "last"))
    return _most("between", joined, text("name"), steady.count)


def _loop(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return the longest loop of the model, if it takes long to compile."""
    table = loops(trace, steady, assumptions.FEWEST_ITERATIONS).table
    if table.height:
        table = table.filter(
            pl.col("longest") > assumptions.UNROLLED_ITERATIONS,
            pl.col("modules").list.len() > 0,
        )
    if not table.height:
        return None
    row = table.sort("longest", descending=True).row(0, named=True)
    place = (row["file"], row["line"], row["function"])
    return Obstacle("loop", row["longest"], "", *place)


def forward_calls(trace: Trace) -> pl.DataFrame:
    """Return the outermost modules that run in no backward: there they run again."""
    backwards, modules = (_outermost(trace, one) for one in (_BACKWARD, names.MODULE))
    if not backwards.height:
        return modules
    around = asof(modules, backwards.select("ts", until="end"), "ts", "ts")
    again = pl.col("ts") < pl.col("until")
    return around.filter(~again.fill_null(value=False)).drop("until")


@cached_per_trace
def _outermost(trace: Trace, pattern: str) -> pl.DataFrame:
    """Return the calls with such a name that are in no other one, in order."""
    # Of a million frames these are few: they are taken, not all filtered.
    rows = rows_where(named_like(trace.frames, pattern))
    calls = trace.frames[["ts", "name", "dur"]][rows]
    calls = calls.select("ts", "name", end=END).sort("ts", -pl.col("end"))
    inside = pl.col("ts") < pl.col("end").cum_max().shift(1)
    return calls.filter(~inside.fill_null(value=False))


def _rnn(trace: Trace, steady: SteadySteps) -> Obstacle | None:
    """Return the recurrent layers that torch.compile breaks the graph at."""
    if not has_like(trace.ops, _RNN):
        return None
    ops = in_steps(trace.ops.filter(named_like(trace.ops, _RNN)), trace, steady)
    return _most("rnn", ops, text("name"), steady.count)

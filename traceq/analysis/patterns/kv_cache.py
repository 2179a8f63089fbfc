"""KV caches of decode loops: grown by ``cat``, of a fixed size, or missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import polars as pl

from traceq.analysis.base.assumptions import MATMUL_EFFICIENCY, SHORTEST_KERNEL_NS
from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import (
    NOTHING,
    has_named,
    named,
    outermost_ops,
)
from traceq.analysis.patterns.attention import FUSED_ARGUMENTS, SDPA
from traceq.analysis.patterns.iteration_marks import DECODE
from traceq.analysis.patterns.iterations import iterations
from traceq.analysis.patterns.matmul import matmuls
from traceq.common.expressions import known, nth
from traceq.common.units import NS_PER_S
from traceq.model.dtypes import SIZES
from traceq.model.tables import COPY

if TYPE_CHECKING:
    from traceq.analysis.base.device import Gpu
    from traceq.model.trace import Trace

# A cache has at least three dimensions, and is longer than what a token adds to it.
_RANK = 3
_LONGEST_NEW = 4
_ATTENTION = (SDPA, *(name for name in FUSED_ARGUMENTS if "backward" not in name))
_HEADS_RANK = 4
_PICK = "aten::index_select"
_MATRIX = 2
_SCORES = "aten::bmm"
_FEWEST_STEPS = 3
_GROWN = {"length": pl.Int64(), "shape": pl.List(pl.Int64())}


@cached_per_trace
def cache_cats(trace: Trace) -> pl.DataFrame:
    """Return the ops that append a token's keys or values to the cache in decodes.

    Rows of ``ops`` with ``length``, the tokens that are copied, and ``shape``.
    """
    decodes = iterations(trace).filter(pl.col("phase") == DECODE).select("step")
    if not decodes.height:
        return pl.DataFrame(schema={"id": pl.UInt32, **_GROWN})
    ops = trace.ops.filter(~pl.col("captured") | COPY).join(
        decodes, on="step", how="semi", maintain_order="left"
    )
    cats = ops.filter(named(ops, ("aten::cat",)))
    shapes = trace.inputs.filter(
        pl.col("id").is_in(cats["inputs"].unique().implode())
    ).select("id", "dims_text")
    grown = [
        (row["id"], *growth)
        for row in shapes.iter_rows(named=True)
        if (growth := _grown(row["dims_text"]))
    ]
    growths = pl.DataFrame(
        grown,
        {"inputs": pl.UInt32, **_GROWN},
        orient="row",
    )
    return cats.join(growths, on="inputs", maintain_order="left")


def reorders_cache(trace: Trace) -> bool:
    """Return whether the rows of the cache are reordered for each token.

    Beam search does so: the best sequences go on from any of the beams.
    """
    cats = cache_cats(trace).drop_nulls("shape")
    if not cats.height or not has_named(trace.ops, [_PICK]):
        return False
    ends = (pl.col("shape").list.first(), pl.col("shape").list.last())
    known_ends = cats.select(rows=ends[0], width=ends[1]).unique()
    picks = trace.ops[["inputs"]].filter(named(trace.ops, [_PICK])).drop_nulls()
    shapes = trace.inputs[picks["inputs"]].select(shape=nth("dims", 0))
    reorders = (
        shapes.filter(pl.col("shape").list.len() >= _RANK)
        .select(rows=ends[0], width=ends[1])
        .join(known_ends, on=["rows", "width"], how="semi")
    )
    return 2 * reorders.height > cats.height


def _grown(dims: str | None) -> tuple[int, list[int]] | None:
    """Return the length of a cache that a cat extends, and its shape."""
    try:
        shapes = orjson.loads(dims or "[]")[0]
        old, new = shapes
        differ = [
            at for at, pair in enumerate(zip(old, new, strict=True)) if len({*pair}) > 1
        ]
    except (ValueError, IndexError, TypeError):
        # Not the shapes of two tensors of one rank.
        return None
    if len(differ) != 1 or len(old) < _RANK:
        return None
    (at,) = differ
    if at in (0, len(old) - 1) or not new[at] <= _LONGEST_NEW < old[at]:
        return None
    return int(old[at]), [int(entry) for entry in old]


@cached_per_trace
def padded_attention(trace: Trace) -> pl.DataFrame:
    """Return attention of decodes over a cache that the context fills only partly.

    Rows of ``ops``, the outermost of each call, with ``cache``, the keys that it goes
    over, ``batch``, and ``context``, those of a request that are not padding.
    """
    decodes = iterations(trace).filter(
        pl.col("phase") == DECODE, pl.col("context").is_not_null()
    )
    if not decodes.height or not has_named(trace.ops, _ATTENTION):
        return NOTHING
    ops = trace.ops.filter(~pl.col("captured") | COPY).join(
        decodes.select("step", "requests", total="context"), on="step"
    )
    owner = outermost_ops(trace, _ATTENTION).gather(ops["id"])
    called = ops.filter(known(owner == ops["id"])).join(
        trace.inputs.select("dims", "types", inputs="id"), on="inputs"
    )
    query, key = nth("dims", 0), nth("dims", 1)
    rows = called.filter(
        query.list.len() == _HEADS_RANK,
        key.list.len() == _HEADS_RANK,
        query.list.get(2, null_on_oob=True) == 1,
        # Without a mask all keys are read on purpose.
        nth("dims", 3).list.len() > 0,
    )
    return rows.with_columns(
        batch=query.list.get(0, null_on_oob=True),
        cache=key.list.get(2, null_on_oob=True),
        context=pl.col("total") / pl.col("requests"),
    ).filter(pl.col("context") < pl.col("cache"))


@cached_per_trace
def recomputed_attention(trace: Trace) -> pl.DataFrame:
    """Return self-attention over a text that grows from step to step: no cache.

    Rows of ``ops``, the outermost of each call, with ``length``: as many queries as
    keys, a few more in each step than in the one before, always the same number. With
    a cache a step has queries for the new tokens only. Training is left out: it has
    a backward pass, and its lengths do not grow.
    """
    names = (*_ATTENTION, _SCORES)
    ops = trace.ops.filter(pl.col("step").is_not_null(), ~pl.col("captured"))
    if not has_named(ops, names) or (ops["phase"] == "backward").any():
        return NOTHING
    owner = outermost_ops(trace, _ATTENTION).gather(ops["id"])
    fused = known(owner == ops["id"])
    scores = named(ops, (_SCORES,)) & owner.is_null()
    query, key = nth("dims", 0), nth("dims", 1)
    rows = (
        ops.with_columns(fused=fused)
        .filter(fused | scores)
        .join(
            trace.inputs.select("dims", inputs="id"),
            on="inputs",
            maintain_order="left",
        )
        .with_columns(
            length=query.list.get(-2, null_on_oob=True),
            # Scores are the product of queries and transposed keys.
            keys=pl.when("fused")
            .then(key.list.get(-2, null_on_oob=True))
            .otherwise(key.list.last()),
        )
        .filter(pl.col("length") == pl.col("keys"))
    )
    lengths = rows.group_by("step").agg(pl.col("length").max()).sort("step")
    growth = lengths["length"].diff().drop_nulls().unique()
    grows = growth.len() == 1 and 1 <= growth.item() <= _LONGEST_NEW
    if not grows or lengths.height < _FEWEST_STEPS:
        return NOTHING
    return rows.join(lengths, on=["step", "length"], how="semi", maintain_order="left")


def recomputed_kernels(
    trace: Trace, kernels: pl.DataFrame, gpu: Gpu, times: float
) -> tuple[pl.DataFrame, float]:
    """Return the model's kernels, and the share of their time that a cache saves.

    ``times`` is how many tokens a step computes for each new one.
    """
    called = kernels.filter(pl.col("op").is_not_null())
    # What a loop does with the logits is outside of the model, and stays.
    in_model = called.filter(pl.col("module").is_not_null())
    called = in_model if in_model.height else called
    shrunk = pl.max_horizontal(pl.col("dur") / times, float(SHORTEST_KERNEL_NS))
    then = called.select("id", "dur", then=shrunk)
    weights = _reading_weights(trace, kernels, gpu)
    if weights.height:
        then = then.join(weights, on="id", how="left", maintain_order="left")
        then = then.with_columns(then=pl.coalesce("reading", "then"))
    now, left = then.select("dur", left=pl.min_horizontal("dur", "then")).sum().row(0)
    return called, 1 - left / now if now else 0.0


def _reading_weights(trace: Trace, kernels: pl.DataFrame, gpu: Gpu) -> pl.DataFrame:
    """Return ``reading``: the time of each matmul with a weight for a single token.

    That is the time to read the weight; the time as recorded where the peaks of the GPU
    or the shapes are not known.
    """
    products = matmuls(trace, kernels, "")
    if not products.height:
        return products
    size = pl.col("type").replace_strict(SIZES, default=0, return_dtype=pl.Float64)
    deep, wide = (pl.col("right").list.get(at, null_on_oob=True) for at in (-2, -1))
    reading = pl.col("dur").cast(pl.Float64)
    if gpu.peak:
        bandwidth = MATMUL_EFFICIENCY.bandwidth * gpu.peak.bandwidth
        reading = (deep * wide * size / bandwidth * NS_PER_S).fill_null(reading)
    by_weight = pl.col("left").is_null() | (pl.col("left").list.len() == _MATRIX)
    return products.filter(by_weight).select("id", reading=reading)

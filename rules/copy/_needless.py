"""Needless copies: those that are undone, and clones that nothing writes to.

``moved`` is always what :func:`traceq.analysis.patterns.copies.copies` returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    END,
    FLOAT32,
    HALF,
    asof,
    cached_per_trace,
    fill_false,
    first_sizes,
    named,
    nth,
)
from traceq.model import dtypes

if TYPE_CHECKING:
    from traceq.linter import Trace

PLACE = ("file", "line", "function")
# What is computed in float32 for good reasons: sums, powers, and what uses them.
_EXACT = (
    *("aten::pow", "aten::square", "aten::mean", "aten::sum", "aten::var", "aten::std"),
    *("aten::rsqrt", "aten::exp", "aten::log", "aten::cumsum", "aten::logsumexp"),
    *("aten::softmax", "aten::log_softmax", "aten::norm", "aten::linalg_vector_norm"),
    *("aten::layer_norm", "aten::rms_norm", "aten::group_norm", "aten::batch_norm"),
    *("aten::cross_entropy_loss", "aten::nll_loss_nd", "aten::view_as_complex"),
)


@cached_per_trace
def cast_round_trips(trace: Trace, moved: pl.DataFrame) -> pl.DataFrame:
    """Return the program's casts from 16-bit to float32 that the next cast undoes.

    Both casts are at the same place in the program and have the same number of
    elements; ``back`` and ``back_caller`` are the request and the caller of the second.
    Left out are places that compute sums or powers of that many elements in float32,
    since they need the upcast, and casts between which the tensor, or a part of it,
    meets a float32 tensor of another shape: without the cast the result is float32 all
    the same. A cast to fewer bits is none: it rounds.
    """
    keys = ["step", *PLACE, "numel"]
    casts = moved.filter(
        pl.col("part").is_in(["cast", "autocast"]),
        pl.col("phase") != "backward",
        pl.col("src").is_in(dtypes.FLOATING),
        pl.col("dst").is_in(dtypes.FLOATING),
    ).sort("ts", "id")
    if not (casts["own"] & casts["src"].is_in(HALF)).any():
        return casts.clear()
    following = {
        name: pl.col(column).shift(-1).over(keys)
        for name, column in (
            ("back", "request"),
            ("back_caller", "caller"),
            ("back_src", "src"),
            ("back_dst", "dst"),
        )
    }
    pairs = casts.with_columns(**following).filter(
        "own",
        pl.col("src").is_in(HALF),
        pl.col("dst") == FLOAT32,
        pl.col("back_src") == pl.col("dst"),
        pl.col("back_dst") == pl.col("src"),
    )
    if not pairs.height:
        return pairs
    started = trace.ops["ts"]
    pairs = pairs.with_columns(
        cast_at=started[pairs["request"]],
        back_at=started[pairs["back"]],
    ).join(_exact(trace), on=[*PLACE, "numel"], how="anti", nulls_equal=True)
    combined = pl.col("combined_by") >= pl.col("cast_at")
    return (
        asof(pairs, _combining(trace), "back_at", "combined_by", by=PLACE)
        .filter(~fill_false(combined))
        .sort("ts", "id")
    )


def _exact(trace: Trace) -> pl.DataFrame:
    """Return where, and of how many elements, sums and powers are in float32."""
    sizes = trace.inputs.select("types", inputs="id", numel=first_sizes(trace))
    sizes = sizes.filter(nth("types", 0) == FLOAT32).drop("types")
    exact = trace.ops[[*PLACE, "inputs"]].filter(named(trace.ops, _EXACT))
    return exact.join(sizes, on="inputs").select(*PLACE, "numel").unique()


def _combining(trace: Trace) -> pl.DataFrame:
    """Return when and where an op takes float32 tensors of two different shapes.

    The second may be a weight, or the angles of a rotary embedding, and the first a
    part of what was cast, as half of its channels. One of the same shape may well have
    been cast itself.
    """
    both = trace.inputs.filter(
        nth("types", 0) == FLOAT32,
        nth("types", 1) == FLOAT32,
        nth("dims", 0).list.len() > 0,
        nth("dims", 1).list.len() > 0,
        nth("dims", 0) != nth("dims", 1),
    ).select(inputs="id")
    outermost = trace.ops[[*PLACE, "inputs", "ts", "dur"]].filter(
        trace.ops["parent"].is_null()
    )
    return outermost.join(both, on="inputs").select(*PLACE, combined_by=END)


@cached_per_trace
def layout_round_trips(moved: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the program's copies into another layout that the next copy undoes.

    Nothing else of ``kernels`` runs on the stream between the two. ``back`` is the
    request of the second. Left out are layouts that read the same both ways, as of
    a single element or a square: two such copies may be of two tensors.
    """
    keys = ["step", *PLACE, "device", "stream"]
    layouts = moved.filter(
        pl.col("part") == "layout",
        pl.col("src_strides") != pl.col("dst_strides"),
        pl.col("dst") == pl.col("src"),
    )
    if not layouts.height:
        return layouts.with_columns(back="request")
    trips = (
        _with_memory_order(layouts)
        .sort("ts", "id")
        .with_columns(
            back=pl.col("request").shift(-1).over(keys),
            back_id=pl.col("id").shift(-1).over(keys),
            back_to=pl.col("to").shift(-1).over(keys),
            back_from=pl.col("from").shift(-1).over(keys),
        )
        .filter(
            pl.col("from") != pl.col("to"),
            pl.col("back_to") == pl.col("from"),
            pl.col("back_from") == pl.col("to"),
        )
    )
    if not trips.height:
        return trips
    next_ids = (
        kernels[["id", "device", "stream", "ts"]]
        .sort("ts", "id")
        .select("id", next_id=pl.col("id").shift(-1).over("device", "stream"))
    )
    return trips.join(next_ids, on="id", maintain_order="left").filter(
        pl.col("back_id") == pl.col("next_id")
    )


def _with_memory_order(layouts: pl.DataFrame) -> pl.DataFrame:
    """Add the dimensions in the order of memory: ``from`` the source, ``to`` the copy.

    Both are null if one is not dense, or the target not contiguous.
    """
    distinct = layouts.select("dims", "src_strides", "dst_strides").unique()
    orders = [_memory_orders(*row) for row in distinct.iter_rows()]
    schema = {name: pl.List(pl.Int64) for name in ("from", "to")}
    ordered = distinct.hstack(pl.DataFrame(orders, schema, orient="row"))
    return layouts.join(
        ordered,
        on=["dims", "src_strides", "dst_strides"],
        how="left",
        maintain_order="left",
    )


def _memory_orders(
    dims: list[int], source: list[int], target: list[int]
) -> tuple[list[int] | None, list[int] | None]:
    before, after = _memory_order(dims, source), _memory_order(dims, target)
    contiguous = after == [size for size in dims if size != 1]
    return (before, after) if before and contiguous else (None, None)


def _memory_order(dims: list[int], strides: list[int]) -> list[int] | None:
    """Return the dimensions of a dense tensor, the outermost in memory first.

    Those of one element are left out: how far apart its elements are is no layout.
    """
    if len(dims) != len(strides):
        return None
    ordered = sorted(
        (
            (stride, size)
            for stride, size in zip(strides, dims, strict=True)
            if size != 1
        ),
        reverse=True,
    )
    expected = 1
    for stride, size in reversed(ordered):
        if stride != expected:
            return None
        expected *= size
    return [size for _, size in ordered]

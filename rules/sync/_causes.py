"""Ops of the program that make the host wait."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import ownership
from traceq.common import intervals
from traceq.linter import END, asof, fill_false, has_like, named, named_like

from ._written import (
    COPYING,
    INNER,
    MASKED_COPY,
    SPARSE_GRADIENTS,
    SPARSE_MATMULS,
    USED_INSIDE,
    WRITTEN,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from traceq.linter import Trace, View

_VIEW = ("aten::view",)
_MATMULS = r"^aten::(matmul|s?s?(add)?mm|bmm|mv|_sparse_(add)?mm|hspmm)$"
_OF_EMBEDDING = r"^(aten::)?_?embedding_(bag_)?sparse_backward$|^EmbeddingBackward"
_OF_OPTIMIZER = re.compile(r"(^|/)torch/optim/")
_KIND = ("cause", "file", "line", "function")


def with_causes(trace: Trace, waits: pl.DataFrame) -> pl.DataFrame:
    """Return waits with the op that the program writes: ``called`` and its ``cause``.

    The cause is the op's name: of an op that reads a value for itself its own, of the
    ``gradient`` of a boolean index that of the index, and MASKED_COPY where what a mask
    selects is assigned through a mask. ``selects`` is whether it is by a mask, ``top``
    the outermost op of torch's own, and ``again`` whether nothing was launched since
    the wait before, which is alike.
    """
    names = trace.ops["name"]
    written = ownership.outermost_ops(trace, tuple(WRITTEN))[waits["op"]]
    top = _top(trace, waits["op"])

    def name(ops: pl.Series) -> pl.Series:
        return names[ops].cast(pl.String)

    own = pl.coalesce("written", "op")
    by_itself = (
        pl.when(pl.col("written").is_null())
        .then(~pl.col("top_name").is_in(COPYING))
        .otherwise(pl.col("written_name").is_in(USED_INSIDE))
    )
    gradient = (pl.col("top_name") == "aten::_index_put_impl_") & (
        pl.col("forward_name") == "aten::index"
    )
    rows = (
        waits.with_columns(
            written=written,
            written_name=name(written),
            top=top,
            top_name=name(top),
            forward_name=name(trace.ops["forward"][waits["op"]]),
        )
        .with_columns(called=pl.when(by_itself).then("top").otherwise(own))
        .with_columns(
            gradient=gradient.fill_null(value=False),
            selects=name(waits["op"]) == "aten::nonzero",
        )
    )
    cause = pl.when("gradient").then(pl.lit("aten::index")).otherwise("cause")
    rows = rows.with_columns(cause=name(rows["called"]).replace(INNER))
    rows = rows.with_columns(cause=cause)
    rows = rows.with_columns(again=_again(trace, rows)).drop(
        "written", "written_name", "top_name", "forward_name"
    )
    return _with_masked_copies(trace, rows)


def coalesced(view: View, row: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return words and advice on a sparse tensor by what coalesces it, if it is known.

    That is a matmul, or an optimizer for the gradients of an embedding.
    """
    ops = view.trace.ops
    tops = ops[pl.Series(row["top"], dtype=pl.UInt32)]
    if named_like(tops, _MATMULS).any():
        return SPARSE_MATMULS
    of_gradients = has_like(ops, _OF_EMBEDDING) or _OF_OPTIMIZER.search(
        row["inner_file"] or ""
    )
    return SPARSE_GRADIENTS if of_gradients else None


def _again(trace: Trace, waits: pl.DataFrame) -> pl.Series:
    """Return which waits follow on one that is alike, with nothing launched between."""
    launched = trace.runtime["ts"][trace.kernels["launch"].drop_nulls()].sort()
    order = waits.select(
        "thread", "end", *_KIND, begin=trace.ops["ts"][waits["top"]]
    ).with_row_index("row")
    order = order.sort("thread", "begin")
    same = (
        pl.col(name).eq_missing(pl.col(name).shift(1)) for name in ("thread", *_KIND)
    )
    follows = order.select(pl.all_horizontal(same)).to_series()
    since = intervals.count_until(launched, order["end"].shift(1, fill_value=0))
    again = follows & (intervals.count_before(launched, order["begin"]) == since)
    return again[order["row"].arg_sort()]


def _top(trace: Trace, ops: pl.Series) -> pl.Series:
    """Return the outermost of the ops of torch's own that are around each."""
    parent, name = trace.ops["parent"], trace.ops["name"]
    while True:
        around = parent[ops]
        inside = name[around].cast(pl.String).str.starts_with("aten::")
        if not inside.any():
            return ops
        ops = around.zip_with(fill_false(inside), ops)


def _with_masked_copies(trace: Trace, waits: pl.DataFrame) -> pl.DataFrame:
    """Return waits with both of ``x[mask] = y[mask]`` as one cause."""
    put = pl.col("cause") == "aten::index_put_"
    if not waits.select(put.any()).item():
        return waits
    times = trace.ops[["ts", "dur"]][waits["called"]].select(begin="ts", done=END)
    ordered = waits.hstack(times).sort("thread", "begin").with_row_index("row")
    before = pl.col("row", "cause", "done").shift(1).over("thread").name.prefix("last_")
    puts = (
        ordered.with_columns(before)
        .filter(put, pl.col("last_cause") == "aten::index")
        .select("row", "last_row", "last_done", "thread", at=pl.col("begin") - 1)
    )
    # Nothing began between the two but a view of what is assigned.
    chosen = trace.ops["thread"].is_in(puts["thread"].unique().implode())
    near = trace.ops[["thread", "ts"]].filter(chosen & ~named(trace.ops, _VIEW))
    puts = asof(puts, near, "at", "ts", by="thread").filter(
        pl.col("ts") <= pl.col("last_done")
    )
    both = pl.concat([puts["row"], puts["last_row"]])
    cause = pl.when(pl.col("row").is_in(both.implode())).then(pl.lit(MASKED_COPY))
    return ordered.with_columns(cause=cause.otherwise("cause")).drop(
        "row", "begin", "done"
    )

"""Shapes of the tensors that a loop goes over: whether iterations can be stacked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import Evidence, View, listed, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

# If an operator takes another shape than the iteration before this often, the tensors
# are of several sizes: a last chunk that is smaller is one of eight or more.
# Heuristic threshold.
_OFTEN = 1 / 4
# Fewer iterations than this share can be compared with the one before: heuristic.
_MOST = 1 / 2
_MOST_NAMED = 3
_LINE = ("file", "function", "call_line")
# Arguments at the end that are no tensors.
_WITHOUT_SHAPE = r"(,\s*\[\])+\]$"
_REDUCES = r"^aten::(mean|sum|amax|amin|max|min|prod|std|var|norm|linalg_vector_norm)$"
_PAD = "pad them to the longest and mask the rest"
_SEGMENTED = (
    "join them by torch.cat, number each row by its iteration, and reduce all with one"
    " operator (zeros.index_add_ divided by counts for means, scatter_reduce or"
    f" torch.segment_reduce); or {_PAD}"
)
_JOINED = (
    f"{_PAD}; or join them by torch.cat and run its operators once, where they treat"
    " each row by itself"
)


def unequal(row: Mapping[str, Any], view: View, loop: pl.DataFrame) -> str:
    """Return which op of a loop takes other shapes from iteration to iteration.

    Empty where all are alike or shapes are not known. An op is compared with that of
    the iteration before which is called at the same line and is the same one in order
    there, as for the same level of a pyramid, where both call as many.
    """
    begun = loop.filter("begins")["start"].sort()
    ops = _ops(row, view)
    ops = ops.with_columns(iteration=begun.search_sorted(ops["ts"], side="right"))
    here = ("name", *_LINE)
    slot = (*here, "number")
    in_iteration = ("iteration", *here)
    before = pl.col("iteration").shift(1), pl.col("calls").shift(1)
    last, calls = (column.over(slot) for column in before)
    # What comes after the loop, or only in some iterations, tells nothing.
    next_one = (pl.col("iteration") == last + 1) & (pl.col("calls") == calls)
    pairs = (
        ops.with_columns(
            number=pl.int_range(pl.len()).over(in_iteration),
            calls=pl.len().over(in_iteration),
        )
        .with_columns(
            changed=(pl.col("dims") != pl.col("dims").shift(1)).over(slot),
            next_one=next_one,
        )
        .filter("next_one")
    )
    often = (
        pairs.group_by(slot, maintain_order=True)
        .agg(pl.col("changed").mean(), pl.len())
        .filter(pl.col("changed") > _OFTEN, pl.col("len") >= len(begun) * _MOST)
    )
    return str(often["name"][0]) if often.height else ""


def shapes_line(row: Mapping[str, Any], view: View, op: str) -> Iterator[Evidence]:
    """Yield the shapes that an op of a loop takes, the most frequent ones first."""
    shapes = (
        _ops(row, view)
        .filter(pl.col("name") == op)
        .group_by(pl.col("dims").str.replace(_WITHOUT_SHAPE, "]"))
        .len()
        .sort("len", "dims", descending=[True, False])
    )
    yield Evidence("shapes", f"{op} of {listed(shapes['dims'].to_list(), _MOST_NAMED)}")


def joined(row: Mapping[str, Any]) -> str:
    """Return what to write instead of a loop over tensors of several sizes."""
    reduces = pl.Series(row["names"], dtype=pl.String).str.contains(_REDUCES).any()
    return _SEGMENTED if reduces else _JOINED


def _ops(row: Mapping[str, Any], view: View) -> pl.DataFrame:
    """Return the forward ops of a loop in order, with the shapes that they take."""
    rows = view.trace.ops[["name", "ts", "inputs", "forward", *_LINE]][[*row["ops"]]]
    rows = rows.filter(pl.col("forward").is_null()).drop_nulls("inputs").sort("ts")
    dims = view.trace.inputs["dims_text"][rows["inputs"]].alias("dims")
    places = (text(name) for name in ("name", "file", "function"))
    return rows.select(*places, "ts", "call_line").with_columns(dims.cast(pl.String))

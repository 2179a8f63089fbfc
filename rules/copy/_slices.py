"""Tensors that are filled or read slice by slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    END,
    NOTHING,
    fill_false,
    has_named,
    named,
    named_like,
    nearest,
    nth,
    plain,
    same_place,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from traceq.linter import Trace

_SOURCE = ("file", "line", "function")
_CUTTING = ("aten::select", "aten::slice")
# Ops that may stand between cutting a slice out and writing to it.
_VIEWING = ("aten::view", "aten::expand", "aten::expand_as", "aten::reshape")
_WRITING = "aten::copy_"
_BACKWARD = r"^torch::autograd::CopySlices$"
# Ops that expand the gradient of a slice to that of the whole tensor, and the node of
# autograd around them, which also adds these gradients up.
_UNCUTTING = ("aten::select_backward", "aten::slice_backward")
_NODE = r"evaluate_function: (Select|Slice)Backward\d*$"
_SIZES = r"-?\d+"
# Ops that do nothing but cut, and are written as such.
_CUTS = (*_CUTTING, "aten::narrow", "aten::tensor_split")
# Ops and nodes of autograd in C++: what is inside of them the program cannot change.
_COMPILED = r"^aten::|Backward\d+$"


def slice_writes(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the program's writes into slices, as in ``out[:, i] = x``.

    Added are ``whole``, the shape of the tensor that the slice is cut out of, ``along``
    and ``at``, the dimension and the position, ``written``, the shape of the slice, and
    ``start`` and ``end``, when the host cut and wrote it. A part of a row, as in
    ``out[i, :n] = x``, is cut out of the tensor that the row belongs to.
    """
    if not has_named(trace.ops, _CUTTING) or not has_named(trace.ops, [_WRITING]):
        return NOTHING
    # Most copies are inside of other ops.
    if trace.ops["parent"].filter(named(trace.ops, [_WRITING])).null_count() == 0:
        return NOTHING
    outermost = ops[["id", "name", "thread", "ts", "dur", "inputs"]].filter(
        ops["parent"].is_null()
    )
    outermost = (
        outermost.with_columns(plain(trace.ops, outermost["name"]))
        .sort("thread", "ts", maintain_order=True)
        .filter(~pl.col("plain").is_in(_VIEWING))
    )
    before, thread = pl.col("plain", "ts", "inputs", "thread"), pl.col("thread")
    writes_slice = (
        (pl.col("plain") == _WRITING)
        & pl.col("plain_cut").is_in(_CUTTING)
        & (thread == pl.col("thread_cut"))
    )
    outermost = outermost.with_columns(
        before.shift(1).name.suffix("_cut"), before.shift(2).name.suffix("_row")
    ).with_columns(writes=fill_false(writes_slice))
    if not outermost["writes"].any():
        return NOTHING
    own = thread == pl.col("thread_row")
    slices = (
        outermost.with_columns(
            pl.when(own).then(pl.col("plain_row", "ts_row", "inputs_row")),
            done=_done_before(),
        )
        .filter("writes")
        .drop("name", "thread", "ts", "dur", "writes", "thread_cut", "thread_row")
    )
    writes = ops.join(
        slices.drop("inputs"), on="id", maintain_order="right"
    ).with_columns(
        *_positions(trace, slices["inputs"]),
        *_positions(trace, slices["inputs_cut"], "_cut"),
        *_positions(trace, slices["inputs_row"], "_row"),
    )
    of_row = fill_false((pl.col("plain_row") == "aten::select") & _is_row())
    writes = writes.with_columns(
        written=pl.col("whole"),
        whole=pl.when(of_row).then("whole_row").otherwise("whole_cut"),
        along=pl.when(of_row).then("along_row").otherwise("along_cut"),
        at=pl.concat_str(
            pl.when(of_row).then("at_row"), "at_cut", separator=",", ignore_nulls=True
        ),
        start=pl.when(of_row).then("ts_row").otherwise("ts_cut"),
        end=END,
    )
    # What Python does between two writes goes with them; before the first it does not.
    soon = pl.col("start") - pl.col("done") < pl.col("end") - pl.col("start")
    return writes.with_columns(start=pl.when(soon).then("done").otherwise("start"))


def _positions(trace: Trace, inputs: pl.Series, suffix: str = "") -> list[pl.Series]:
    """Return what inputs of ops that cut say: ``whole``, ``along`` and ``at``."""
    begin, until = nth("values", 2), nth("values", 3)
    at = pl.concat_str(begin, until, separator=":", ignore_nulls=True)
    return (
        trace.inputs[["id", "dims", "values"]][inputs]
        .select(
            nth("dims", 0).alias(f"whole{suffix}"),
            nth("values", 1).alias(f"along{suffix}"),
            # Of ops whose inputs are not known nothing is.
            pl.when(pl.col("id").is_not_null()).then(at).alias(f"at{suffix}"),
        )
        .get_columns()
    )


def _done_before() -> pl.Expr:
    """Return when the last op before was done that does not cut."""
    cuts = pl.col("plain").is_in(_CUTTING)
    return pl.when(~cuts).then(END).forward_fill().shift(1).over("thread")


def _is_row() -> pl.Expr:
    """Return whether what is cut has the shape of what was selected before it."""
    whole, along = pl.col("whole_row"), pl.col("along_row").cast(pl.Int64, strict=False)
    row = pl.concat_list(whole.list.head(along), whole.list.slice(along + 1))
    return (along >= 0) & (row == pl.col("whole_cut"))


def backward_of_slices(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels of the backward of writes into slices.

    Autograd does not record which write they belong to, but ``whole`` is the shape of
    the tensor that was written to.
    """
    nodes = nearest(trace.ops["parent"], named_like(trace.ops, _BACKWARD))
    node = nodes[kernels["op"]]
    wholes = trace.inputs.select(inputs="id", whole=nth("dims", 0))
    return (
        kernels.with_columns(inputs=trace.ops["inputs"][node])
        .filter(node.is_not_null())
        .join(wholes, on="inputs", how="left", maintain_order="left")
        .drop("inputs")
    )


def slice_gradients(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return where the backward pass fills a whole gradient for a single slice.

    These are autograd's nodes, with the place of the forward op. ``whole`` is the shape
    of the gradient, ``along`` and ``at`` give the slice that is not zero, ``cut`` is
    the name of the backward op. Left out are slices that an op cuts itself, as
    ``aten::_pad_packed_sequence`` does.
    """
    if not has_named(trace.ops, _UNCUTTING):
        return NOTHING
    node = nearest(trace.ops["parent"], named_like(trace.ops, _NODE))
    made = ops[["id", "inputs", "name", "forward"]].filter(named(ops, _UNCUTTING))
    made = made.filter(~_cut_inside(trace, made["forward"]))
    values = trace.inputs[made["inputs"].drop_nulls().unique()].select(
        inputs="id",
        whole=nth("values", 1).str.extract_all(_SIZES).cast(pl.List(pl.Int64)),
        along=nth("values", 2),
        at=pl.concat_str(
            nth("values", 3), nth("values", 4), separator=":", ignore_nulls=True
        ),
    )
    gradients = made.select("inputs", cut=text("name"), id=node[made["id"]]).drop_nulls(
        "id"
    )
    nodes = ops.drop("inputs").join(gradients, on="id", maintain_order="left")
    return nodes.join(values, on="inputs", how="left", maintain_order="left")


def _cut_inside(trace: Trace, cuts: pl.Series) -> pl.Series:
    """Return which ops that cut are inside of an op that the program calls."""
    ops = trace.ops
    around = nearest(ops["parent"], ~named(ops, _CUTS))[cuts]
    return fill_false(named_like(ops, _COMPILED)[around])


def slice_loops(
    slices: pl.DataFrame, min_slices: int, **more: pl.Expr
) -> Iterator[dict[str, Any]]:
    """Yield slices by place and tensor, where they have enough positions.

    A tensor that has another size in every step is the same tensor: the first one,
    the second one and so on that a step cuts at this place.
    """
    places = same_place()
    count = pl.col("at").n_unique().over(*places, "whole", "along", "step")
    first = pl.col("ts").min().over(*places, "whole", "along", "step")
    yield from (
        slices.with_columns(slices=count, first=first)
        .filter(pl.col("slices") >= min_slices, pl.col("whole").is_not_null())
        .with_columns(
            tensor=pl.col("first").rank("dense").over(*places, "along", "step")
        )
        .group_by(*places, "tensor", "along")
        .agg(
            "id",
            pl.col("whole").first(),
            pl.col("whole").unique().alias("wholes"),
            text("module").unique(maintain_order=True),
            pl.col("slices").max(),
            **more,
        )
        .with_columns(sharing=pl.len().over("whole"))
        .sort(*_SOURCE, "whole", "along")
        .iter_rows(named=True)
    )

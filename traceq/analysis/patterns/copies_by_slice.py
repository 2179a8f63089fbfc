"""Tensors that a program fills or reads slice by slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import named, plain_names
from traceq.expressions import nth, text
from traceq.graph.nesting import nearest

if TYPE_CHECKING:
    from traceq.trace import Trace

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


def slice_writes(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the program's writes into slices, as in ``out[:, i] = x``.

    Added are ``whole``, the shape of the tensor that the slice is cut out of, ``along``
    and ``at``, the dimension and the position, and ``cut``, the op that cuts.
    """
    plain = plain_names(ops)
    outermost = (
        ops.filter(pl.col("parent").is_null())
        .join(plain, on="name", how="left", maintain_order="left")
        .sort("thread", "ts", maintain_order=True)
        .filter(~pl.col("plain").is_in(_VIEWING))
    )
    before = pl.col("plain", "id", "inputs").shift(1).over("thread").name.suffix("_cut")
    values = trace.inputs.select(
        inputs_cut="id",
        whole=nth("dims", 0),
        along=nth("values", 1),
        at=nth("values", 2),
    )
    return (
        outermost.with_columns(before)
        .filter(pl.col("plain") == _WRITING, pl.col("plain_cut").is_in(_CUTTING))
        .rename({"id_cut": "cut"})
        .join(values, on="inputs_cut", how="left", maintain_order="left")
    )


def backward_of_slices(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels of the backward of writes into slices.

    Autograd does not record which write they belong to, but ``whole`` is the shape of
    the tensor that was written to.
    """
    name = trace.ops["name"].cast(pl.String)
    nodes = nearest(trace.ops["parent"], name.str.contains(_BACKWARD))
    node = nodes.gather(kernels["op"])
    wholes = trace.inputs.select(inputs="id", whole=nth("dims", 0))
    return (
        kernels.with_columns(inputs=trace.ops["inputs"].gather(node))
        .filter(node.is_not_null())
        .join(wholes, on="inputs", how="left", maintain_order="left")
        .drop("inputs")
    )


def slice_gradients(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return where the backward pass fills a whole gradient for a single slice.

    These are autograd's nodes, with the place of the forward op. ``whole`` is the shape
    of the gradient, ``along`` and ``at`` give the slice that is not zero, ``cut`` is
    the name of the backward op.
    """
    node = nearest(
        trace.ops["parent"], trace.ops["name"].cast(pl.String).str.contains(_NODE)
    )
    made = ops.filter(named(ops, _UNCUTTING)).select("id", "inputs", "name")
    values = trace.inputs.select(
        inputs="id",
        whole=nth("values", 1).str.extract_all(_SIZES).cast(pl.List(pl.Int64)),
        along=nth("values", 2),
        at=nth("values", 3),
    )
    found = made.select(
        "inputs", cut=text("name"), id=node.gather(made["id"])
    ).drop_nulls("id")
    nodes = ops.drop("inputs").join(found, on="id", maintain_order="left")
    return nodes.join(values, on="inputs", how="left", maintain_order="left")

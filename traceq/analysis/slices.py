"""Tensors that a program fills slice by slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.copies import nth
from traceq.analysis.owners import plain_names
from traceq.graph.nesting import nearest

if TYPE_CHECKING:
    from traceq.trace import Trace

_CUTTING = ("aten::select", "aten::slice")
# What may stand between cutting a slice out and writing to it.
_VIEWING = ("aten::view", "aten::expand", "aten::expand_as", "aten::reshape")
_WRITING = "aten::copy_"
_BACKWARD = r"^torch::autograd::CopySlices$"


def slice_writes(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the writes into slices that the program asks for, as ``out[:, i] = x``.

    Added are ``whole``, the shape of what the slice is cut out of, ``along`` and
    ``at``, the dimension and the position where, and ``cut``, the op that does.
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
    """Return the kernels with which the backward pass undoes writes into slices.

    Autograd does not say which write it is that they undo, but ``whole`` is the shape
    of what was written to.
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

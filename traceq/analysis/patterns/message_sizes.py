"""Message sizes of collectives, from the shapes of the ops that start them.

NCCL metadata, which torch writes since 2.3, states what a kernel sends. Without it the
op does, if shapes were recorded: ``c10d::allreduce_`` has the tensors among its inputs.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from traceq.common.expressions import text
from traceq.model.dtypes import ALL_SIZES, SHORT_SIZES

if TYPE_CHECKING:
    from traceq.model.trace import Trace

# Ops whose first argument is the output, and whose second one is what they send.
_SENDS_SECOND = r"gather|scatter|all_?to_?all"


def sent_by_ops(trace: Trace, ops: pl.Series, dtypes: pl.Series) -> pl.DataFrame:
    """Return ``bytes`` and ``tensor_dims`` of what ops of ``c10d`` send, in order.

    The dtypes are the short ones of their kernels, for ops that do not state any. Both
    are null where shapes or the dtype are unknown; ``tensor_dims`` is the number of
    dimensions of the largest tensor: gradients are sent in flat buckets of one.
    """
    names = trace.ops["name"].gather(ops).cast(pl.String)
    inputs = trace.ops["inputs"].gather(ops)
    rows = pl.DataFrame(
        {
            "dims": trace.inputs["dims_text"].gather(inputs).cast(pl.String),
            "types": trace.inputs["types"].gather(inputs),
            "inner_types": trace.inputs["types"].gather(_inner_inputs(trace, ops)),
            "at": names.str.contains(_SENDS_SECOND).cast(pl.Int64).fill_null(0),
            "dtype": dtypes.cast(pl.String),
        }
    )
    shapes = rows.select("dims", "at").unique().drop_nulls()
    sizes = [_size(dims, at) for dims, at in shapes.iter_rows()]
    known = shapes.with_columns(
        elements=pl.Series([size for size, _ in sizes], dtype=pl.Int64),
        tensor_dims=pl.Series([dims for _, dims in sizes], dtype=pl.Int64),
    )
    stated = pl.col("types").list.get(pl.col("at"), null_on_oob=True)
    inside = pl.col("inner_types").list.get(0, null_on_oob=True)
    width = pl.coalesce(
        *(
            name.replace_strict(sizes, default=None, return_dtype=pl.Int64)
            for name, sizes in (
                (stated, ALL_SIZES),
                (inside, ALL_SIZES),
                (pl.col("dtype"), SHORT_SIZES),
            )
        )
    )
    return rows.join(
        known, on=["dims", "at"], how="left", maintain_order="left"
    ).select("tensor_dims", bytes=pl.col("elements") * width)


def _inner_inputs(trace: Trace, ops: pl.Series) -> pl.Series:
    """Return the inputs of what ops call to record themselves, which has one tensor."""
    inner = trace.ops.filter(
        text("name") == "record_param_comms", pl.col("parent").is_not_null()
    ).select(op="parent", inner="inputs")
    called = ops.to_frame("op").cast({"op": trace.ops.schema["parent"]})
    once = inner.unique("op", keep="first", maintain_order=True)
    return called.join(once, on="op", how="left", maintain_order="left")["inner"]


def _size(dims: str, at: int) -> tuple[int | None, int | None]:
    """Return the elements of an op's tensors, and the dimensions of the largest.

    >>> _size("[[[1024,512],[8]],[],[]]", 0)
    (524296, 2)
    >>> _size("[[],[]]", 0)
    (None, None)
    """
    arguments = orjson.loads(dims)
    if not isinstance(arguments, list) or at >= len(arguments):
        return None, None
    tensors = list(_tensors(arguments[at]))
    if not tensors:
        return None, None
    return sum(map(prod, tensors)), len(max(tensors, key=prod))


def _tensors(argument: Any) -> list[list[int]]:  # noqa: ANN401 - lists of lists
    """Return the shapes of a tensor, of a list of them, or of lists of lists."""
    if not isinstance(argument, list) or not argument:
        return []
    if all(isinstance(entry, int) for entry in argument):
        return [argument]
    return [shape for entry in argument for shape in _tensors(entry)]

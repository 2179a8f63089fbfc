"""Work on attention masks: ops that make, combine or cast one, and go with it."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import attention
from traceq.linter import Evidence, Fix, View, fill_false, listed, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceq.linter import Row

# Ops on each element, and copies.
_NAMES = (
    *("add", "and", "bitwise_and", "bitwise_not", "bitwise_or", "clone"),
    *("contiguous", "copy", "div", "eq", "expand", "fill"),
    *("float", "ge", "gt", "half", "le", "logical_and"),
    *("logical_not", "logical_or", "lt", "masked_fill", "mul", "ne"),
    *("neg", "or", "repeat", "rsub", "sub", "to"),
    *("tril", "triu", "type_as", "where", "zero"),
)
_ELEMENTWISE = (
    *(f"aten::{name}{suffix}" for name in _NAMES for suffix in ("", "_")),
    *("aten::__and__", "aten::__or__", "aten::__iand__", "aten::__ior__"),
)
_TRIANGLES = ("aten::tril", "aten::triu", "aten::tril_", "aten::triu_")
_BATCHED = 4
_MOST_NAMES = 4


def mask_work(view: View, rows: Sequence[Row]) -> list[Row]:
    """Return the outermost ops that work on the masks of calls, with their kernels.

    Each op is a row with ``id``, ``name`` and ``kernels``. It is known by what it is
    given: tensors that together have the shape of a mask, and of no query or key.
    """
    shapes = {shape for row in rows for shape in _shapes(row)}
    if not shapes:
        return []
    ops = view.ops.filter(
        view.ops_named(_ELEMENTWISE)[view.ops["id"]],
        view.outermost_ops[view.ops["id"]] == view.ops["id"],
        ~fill_false(pl.col("phase") == "optimizer"),
    )
    ops = ops.with_columns(name=plain(view.trace.ops, ops["name"]))
    inputs = ops.select("name", "inputs").drop_nulls().unique()
    makers = view.with_inputs(inputs).select("name", "inputs", "dims", "types")
    works = [
        (name, number)
        for name, number, dims, types in makers.iter_rows()
        if _is_on(shapes, name, dims, types)
    ]
    if not works:
        return []
    group_rows = ops.join(
        pl.DataFrame(works, schema=inputs.schema, orient="row"), on=["name", "inputs"]
    )
    outermost = view.outermost_ops[view.kernels["op"]]
    kernels = view.kernels.select("id", owner=outermost).drop_nulls()
    return (
        group_rows.select("id", "name")
        .join(
            kernels.group_by("owner").agg(kernels="id"),
            left_on="id",
            right_on="owner",
            how="left",
        )
        .rows(named=True)
    )


def fix(work: Iterable[Row]) -> list[Fix]:
    """Return that there is no mask to work on."""
    work = list(work)
    kernels = [kernel for row in work for kernel in row["kernels"] or ()]
    return [Fix(kernels=kernels, ops=[row["id"] for row in work])] if work else []


def work_lines(view: View, work: Sequence[Row]) -> list[Evidence]:
    if not work:
        return []
    names = listed(list(dict.fromkeys(row["name"] for row in work)), _MOST_NAMES)
    kernels = [kernel for row in work for kernel in row["kernels"] or ()]
    took = int(view.trace.kernels["dur"][kernels].sum()) / view.steps
    goes = "work on the mask, which goes too"
    if not took:
        return [Evidence("making", f"{names}: {goes}")]
    note = f"a step on the GPU: {goes}"
    return [Evidence("making", names, value=took, unit="ns", note=note)]


def _shapes(call: Row) -> set[tuple[int, ...]]:
    """Return the shapes that the mask of a call has or may have had."""
    masks = {
        tuple(entry) for entry in (call["mask"], attention.mask_shape(call)) if entry
    }
    tensors = {tuple(call[part]) for part in ("query", "key", "value") if call[part]}
    return {shape for shape in masks if len(shape) > 1} - tensors


def _is_on(
    shapes: set[tuple[int, ...]],
    name: str,
    dims: Sequence[Sequence[int] | None],
    types: Sequence[str | None],
) -> bool:
    """Return whether inputs have the shape of a mask together.

    Of less than four dimensions weights and activations have such shapes, too: there it
    is a mask only if all of it is boolean, or is cut to a triangle.
    """
    tensors = [tuple(dim) for dim in dims if dim]
    together = _broadcast(tensors)
    if together not in shapes:
        return False
    boolean = {kind for one, kind in zip(dims, types, strict=False) if one} == {"bool"}
    return len(together) == _BATCHED or boolean or name in _TRIANGLES


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of the result of an op on each element.

    >>> _broadcast([(8, 1, 1, 64), (64, 1)])
    (8, 1, 64, 64)
    """
    columns = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return tuple(reversed([max(sizes) for sizes in columns]))

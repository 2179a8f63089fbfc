"""Inputs that change from call to call, and advice for what is recompiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import compilation
from traceq.linter import View, listed, shape, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.linter import Row

# torch._dynamo.config.recompile_limit (cache_size_limit up to torch 2.6): from this
# version on torch may give up and run the frame uncompiled.
_RECOMPILE_LIMIT = 8
# The first has its sizes fixed, the second those that changed as variables.
_LATE = 2


def changed_inputs(view: View, frame: str | None) -> dict[int, list[list[int]]]:
    """Return the shapes of the inputs that differ between versions, by position."""
    if frame is None:
        return {}
    name = text("name")
    region = name.str.contains(compilation.REGION) & name.str.contains(f": {frame}/")
    inside = view.trace.ops.filter(
        view.roots(region).is_not_null(), pl.col("name") == compilation.CALL
    )
    return dict(compilation.changing_inputs(view.with_inputs(inside)).iter_rows())


def versions_before(view: View) -> list[Row]:
    """Return the frames that the steps run in a late version."""
    found = compilation.versions_run(view.trace, view.steady)
    return found.filter(pl.col("version") >= _LATE).rows(named=True)


def advice(inputs: Mapping[int, list[list[int]]], newest: int | None) -> str:
    limit = (
        f"; at {_RECOMPILE_LIMIT} versions torch gives up and runs it uncompiled"
        if newest is not None and newest < _RECOMPILE_LIMIT
        else ""
    )
    shapes = next(iter(inputs.values()), [])
    dims = _changing_dims(shapes)
    if dims:
        marks = listed([f"torch._dynamo.mark_dynamic(x, {dim})" for dim in dims])
        return (
            f"call {marks} on the input of shape {shape(shapes[0])}, compile with"
            f" dynamic=True, or pad it to a few sizes{limit}"
        )
    return (
        "run with TORCH_LOGS=recompiles to see which guard fails; compile with"
        f" dynamic=True if it is a size{limit}"
    )


def _changing_dims(shapes: list[list[int]]) -> list[int]:
    """Return the dimensions that differ, if the shapes have the same number of them.

    >>> _changing_dims([[1, 320], [1, 384]])
    [1]
    """
    if len({len(one) for one in shapes}) != 1:
        return []
    return [
        dim
        for dim, sizes in enumerate(zip(*shapes, strict=True))
        if len(set(sizes)) > 1
    ]

"""Inputs that change from call to call, and advice for what is recompiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import compilation
from traceq.linter import View, listed, named_like, shape, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.linter import Row

# torch._dynamo.config.recompile_limit (cache_size_limit up to torch 2.6): from this
# version on torch may give up and run the frame uncompiled.
_RECOMPILE_LIMIT = 8
# The first has its sizes fixed, the second those that changed as variables.
_LATE = 2
_VERSION = r": (\d+/\d+)$"


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
    """Return the frames that the steps run in a late version, the newest of each.

    A version is there because a guard of those before it failed: what compiled it may
    have been before the recording. A row has ``ids``, those that ran, ``calls``, the
    place of the first, and ``ops``.
    """
    ran = view.ops.filter(named_like(view.ops, compilation.REGION))
    number = text("name").str.extract(_VERSION)
    versions = (
        ran.with_columns(compile_id=number)
        .drop_nulls("compile_id")
        .with_columns(
            frame=pl.col("compile_id").str.extract(r"^(\d+)"),
            version=pl.col("compile_id").str.extract(r"(\d+)$").cast(pl.Int64),
        )
        .group_by("frame", maintain_order=True)
        .agg(
            pl.col("version").max(),
            pl.col("file", "line", "function", "module", "via").first(),
            ids=pl.col("compile_id").unique(maintain_order=True),
            calls=pl.len(),
            ops="id",
        )
    )
    return versions.filter(pl.col("version") >= _LATE).rows(named=True)


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
    if len({len(item) for item in shapes}) != 1:
        return []
    return [
        dim
        for dim, sizes in enumerate(zip(*shapes, strict=True))
        if len(set(sizes)) > 1
    ]

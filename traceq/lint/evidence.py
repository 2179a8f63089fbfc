"""Lines of evidence that rules share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.finding import Evidence
from traceq.model.dtypes import dtype_name as dtype
from traceq.words import counted, shape

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from traceq.lint.view import View

__all__ = ["attention_lines", "dtype", "kernel_lines", "module_line"]


def kernel_lines(view: View, kernels: Collection[int], most: int = 3) -> list[Evidence]:
    """Return the kernels and how often they run in a step, longest time first."""
    names = (
        view.trace.kernels.select("name", "dur")[list(kernels)]
        .group_by("name")
        .agg(calls=pl.len(), time=pl.col("dur").sum())
        .with_columns(pl.col("name").cast(pl.String))
        .sort("time", "name", descending=[True, False])
        .head(most)
    )
    return [
        Evidence("kernel", name, count=calls / view.steps)
        for name, calls, _ in names.iter_rows()
    ]


def module_line(modules: Sequence[str | None]) -> list[Evidence]:
    """Return in how many modules something is, and the first of them."""
    known = [module for module in modules if module]
    if not known:
        return []
    if len(known) == 1:
        return [Evidence("module", known[0])]
    return [Evidence("modules", f"{counted(len(known), 'module')}, as {known[0]}")]


def attention_lines(call: Mapping[str, Any]) -> list[Evidence]:
    """Return the shapes and types of a row of traceq.analysis.patterns.attention."""
    if not call["query"]:
        return [Evidence("dtype", call["dtype"] or "")]
    parts = ("query", "key", "value")
    types = dict.fromkeys(dtype(call[f"{part}_type"]) for part in parts)
    return [
        Evidence("shapes", ", ".join(f"{part} {shape(call[part])}" for part in parts)),
        Evidence("dtype", ", ".join(types)),
    ]


def share_of_steps(view: View, found: int) -> str:
    """Write in how many of the steps something is, as ``2 of 3 steps``."""
    if not view.trace.steps.height:
        return "this trace"
    return f"{found} of {counted(view.steps, 'step')}"

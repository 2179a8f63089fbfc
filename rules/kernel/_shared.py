"""Shared code of the rules on slow kernels: ops below the roofline, by place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.time.roofline import roofline
from traceq.linter import (
    NOTHING,
    Evidence,
    View,
    kernel_lines,
    module_line,
    named_like,
    nth,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.linter import Row

RESIZES = r"^aten::_?upsample_\w+_backward$"
"""Gradients of resized images."""
_RESIZED_FROM = 2  # their argument with the shape of the image
# What the ops of a group have in common, beside their place. Gradients of one shape may
# be of images of different sizes, and the larger the factor the slower their kernel.
_ALIKE = ("name", "dims_text", "resized_from", "phase")


def judged(view: View, pattern: str, min_share: float) -> pl.DataFrame:
    """Return the ops of the roofline whose name matches, with what their inputs are.

    There are none where all of them together do not take this share of the steps.
    """
    ops = roofline(view.trace).ops
    chosen = named_like(ops, pattern)
    # Asked first of two columns: ops have lists of kernels, and most rules find none.
    if not chosen.any() or ops["gpu"].filter(chosen).sum() < _long(view, min_share):
        return NOTHING
    return long_enough(view, ops.filter(chosen), min_share)


def long_enough(view: View, ops: pl.DataFrame, min_share: float) -> pl.DataFrame:
    """Return ops with their inputs, or none where no group of them can be found."""
    if not ops.height or ops["gpu"].sum() < _long(view, min_share):
        return NOTHING
    with_least = ops.filter(pl.col("least").is_not_null())
    resized = text("name").str.contains(RESIZES)
    return view.with_inputs(with_least.rename({"op": "id"})).with_columns(
        resized_from=pl.when(resized).then(nth("values", _RESIZED_FROM))
    )


def _long(view: View, min_share: float) -> float:
    """Return how long a group must take in all steps to be reported."""
    return min_share * view.bound.step_ns * view.steps


def groups(
    view: View, ops: pl.DataFrame, min_share: float, alike: Sequence[str] = _ALIKE
) -> Iterator[Row]:
    """Yield the ops of one place, and alike, that take this share of a step or more.

    A row has ``ids`` and ``kernels``, their time ``gpu_ns``, what the peaks need for
    them, ``least_ns``, the longest ``kernel``, the inputs of the first op, and in
    ``calls`` how many there are, gradients not counted where they come with their op.
    """
    long = _long(view, min_share)
    # All of them together are no shorter than any group.
    if not ops.height or ops["gpu"].sum() < long:
        return
    first = ("name", "dims", "types", "values", "strides", "phase")
    by_line = view.by_place(
        ops,
        *alike,
        **{name: pl.col(name).first() for name in first if name not in alike},
        kernels=pl.col("kernels").explode(),
        calls=(
            (pl.col("name") == pl.col("name").first())
            & (pl.col("phase") == pl.col("phase").first())
        ).sum(),
        gpu_ns=pl.col("gpu").sum(),
        least_ns=pl.col("least").sum(),
        kernel=pl.col("kernel").get(pl.col("gpu").arg_max()).cast(pl.String),
    ).sort("gpu_ns", descending=True, maintain_order=True)
    yield from by_line.filter(pl.col("gpu_ns") >= long).iter_rows(named=True)


def saved(row: Row, efficiency: float, kernels: int = 1) -> float:
    """Return the share of a group's time that goes, if it reached this efficiency.

    What takes its place launches this many kernels for each op.
    """
    shortest = float(len(row["ids"]) * kernels * assumptions.SHORTEST_KERNEL_NS)
    return View.saved_share(row["gpu_ns"], max(row["least_ns"] / efficiency, shortest))


def evidence(view: View, row: Row, *more: Evidence) -> list[Evidence]:
    """Return how long a group takes, how long at the peaks, and on which kernel."""
    return [
        Evidence("gpu", value=row["gpu_ns"] / view.steps, unit="ns", note="a step"),
        Evidence(
            "peak",
            value=row["least_ns"] / view.steps,
            unit="ns",
            note="at the GPU's peaks",
        ),
        *more,
        *kernel_lines(view, row["kernels"], most=1),
        *module_line(row["modules"]),
    ]

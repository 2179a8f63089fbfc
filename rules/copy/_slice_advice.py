"""Loops that copy slices: what the fix removes, and the code that replaces them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.linter import (
    FLOAT32,
    SIZES,
    Evidence,
    Fix,
    View,
    counted,
    roofline_ns,
    shape,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def time_line(
    view: View, label: str, kernels: pl.DataFrame, part: float = 1.0
) -> Evidence:
    spent = int(kernels["dur"].sum()) * part / view.steps
    return Evidence(label, value=spent, unit="ns", note="a step")


def removed_writes(
    view: View,
    row: Mapping[str, Any],
    forward: pl.DataFrame,
    backward: pl.DataFrame,
    part: float,
) -> list[Fix]:
    """Return what goes of writes into slices: their copies, and part of the backward.

    Autograd does not record whose backward it is if several tensors have this shape.
    """
    spent = int(forward["dur"].sum()) + int(backward["dur"].sum()) * part
    saved = saved_share(view, row, spent)
    return [
        Fix(
            kernels=forward["id"],
            kernel_share=saved,
            spans=pl.DataFrame(row["spans"]),
            host_share=1 - 1 / row["slices"],
        ),
        Fix(
            kernels=backward["id"],
            kernel_share=saved * part,
            ops=view.outermost_ops.gather(backward["op"]).drop_nulls().unique(),
            host_share=part * (1 - 1 / row["slices"]),
        ),
    ]


def saved_share(view: View, row: Mapping[str, Any], spent: float) -> float:
    """Return the share of the time that the fix removes: one copy of each remains."""
    tensors = len(row["id"]) / row["slices"]
    moved = 2 * SIZES[FLOAT32] * prod(row["whole"])
    one = roofline_ns(view.gpu, assumptions.COPY_EFFICIENCY, moved=moved)
    return view.saved_share(spent, (one or 0.0) * tensors)


def filled(row: Mapping[str, Any], writes: float) -> str:
    if row["begins"] == 1:
        # They all begin at one position, so that each is of another tensor.
        return (
            f"{counted(writes, 'tensor')} {shape(row['whole'])} a step are filled one"
            f" by one, to different lengths along dimension {row['along']}"
        )
    slices = counted(row["slices"], "slice")
    return (
        f"a {shape(row['whole'])} tensor is filled in {slices} along dimension"
        f" {row['along']}"
    )


def join_at_once(row: Mapping[str, Any]) -> str:
    if row["lengths"] > 1:
        return (
            "collect the slices in a list and join them after the loop:"
            " torch.nn.utils.rnn.pad_sequence(slices, batch_first=True) where they are"
            f" padded, torch.cat(slices, dim={row['along']}) where they follow each"
            " other; or compute all of them at once"
        )
    return (
        "collect the slices in a list and join them after the loop:"
        f" torch.stack(slices, dim={row['along']}); or compute all of them at once"
    )


def cut_at_once(row: Mapping[str, Any]) -> str:
    along = row["along"]
    cut = f"tensor.unbind({along})"
    if any("slice" in name for name in row["cut"]):
        cut = f"tensor.split(sizes, dim={along})"
    return (
        f"cut all slices at once, slices = {cut}, so that the backward joins their"
        " gradients once; or compute all of them at once"
    )

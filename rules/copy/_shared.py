"""Shared code of the rules on copies: evidence on the time in each pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import Evidence

if TYPE_CHECKING:
    import polars as pl

    from traceq.linter import View


def pass_lines(
    view: View, kernels: pl.DataFrame, backward: pl.DataFrame
) -> list[Evidence]:
    """Return the time per step of kernels outside of the backward pass, and in it."""
    inside = int(backward["dur"].sum())
    outside = int(kernels["dur"].sum()) - inside
    return [
        Evidence(label, value=spent / view.steps, unit="ns", note="a step")
        for label, spent in (("forward", outside), ("backward", inside))
    ]

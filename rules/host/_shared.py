"""What rules on the host's account share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.compilation import captures, compilations

if TYPE_CHECKING:
    from collections.abc import Collection

    from traceq.linter import View


def own_time(view: View, ops: Collection[int]) -> pl.DataFrame:
    """Return when the host was at ops themselves: not in ops or launches in them."""
    return view.host_account.own_time(ops)


def settled_ops(view: View) -> pl.DataFrame:
    """Return the ops that neither compile nor capture, nor run in steps that compile.

    What those take is the cost of compiling and capturing, which has rules of its own.
    """
    trace = view.trace
    compiled = compilations(trace, view.steady)["step"].unique()
    captured = captures(trace, view.steady)["id"]
    inside = view.roots(pl.col("id").is_in(captured.implode()))
    return trace.ops.filter(
        inside.is_null(),
        ~pl.col("captured"),
        ~pl.col("compiling"),
        ~pl.col("step").is_in(compiled.implode()),
    )


def launches(view: View) -> pl.DataFrame:
    """Return how many kernels each op launches itself: ``op`` and ``launches``."""
    return view.kernels.group_by("op").agg(launches=pl.len())

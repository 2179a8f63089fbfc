"""Shared code of the rules on the host account."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import ownership
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.patterns import compilation
from traceq.linter import cached_per_trace, fill_false

if TYPE_CHECKING:
    from collections.abc import Collection

    from traceq.linter import Trace, View


def own_time(view: View, ops: Collection[int]) -> pl.DataFrame:
    """Return when the host was at ops themselves: not in ops or launches in them."""
    return view.host_account.own_time(ops)


def settled(view: View, calls: pl.DataFrame) -> pl.DataFrame:
    """Return calls of the host's account that are settled, with what their ops are.

    Left out are those that compile or capture, or run in steps that compile: what they
    take is the cost of compiling and capturing, which has rules of its own.
    """
    calls = calls.filter(fill_false(_settled_ops(view.trace)[calls["op"]]))
    ops = view.trace.ops.drop("id", "name")[calls["op"]]
    return calls.with_columns(ops.get_columns(), id=calls["op"])


@cached_per_trace
def _settled_ops(trace: Trace) -> pl.Series:
    """Return for each op whether it is settled; none is outside of the steps."""
    ops, steady = trace.ops, steady_steps(trace)
    left_out = ops["captured"] | ops["compiling"]
    captured = compilation.captures(trace, steady)["id"]
    if len(captured):
        left_out |= ownership.inside(trace, captured).is_not_null()
    compiled = compilation.compilations(trace, steady)["step"].unique()
    if len(compiled):
        left_out |= fill_false(ops["step"].is_in(compiled.implode()))
    return ops["step"].is_not_null() & ~left_out


def launches(view: View) -> pl.DataFrame:
    """Return how many kernels each op launches itself: ``op`` and ``launches``."""
    return view.kernels.group_by("op").agg(launches=pl.len())

"""How many tokens a step computes, by what it looks up in its embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import named
from traceq.analysis.base.steady import in_steps, steady_steps

if TYPE_CHECKING:
    from traceq.trace import Trace

_EMBEDDING = "aten::embedding"


def tokens_per_step(trace: Trace) -> float | None:
    """Return the rows that a step looks up in the table that it reads most from.

    Positions and token types are looked up in smaller tables, and as often at most;
    of tables that are read as often, it makes no difference. None without shapes, and
    where nothing is looked up: then nobody says what a token is.
    """
    steady = steady_steps(trace)
    looked_up = in_steps(
        trace.ops.filter(named(trace.ops, [_EMBEDDING]) & ~trace.ops["compiling"]),
        trace,
        steady,
    ).join(trace.inputs.select("dims", inputs="id"), on="inputs")
    found = (
        looked_up.select(
            table=pl.col("dims").list.first(),
            rows=pl.col("dims")
            .list.get(1, null_on_oob=True)
            .list.eval(pl.element().product())
            .list.first(),
        )
        .drop_nulls()
        .group_by("table")
        .agg(pl.col("rows").sum())
    )
    most = found["rows"].max()
    return most / steady.count if isinstance(most, int) and most else None

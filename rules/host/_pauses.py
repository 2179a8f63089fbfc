"""Pauses of the host: where it stops in a few steps for much longer than usual."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time import host_activity
from traceq.linter import fill_false, rows_where, text

from ._pause_calls import filling

if TYPE_CHECKING:
    from traceq.linter import View

_AT = ("kind", *host_activity.PLACE)
# Starting and ending the workers of a DataLoader is DAT002's.
_LOADER = r"^torch/utils/data/"
# A pause is this many times as long as the usual one at its place. Heuristic threshold.
_UNUSUAL = 5


def pauses(view: View, least: float) -> pl.DataFrame:
    """Return where the host stops in a few steps, for this long: place and ``spans``.

    ``call`` is the built-in call that fills them, if one does; ``steps`` are those with
    a pause, and ``usual`` is what the place takes in the median step.
    """
    account, windows = view.host_account, view.steady.windows
    spans, activities = account.spans, account.described.activities
    # Times are whole: to compare all of them with a fraction takes twice as long.
    long = spans[rows_where(spans["end"] - spans["start"] >= ceil(least))]
    # Where the first step begins and the last one ends, the profiler itself is at work.
    edge = (pl.col("start") == windows["start"].min()) | (
        pl.col("end") == windows["end"].max()
    )
    chosen = activities.select(
        pl.col("kind").is_in(host_activity.INTERRUPTED)
        & ~fill_false(text("library").str.contains(_LOADER))
    ).to_series()
    long = long.filter(chosen[long["activity"]], ~edge)
    if not long.height:
        return long
    # Of a long recording there are millions of spans: only those at these places.
    places = activities.select(_AT).with_row_index("activity")
    paused = places[long["activity"].unique()].select(_AT)
    here = places.join(paused, on=_AT, how="semi", nulls_equal=True)
    at_these = pl.int_range(pl.len()).is_in(here["activity"].implode())
    near = account.of(at_these, "start", "end", "activity", "step", "recorded")
    near = near.filter(~edge).join(here, on="activity")
    most = near.group_by(*_AT, "step").agg(most=pl.col("recorded").max())
    usual = most.group_by(_AT).agg(
        usual=pl.col("most").median(), seen=pl.col("step").n_unique()
    )
    unusual = (
        account.describe(long, "start", "end", "step", "at", "recorded", "called", *_AT)
        .join(usual, on=_AT, nulls_equal=True, maintain_order="left")
        .filter(
            pl.col("recorded") > _UNUSUAL * pl.col("usual"),
            2 * pl.col("seen") > view.steps,
        )
    )
    if not unusual.height:
        return unusual
    return (
        unusual.hstack(account.describe(unusual, "idle"))
        .with_columns(call=filling(view, unusual, _UNUSUAL))
        .group_by(*_AT, "call", "usual", maintain_order=True)
        .agg(
            pl.col("idle").sum(),
            length=pl.col("recorded").sum(),
            steps=pl.col("step").n_unique(),
            spans=pl.struct("start", "end"),
        )
        .filter(2 * pl.col("steps") < view.steps)
    )

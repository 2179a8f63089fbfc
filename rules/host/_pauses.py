"""Pauses of the host: where it stops in a few steps for much longer than usual."""

from __future__ import annotations

import polars as pl

from traceq.analysis.time import host_activity
from traceq.linter import END, View, text

from ._pause_calls import filling

_AT = ("kind", *host_activity.PLACE)
# A call that mostly takes less than the pause by this factor is not why. Heuristic
# threshold, as that of the pauses themselves.
_UNUSUAL = 5
# A pause is one stop if this part of it is: in nothing else, or in one call. Else it is
# the work of a function. Heuristic threshold.
_ONE_STOP = 0.5


def pauses(view: View, least: float) -> pl.DataFrame:
    """Return where the host stops in a few steps, for this long: place and ``spans``.

    ``call`` is the built-in call that fills them, if one does, and ``work`` the
    function that does; ``steps`` are those with a pause, and ``usual`` is what the
    place takes in the median step.
    """
    account = view.host_account
    long = account.pauses.filter(pl.col("end") - pl.col("start") >= least)
    if not long.height:
        return long
    recorded = pl.col("longest_end") - pl.col("longest_start")
    stops = recorded >= _ONE_STOP * (pl.col("end") - pl.col("start"))
    described = long.select("at", "activity", start="longest_start", end="longest_end")
    rows = pl.concat(
        [
            long.select("start", "end", "step", "usual", stops=stops),
            account.describe(described, "at", "recorded", "called", *_AT),
            account.describe(long, "idle"),
        ],
        how="horizontal",
    )
    rows = rows.with_columns(call=filling(view, rows, _UNUSUAL))
    rows = rows.with_columns(call=pl.when("stops").then("call"))
    rows = rows.hstack(_work(view, rows))
    own = pl.col("work_file").is_not_null()
    place = (
        pl.when(own).then(f"work_{column}").otherwise(column).alias(column)
        for column in host_activity.PLACE
    )
    return (
        rows.with_columns(place)
        .group_by(*_AT, "call", "work", maintain_order=True)
        .agg(
            pl.col("idle").sum(),
            pl.col("usual").median(),
            length=(pl.col("end") - pl.col("start")).sum(),
            steps=pl.col("step").n_unique(),
            spans=pl.struct("start", "end"),
        )
        .filter(2 * pl.col("steps") < view.steps)
    )


def _work(view: View, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the function that a pause is mostly at: ``work``, and the user's place.

    One that mostly takes little is not the reason of a pause that is one stop, which
    may come in any call. The place is null if the function is a library's.
    """
    frames = view.trace.frames
    working = rows.with_row_index("pause").filter(pl.col("call").is_null())
    least = working.select(_ONE_STOP * (pl.col("end") - pl.col("start")).min()).item()
    calls = frames[["ts", "dur", "thread"]].with_row_index("frame")
    calls = calls.filter(
        pl.col("dur") >= (least or 0),
        pl.col("thread").is_in(list(view.host_account.host.threads)),
        frames["file"].is_not_null(),
    )
    inside = (
        working.select("pause", "start", "end", "stops")
        .join(calls, how="cross")
        .filter(
            pl.col("ts") >= pl.col("start"),
            pl.col("end") >= END,
            pl.col("dur") >= _ONE_STOP * (pl.col("end") - pl.col("start")),
        )
        .sort("dur", descending=True, maintain_order=True)
        .unique("pause", keep="first", maintain_order=True)
    )
    names = frames["name"].to_physical()
    long = names[inside["frame"]]
    mostly = (
        pl.DataFrame({"name": names, "mostly": frames["dur"]})
        .filter(pl.col("name").is_in(long.implode()))
        .group_by("name")
        .agg(pl.col("mostly").median())
    )
    inside = (
        inside.with_columns(name=long)
        .join(mostly, on="name", how="left", maintain_order="left")
        .filter(~pl.col("stops") | (_UNUSUAL * pl.col("mostly") >= pl.col("dur")))
    )
    described = frames[inside["frame"]].select(
        inside["pause"],
        work=text("function"),
        **{
            f"work_{column}": pl.when("own").then(column)
            for column in host_activity.PLACE
        },
    )
    return (
        rows.select(pause=pl.int_range(pl.len(), dtype=pl.UInt32))
        .join(described, on="pause", how="left", maintain_order="left")
        .drop("pause")
    )

"""Values that the step of an environment needs: reinforcement learning acts on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import named_like, rows_where, text
from traceq.model import names

if TYPE_CHECKING:
    from traceq.linter import View


def acted_on(view: View, waits: pl.DataFrame) -> pl.Series:
    """Return which waits are for what an environment is stepped with next.

    Nothing is launched between the wait and that step: the program needs the value on
    the host to go on, wherever it is read.
    """
    frames = view.trace.frames
    rows = rows_where(named_like(frames, names.ENVIRONMENT_STEP))
    steps = frames[["file", "thread", "ts"]][rows]
    steps = steps.filter(text("file").str.contains(names.ENVIRONMENT_FILE))
    nothing = pl.repeat(value=False, n=waits.height, dtype=pl.Boolean, eager=True)
    if not steps.height:
        return nothing
    runtime = view.trace.runtime
    launches = runtime[["thread", "ts"]].filter(runtime["call"] == "launch")
    ended = waits.select("thread", "end").with_row_index("row").sort("end")
    following = ended
    for name, events in (("acts", steps), ("launches", launches)):
        following = following.join_asof(
            events.select("thread", pl.col("ts").alias(name)).sort(name),
            left_on="end",
            right_on=name,
            by="thread",
            strategy="forward",
            check_sortedness=False,
        )
    first = pl.col("launches").is_null() | (pl.col("acts") < pl.col("launches"))
    return following.sort("row").select(
        (pl.col("acts").is_not_null() & first).alias("acted_on")
    )["acted_on"]

"""Python calls without a recorded return, ended where they must have ended.

The profiler misses some returns where compiled code switches its tracing off and on,
and lets such calls last until the recording stops. The thread's later work would be
inside of them. A call that begins inside another one does not outlast it.
"""

from __future__ import annotations

import polars as pl

from traceq.graph.nesting import in_preorder, parents

# The writers of traces round to a microsecond.
_ROUNDED_NS = 1_000


def closed(frames: pl.DataFrame) -> pl.DataFrame:
    """Return the calls; one without a return ends with its parent."""
    end = frames["ts"] + frames["dur"]
    last = end.max()
    if not isinstance(last, int):
        return frames
    is_open = end >= last - _ROUNDED_NS
    calls = pl.DataFrame([frames["thread"], frames["ts"], end.alias("end")])
    begun = calls[["thread", "ts"]].filter(is_open).unique()
    around = _around(calls.filter(~is_open), begun["ts"])
    if around.is_empty():
        return frames
    rows = in_preorder(
        pl.concat(
            [
                around.with_columns(begins=pl.lit(value=False)),
                begun.with_columns(end="ts", begins=pl.lit(value=True)),
            ]
        )
    )
    inside = parents(rows["thread"], rows["end"])
    limits = rows.select("thread", "ts", "begins", limit=rows["end"][inside] + 1)
    limits = limits.filter("begins")
    limit = (
        frames[["thread", "ts"]]
        .filter(is_open)
        .join(limits, on=["thread", "ts"], how="left", maintain_order="left")["limit"]
    )
    cut = is_open.arg_true().filter(limit.is_not_null())
    dur = limit.drop_nulls() - frames["ts"][cut]
    return frames.with_columns(frames["dur"].clone().scatter(cut, dur))


def _around(calls: pl.DataFrame, moments: pl.Series) -> pl.DataFrame:
    """Return the calls that began before one of these moments and ended after it.

    Without their first and last nanosecond: what begins or ends with a call is not
    inside of it.
    """
    # Mostly all are of the stack at the start, or of the one at the end: few calls have
    # to be looked at.
    first = calls["ts"].min()
    later = moments.filter(moments > first).sort() if calls.height else moments.clear()
    if not len(later):
        return calls.clear()
    calls = calls.filter(calls["end"] > later[0]).with_columns(
        pl.col("ts") + 1, pl.col("end") - 1
    )
    begun = later.search_sorted(calls["ts"])
    return calls.filter(later.search_sorted(calls["end"], "right") > begun)

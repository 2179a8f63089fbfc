"""Whose Python code was running: around a moment, and inside a span."""

from __future__ import annotations

import polars as pl

from traceq.expressions import END, asof
from traceq.model.names import third_party

PLACE = ("file", "line", "function")


def callers(frames: pl.DataFrame, moments: pl.DataFrame) -> pl.DataFrame:
    """Return the user's innermost calls around moments, most frequent first.

    The moments, few of them, have ``thread`` and ``ts``; the result has the columns of
    PLACE and ``calls``, the number of moments.
    """
    own = frames.filter("user").select(
        *PLACE,
        around=pl.col("thread"),
        start="ts",
        end=pl.col("ts") + pl.col("dur"),
    )
    return (
        moments.select("thread", "ts")
        .with_row_index("moment")
        .join_where(
            own,
            pl.col("thread") == pl.col("around"),
            pl.col("start") <= pl.col("ts"),
            pl.col("end") > pl.col("ts"),
        )
        .sort("start", "end", descending=[True, False])
        .group_by("moment", maintain_order=True)
        .agg(pl.col(PLACE).first())
        .group_by(PLACE)
        .agg(calls=pl.len())
        .sort("calls", *PLACE, descending=[True, False, False, False])
    )


def called_inside(frames: pl.DataFrame, regions: pl.DataFrame) -> pl.DataFrame:
    """Return the user's outermost calls inside regions, longest first.

    The regions have ``thread``, ``ts`` and ``dur`` and do not overlap on a thread; the
    result has the columns of PLACE, ``calls`` and ``time``.
    """
    end = pl.col("ts") + pl.col("dur")
    found = (
        frames.filter("user")
        .sort("ts", "dur", descending=[False, True])
        .join_asof(
            regions.select("thread", region="ts", until=end, ts="ts").sort("ts"),
            on="ts",
            by="thread",
            strategy="backward",
            check_sortedness=False,
        )
        .filter(end <= pl.col("until"))
    )
    before = end.cum_max().shift(1).over("thread", "region").fill_null(0)
    return (
        found.filter(pl.col("ts") >= before)
        .group_by(PLACE)
        .agg(calls=pl.len(), time=pl.col("dur").sum())
        .sort("time", *PLACE, descending=[True, False, False, False])
    )


def library_calls(frames: pl.DataFrame, moments: pl.DataFrame) -> pl.DataFrame:
    """Return the innermost library function that runs at each moment, if any.

    The moments have ``thread`` and ``ts``; the result has a row for each, in their
    order: ``library`` (the file), ``library_line`` and ``library_function``. All are
    null where the user's own code runs. Torch and Python's standard library do not
    count as libraries: their callers do.
    """
    files = frames.select(pl.col("file").unique().drop_nulls())
    files = files.with_columns(library=third_party(pl.col("file").cast(pl.String)))
    rows = moments.select("thread", "ts").with_row_index("moment")
    calls = frames.join(files, on="file").select(
        "thread",
        "library",
        "user",
        start="ts",
        end=END,
        library_line="line",
        library_function=pl.col("function").cast(pl.String),
    )
    # Most calls run in no such moment; those that do are few.
    calls = asof(
        calls.filter(pl.col("library").is_not_null() | pl.col("user")),
        rows.select("thread", next="ts"),
        "start",
        "next",
        by="thread",
        strategy="forward",
    ).filter(pl.col("next") < pl.col("end"))
    innermost = (
        rows.join_where(
            calls.rename({"thread": "of_thread"}),
            pl.col("thread") == pl.col("of_thread"),
            pl.col("start") <= pl.col("ts"),
            pl.col("end") > pl.col("ts"),
        )
        .sort("start", "end", descending=[True, False])
        .unique("moment", keep="first", maintain_order=True)
    )
    return rows.join(innermost, on="moment", how="left", maintain_order="left").select(
        "library",
        pl.when(pl.col("library").is_not_null()).then(
            pl.col("library_line", "library_function")
        ),
    )

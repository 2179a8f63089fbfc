"""Python call stacks of the user's code: around a moment, and inside a span."""

from __future__ import annotations

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.common.expressions import END, asof, text
from traceq.common.intervals import holding
from traceq.graph.nesting import in_preorder, nearest, parents, row_numbers
from traceq.model.owners import third_party

PLACE = ("file", "line", "function")


def callers(frames: pl.DataFrame, moments: pl.DataFrame) -> pl.DataFrame:
    """Return the user's innermost calls around moments, most frequent first.

    The moments, few of them, have ``thread`` and ``ts``; the result has the columns of
    PLACE and ``calls``, the number of moments.
    """
    own = frames.filter("own").select(
        *PLACE,
        around=pl.col("thread"),
        start="ts",
        end=END,
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
    own = frames.filter("own").sort("ts", "dur", descending=[False, True])
    around = regions.select("thread", region="ts", until=END)
    calls = asof(own, around, "ts", "region", by="thread").filter(
        pl.col("until") >= END
    )
    before = END.cum_max().shift(1).over("thread", "region").fill_null(0)
    return (
        calls.filter(pl.col("ts") >= before)
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
    near = _around(frames, moments)
    files = near.select("file", "own").drop_nulls().unique()
    files = files.select("file", library=third_party(text("file"), pl.col("own")))
    classified = near.join(files, on="file", maintain_order="left").filter(
        pl.col("library").is_not_null() | pl.col("own")
    )
    theirs = pl.col("library").is_not_null()
    return _innermost(classified, moments).select(
        "library",
        library_line=pl.when(theirs).then("line"),
        library_function=pl.when(theirs).then(text("function")),
    )


def innermost_calls(frames: pl.DataFrame, moments: pl.DataFrame) -> pl.DataFrame:
    """Return the innermost Python function that runs at each moment, of any owner.

    The moments have ``thread`` and ``ts``; the result has a row for each, in their
    order: ``inner_file``, ``inner_line`` and ``inner_function``, null if none runs,
    and of that call ``inner_start`` and ``inner_end``.
    """
    in_files = _around(frames, moments).drop_nulls("file")
    return _innermost(in_files, moments).select(
        inner_file=text("file"),
        inner_line="line",
        inner_function=text("function"),
        inner_start="ts",
        inner_end=END,
    )


def innermost(frames: pl.DataFrame, moments: pl.DataFrame) -> pl.DataFrame:
    """Return the innermost of the frames around each moment, one row per moment.

    The frames, or regions, have ``thread``, ``ts`` and ``dur``, the moments have
    the first two; where none is around, the row is null.
    """
    return _innermost(_around(frames, moments), moments)


def _innermost(frames: pl.DataFrame, moments: pl.DataFrame) -> pl.DataFrame:
    """Return the innermost frame around each moment, for few frames."""
    # A moment lasts 1 ns: what takes no time is in no tree.
    count, rows = frames.height, frames.height + moments.height
    tree = in_preorder(
        pl.DataFrame(
            {
                "thread": pl.concat([frames["thread"], moments["thread"]]),
                "ts": pl.concat([frames["ts"], moments["ts"]]),
                "end": pl.concat([frames["ts"] + frames["dur"], moments["ts"] + 1]),
                "row": row_numbers(rows),
            }
        )
    )
    row = tree["row"]
    around = nearest(parents(tree["thread"], tree["end"]), row < count)
    frame_rows = row_numbers(rows).scatter(row, row[around])
    return frames[frame_rows[count:]]


@cached_per_trace
def _around(frames: pl.DataFrame, moments: pl.DataFrame) -> pl.DataFrame:
    """Return the frames that contain any of the moments, on any thread.

    Of many frames that is a few, and all others are around none.
    """
    return holding(frames, moments["ts"])

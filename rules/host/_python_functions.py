"""Functions and hooks whose Python the GPU waits for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.time import host_activity, serving
from traceq.linter import Evidence, View, fill_false, text

from ._python_kinds import LOOKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

# A function that calls nothing for this long does something that no trace shows.
# Heuristic threshold: a loop that takes as long usually calls something.
_LONG_NS = 1_000_000
_MOST_CALLED = 3
# Where operator calls take more of a function's time than this, the rest is within the
# error of their cost. Heuristic threshold.
_MOSTLY_CALLS = 0.75


def inside(view: View, where: pl.Expr, *columns: str) -> pl.DataFrame:
    """Return the time in Python of the program's own, edges of the steps aside.

    Where a step begins and ends, the profiler itself is at work. What is done between
    two decode iterations is left to SRV002.
    """
    windows = view.steady.windows
    edge = pl.col("start").is_in(windows["start"].implode()) | pl.col("end").is_in(
        windows["end"].implode()
    )
    called = text("library")
    torch, looks = called.str.contains("^(torch|<)"), called.str.contains(LOOKS[0][1])
    library = (pl.col("kind") == host_activity.LIBRARY) & (~torch | looks)
    own = pl.col("file").is_not_null() & (
        (pl.col("kind") == host_activity.PYTHON) | library
    )
    segments = view.host_account.of(own & where, *columns).filter(~edge)
    between = serving.token_work(view.trace)
    if not len(between):
        return segments
    return segments.filter(~pl.col("start").is_in(between.implode()))


def grouped(segments: pl.DataFrame) -> pl.DataFrame:
    return (
        segments.group_by(host_activity.PLACE)
        .agg(
            pl.col("recorded", "idle", "estimated").sum(),
            calls=pl.col("caller").n_unique(),
        )
        .sort(-pl.col("estimated"), *host_activity.PLACE)
    )


def functions(view: View, least: float) -> pl.DataFrame:
    """Return the functions that take this long beyond what calling operators takes.

    That is ``extra``, in all steps.
    """
    columns = ("start", "end", "activity", "estimated")
    segments = inside(view, pl.lit(value=True), *columns)
    # What activities are is looked up for their sums: of spans there are many more.
    sums = segments.group_by("activity").agg(pl.col("estimated").sum())
    activities = view.host_account.described.activities
    rows = (
        sums.hstack(activities[["kind", *host_activity.PLACE]][sums["activity"]])
        .group_by(host_activity.PLACE)
        .agg(
            pl.col("estimated").sum(),
            own=(pl.col("kind") == host_activity.PYTHON).any(),
        )
        .filter("own", pl.col("estimated") >= least)
        .sort(-pl.col("estimated"), *host_activity.PLACE)
    )
    if not rows.height:
        return rows
    called = view.ops["parent"].is_null() & (view.ops["phase"] != "backward")
    ops = (
        view.ops[[*host_activity.PLACE]]
        .filter(called)
        .group_by(host_activity.PLACE)
        .agg(ops=pl.len())
        .with_columns(pl.col("file", "function").cast(pl.String))
    )
    needed = pl.col("ops").fill_null(0) * assumptions.PYTHON_PER_OP_NS
    return (
        rows.join(
            ops,
            on=host_activity.PLACE,
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        .with_columns(extra=pl.col("estimated") - needed)
        .filter(
            pl.col("extra") >= least,
            pl.col("extra") >= (1 - _MOSTLY_CALLS) * pl.col("estimated"),
        )
    )


def is_at(row: Mapping[str, Any]) -> pl.Expr:
    return pl.all_horizontal(
        pl.col(column).cast(pl.String).eq_missing(pl.lit(row[column]).cast(pl.String))
        for column in host_activity.PLACE
    )


def silent_calls(segments: pl.DataFrame) -> int:
    """Return how often a function calls nothing for long, if that is most it does."""
    long = segments.filter(
        pl.col("kind") == host_activity.PYTHON,
        pl.col("end") - pl.col("start") >= _LONG_NS,
        ~fill_false(pl.col("called").str.starts_with("<")),
    )
    mostly = 2 * int(long["recorded"].sum()) > int(segments["recorded"].sum())
    return long.height if mostly else 0


def is_library(view: View, row: Mapping[str, Any], segments: pl.DataFrame) -> bool:
    """Return whether most of it is a library's Python around operators that it runs.

    It cannot be moved away from them, unlike what decodes images or texts.
    """
    package = pl.col("library").str.extract(r"^(?:.*site-packages/)?([^/]+)/")
    packages = (
        segments.with_columns(package=package)
        .drop_nulls("package")
        .group_by("package")
        .agg(pl.col("estimated").sum())
        .sort(-pl.col("estimated"), "package")
    )
    if (
        not packages.height
        or 2 * packages["estimated"][0] < segments["estimated"].sum()
    ):
        return False
    library = str(packages["package"][0])
    via = view.ops.filter(is_at(row))["via"].cast(pl.String)
    theirs = via.str.contains(rf"\((?:.*/)?{re.escape(library)}/")
    return bool(fill_false(theirs).any())


def times(view: View, row: Mapping[str, Any], label: str) -> Iterator[Evidence]:
    for called, column, note in (
        (label, "estimated", "a step, estimated without the profiler"),
        ("recorded", "recorded", "a step"),
    ):
        # Whole nanoseconds: the last digits of a sum depend on the order of threads.
        value = round(row[column] / view.steps)
        yield Evidence(called, value=value, unit="ns", note=note)


def called_line(view: View, segments: pl.DataFrame) -> Iterator[Evidence]:
    """Yield what the function calls longest."""
    lines = (
        segments.with_columns(call=pl.coalesce("library", "called"))
        .filter(pl.col("library").is_not_null() | pl.col("call").str.starts_with("<"))
        .group_by("call")
        .agg(
            pl.col("estimated").sum(),
            count=pl.col("at").n_unique(),
            # Of a library's function that is all that it calls, not how often it is.
            counted=pl.col("library").is_null().all(),
        )
        .sort(-pl.col("estimated"), "call")
    )
    for row in lines.head(_MOST_CALLED).iter_rows(named=True):
        count = round(row["count"] / view.steps) if row["counted"] else None
        yield Evidence("calls", row["call"], count=count)

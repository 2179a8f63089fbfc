"""Sequence of the host's outermost events, in which iterations are searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import END, text
from traceq.model.names import LANDMARKS, TORCH_REGION

if TYPE_CHECKING:
    from traceq.graph.host import Frames

LONGEST_GRAM = 4
_STOP = "^(cuda|hip)DeviceSynchronize$"


def event_sequence(raw: Frames) -> pl.DataFrame:
    """Return the outermost events of the working threads, by start.

    Its columns: ``at``, the row; ``name``, as a number; ``ts``, ``end``; ``gap``, the
    time before it in which the host did nothing; and one for each landmark, whether
    it, or something inside of it, is one.
    """
    host = _host(raw) if raw["ops"].height + raw["runtime"].height else None
    host = _on_busiest_stream(raw["kernels"]) if host is None else host
    # Threads that only load data run ops too, and beside the loop.
    works = pl.col("call").any().over("thread") | ~pl.col("call").any()
    names = host.select("name").unique(maintain_order=True).collect()["name"]
    return (
        host.filter(works)
        .sort("thread", "ts", -pl.col("end"))
        .with_columns(of=_outer().cum_sum())
        .join(_described(names), on="name", how="left", maintain_order="left")
        .group_by("of", maintain_order=True)
        .agg(
            pl.col("number", "thread", "ts", "end").first(),
            *(pl.col(landmark).any() for landmark in LANDMARKS),
        )
        .sort("ts", "thread")
        .select(
            pl.int_range(pl.len(), dtype=pl.Int64).alias("at"),
            pl.col("number").alias("name"),
            "ts",
            "end",
            (pl.col("ts") - pl.col("end").cum_max().shift(1)).alias("gap"),
            *LANDMARKS,
        )
        .collect()
    )


def _host(raw: Frames) -> pl.LazyFrame:
    """Return ops, runtime calls, and the regions that torch itself opens."""
    regions = raw["annotations"].filter(
        ~pl.col("on_gpu") & text("name").str.contains(TORCH_REGION)
    )
    tables = {"regions": regions, "ops": raw["ops"], "runtime": raw["runtime"]}
    host = pl.concat(
        table.lazy().select(
            "name", "thread", "ts", end=END, call=pl.lit(name == "runtime")
        )
        for name, table in tables.items()
    )
    # With a last one the profiler itself waits for the GPU, when it is stopped.
    calls = raw["runtime"]["name"].unique()
    stops = calls.filter(calls.cast(pl.String).str.contains(_STOP))
    is_stop = pl.col("name").is_in(stops.implode()) & pl.col("call")
    return host.filter(~((pl.col("ts") == pl.col("ts").max()) & is_stop))


def _on_busiest_stream(kernels: pl.DataFrame) -> pl.LazyFrame:
    """Return the GPU's work in place of the host's, where that was not recorded."""
    busiest = kernels.group_by("thread").agg(pl.col("dur").sum()).sort("dur", "thread")
    work = kernels.join(busiest.select("thread").tail(1), on="thread", how="semi")
    columns = work.select("name", "thread", "ts", end=END, call=pl.lit(value=False))
    return columns.lazy()


def _outer() -> pl.Expr:
    """Return a filter of rows, by thread and start, that are inside of no other."""
    before = pl.col("end").cum_max().shift(1).over("thread")
    return (pl.col("ts") >= before).fill_null(value=True)


def _described(names: pl.Series) -> pl.LazyFrame:
    """Return a number for each distinct name, and which landmarks it is."""
    return (
        names.to_frame("name")
        .lazy()
        .with_columns(
            pl.int_range(pl.len(), dtype=pl.UInt64).alias("number"),
            *(
                text("name").str.contains(pattern).alias(landmark)
                for landmark, pattern in LANDMARKS.items()
            ),
        )
    )


def ngrams(sequence: pl.DataFrame) -> pl.DataFrame:
    """Return each place of each name, and of two and four names in a row.

    Where a loop does everything several times an iteration, a few names in a row are
    there once. Columns: ``gram``, a number; ``at``; ``count``, how often it is there.
    """
    names = sequence.select("at", gram="name")
    pairs = _joined(names, 1)
    fours = _joined(pairs, 2)
    kinds = (names, pairs, fours)
    return (
        pl.concat(
            table.with_columns(pl.col("gram") * len(kinds) + kind)
            for kind, table in enumerate(kinds)
        )
        .with_columns(count=pl.len().over("gram").cast(pl.Int64))
        .filter(pl.col("count") > 1)
    )


def _joined(grams: pl.DataFrame, by: int) -> pl.DataFrame:
    """Return grams of twice the length, each at the place where it begins."""
    both = pl.col("gram") * (pl.col("gram").max() + 1) + pl.col("gram").shift(-by)
    # As small numbers again, so that twice the length still has a number of its own.
    return (
        grams.with_columns(gram=both)
        .drop_nulls()
        .with_columns(pl.col("gram").rank("dense").cast(pl.UInt64))
    )


def piece_of(at: pl.Series, borders: pl.Series) -> pl.Series:
    """Return the number of the piece that a place is in; -1 before the first border."""
    return borders.search_sorted(at, side="right").cast(pl.Int64) - 1


def similarity(pieces: pl.DataFrame, other: pl.Expr) -> pl.Series:
    """Return the similarity of each piece to another one, by number."""
    counts = pieces.group_by("piece", "name").agg(times=pl.len().cast(pl.Int64))
    theirs = counts.with_columns(piece=other)
    both = counts.join(theirs, on=("piece", "name"), how="full", coalesce=True)
    return (
        both.with_columns(pl.col("times", "times_right").fill_null(0))
        .group_by("piece")
        .agg(
            pl.min_horizontal("times", "times_right").sum()
            / pl.max_horizontal("times", "times_right").sum()
        )
        .sort("piece")
        .to_series(1)
    )

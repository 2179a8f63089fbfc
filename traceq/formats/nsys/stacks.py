"""Python stacks of CUDA calls, as stacks of the ops that make the calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.formats.nsys import processes
from traceq.formats.nsys.activities import integers, named_by, thread_lane

if TYPE_CHECKING:
    from traceq.formats.nsys.export import Export
    from traceq.formats.nsys.processes import Process

CHAINS = "CUDA_CALLCHAINS"
_CALL = ("start", "end", "globalTid", "callchainId")
_CHAIN = ("id", "symbol", "module", "stackDepth")
# A Python frame names its file, with the symbol or as the module.
_FILE = r"([^\s\[(]+\.py)(?::([0-9]+))?"
_FUNCTION = r"^([\w.<>]+)"


def with_stacks(
    ops: pl.DataFrame, export: Export, process: Process, strings: pl.DataFrame
) -> pl.DataFrame:
    """Return raw ops with the Python stack of the first CUDA call in each."""
    if CHAINS not in export.tables or ops.is_empty():
        return ops
    calls = export.read(
        processes.CALLS,
        integers(_CALL),
        process.rows_of(export, processes.CALLS),
        lambda chunk: chunk.drop_nulls(["start", "callchainId"]),
    )
    stacks = _stacks(export, strings)
    if calls.is_empty() or stacks.is_empty():
        return ops
    began = ops.with_row_index("row").select(
        "row", "lane", "ts", until=pl.col("ts") + pl.col("dur")
    )
    inside = (
        calls.select(thread_lane("globalTid"), "callchainId", until="end", ts="start")
        .sort("ts")
        .join_asof(
            began.sort("ts"), on="ts", by="lane", suffix="_op", check_sortedness=False
        )
        .filter(pl.col("until_op") >= pl.col("until"))
        .join(stacks, left_on="callchainId", right_on="id", how="inner")
        .sort("ts")
        .unique("row", keep="first", maintain_order=True)
        .select("row", "stack")
    )
    known = ops.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row")).join(
        inside, on="row", how="left", maintain_order="left"
    )
    return ops.with_columns(call_stack=known["stack"].cast(pl.Categorical))


def _stacks(export: Export, strings: pl.DataFrame) -> pl.DataFrame:
    """Return ``id`` and ``stack`` of the chains with Python frames, innermost first."""
    chains = export.read(CHAINS, integers(_CHAIN)).drop_nulls("id")
    frames = chains.with_columns(
        symbol=named_by(chains["symbol"], strings).cast(pl.String),
        module=named_by(chains["module"], strings).cast(pl.String),
    )
    place = pl.coalesce(
        pl.when(pl.col(name).str.contains(_FILE)).then(pl.col(name))
        for name in ("module", "symbol")
    ).str.extract_groups(_FILE)
    return (
        frames.with_columns(place=place)
        .filter(pl.col("place").struct.field("1").is_not_null())
        .with_columns(
            frame=pl.format(
                "{}({}): {}",
                pl.col("place").struct.field("1"),
                pl.col("place").struct.field("2").fill_null("0"),
                pl.col("symbol").str.extract(_FUNCTION).fill_null("?"),
            )
        )
        .sort("id", "stackDepth")
        .group_by("id", maintain_order=True)
        .agg(stack=pl.col("frame").str.join(";"))
    )

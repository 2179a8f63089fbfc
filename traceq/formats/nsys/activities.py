"""GPU work and CUDA calls: the raw tables ``kernels`` and ``runtime``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.formats import tables
from traceq.formats.nsys import processes
from traceq.model import schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.formats.nsys.export import Export
    from traceq.formats.nsys.processes import Process

_INTEGER = pl.Int64()
_SPAN = ("start", "end")
_ON_GPU = (*_SPAN, "deviceId", "streamId", "correlationId")
_GRID = ("gridX", "gridY", "gridZ")
_BLOCK = ("blockX", "blockY", "blockZ")
_KERNEL = (
    *_ON_GPU,
    *("demangledName", "shortName", "registersPerThread"),
    *("staticSharedMemory", "dynamicSharedMemory", "graphId", "graphNodeId"),
    *_GRID,
    *_BLOCK,
)
_DIRECTIONS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "HtoD",
    12: "DtoH",
    13: "DtoD",
}
_MEMORY = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
}
_UNKNOWN = "Unknown"
# As in cudaLaunchKernel_v7000, but not cudaStreamGetCaptureInfo_v2.
_VERSION = r"_v\d{4,}$"
# As compilers differ in the name of a namespace without one.
_UNNAMED = ("<unnamed>", "(anonymous namespace)")
_ACTIVITY = pl.Enum(schema.ACTIVITIES)
WHOLE_GRAPH = "CUDA graph"
"""Name of GPU work that is a whole CUDA graph, whose kernels were not recorded."""


def integers(names: tuple[str, ...]) -> dict[str, pl.DataType]:
    """Return columns of integers, by name."""
    return dict.fromkeys(names, _INTEGER)


def gpu_work(
    export: Export, process: Process, strings: pl.DataFrame, sms: Mapping[int, int]
) -> pl.DataFrame:
    """Return the raw table of kernels, copies, sets and whole graphs of a process."""
    parts = [
        _kernels(export, process, strings, sms),
        _copies(export, process),
        _sets(export, process),
        _graphs(export, process),
    ]
    return pl.concat(parts)


def runtime(export: Export, process: Process, strings: pl.DataFrame) -> pl.DataFrame:
    """Return the raw table of runtime and driver calls of a process."""
    columns = (*_SPAN, "globalTid", "correlationId", "nameId")
    calls = export.read(
        processes.CALLS,
        integers(columns),
        process.rows_of(export, processes.CALLS),
        lambda chunk: chunk.drop_nulls("start"),
    )
    distinct = strings.with_columns(pl.col("value").str.replace(_VERSION, ""))
    return _shaped(
        "runtime",
        calls.select(
            _named(calls["nameId"], distinct),
            thread_lane("globalTid"),
            *_times(),
            correlation="correlationId",
        ),
    )


def thread_lane(column: str) -> pl.Expr:
    """Return the lane of a host thread, by its global id."""
    both = [
        (pl.col(column) // 2**24 % 2**24).cast(pl.String),
        (pl.col(column) % 2**24).cast(pl.String),
    ]
    lane = pl.concat_str(both, separator=tables.LANE_SEPARATOR)
    return lane.cast(pl.Categorical).alias("lane")


def gpu_lane() -> pl.Expr:
    """Return the lane of a GPU stream."""
    both = [pl.col("deviceId").cast(pl.String), pl.col("streamId").cast(pl.String)]
    filled = [pl.coalesce(one, pl.lit("0")) for one in both]
    lane = pl.concat_str(filled, separator=tables.LANE_SEPARATOR)
    return lane.cast(pl.Categorical).alias("lane")


def _times() -> list[pl.Expr]:
    length = (pl.col("end") - pl.col("start")).fill_null(0).clip(lower_bound=0)
    return [pl.col("start").alias("ts"), length.alias("dur")]


def _named(ids: pl.Series, strings: pl.DataFrame) -> pl.Series:
    """Return the texts of ids as categories."""
    texts = strings.select("id", pl.col("value").cast(pl.Categorical))
    return (
        ids.to_frame("id")
        .join(texts, on="id", how="left", maintain_order="left")["value"]
        .fill_null("?")
        .alias("name")
    )


def _on_gpu() -> list[pl.Expr]:
    return [
        gpu_lane(),
        *_times(),
        pl.col("deviceId").alias("device"),
        pl.col("streamId").alias("stream"),
        pl.col("correlationId").alias("correlation"),
    ]


def _read(
    export: Export, process: Process, table: str, columns: tuple[str, ...]
) -> pl.DataFrame:
    only = process.rows_of(export, table)
    return export.read(
        table, integers(columns), only, lambda chunk: chunk.drop_nulls("start")
    )


def _kernels(
    export: Export, process: Process, strings: pl.DataFrame, sms: Mapping[int, int]
) -> pl.DataFrame:
    rows = _read(export, process, processes.KERNELS, _KERNEL)
    texts = strings.with_columns(
        pl.col("value").str.replace_all(*_UNNAMED, literal=True)
    )
    name = rows["demangledName"].fill_null(rows["shortName"])
    shared = pl.sum_horizontal("staticSharedMemory", "dynamicSharedMemory")
    units = pl.col("deviceId").replace_strict(sms, default=None, return_dtype=pl.Int64)
    blocks = pl.col("gridX") * pl.col("gridY") * pl.col("gridZ")
    return _shaped(
        "kernels",
        rows.select(
            _named(name, texts),
            *_on_gpu(),
            pl.concat_list(_GRID).alias("grid"),
            pl.concat_list(_BLOCK).alias("block"),
            registers="registersPerThread",
            shared_memory=shared,
            blocks_per_sm=blocks / units,
            graph_id="graphId",
            graph_node="graphNodeId",
            activity=pl.lit("kernel", _ACTIVITY),
        ),
    )


def _copies(export: Export, process: Process) -> pl.DataFrame:
    columns = (*_ON_GPU, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId")
    rows = _read(export, process, processes.COPIES, columns)
    source, target = (
        pl.col(kind).replace_strict(_MEMORY, default=_UNKNOWN, return_dtype=pl.String)
        for kind in ("srcKind", "dstKind")
    )
    direction = pl.col("copyKind").replace_strict(
        _DIRECTIONS, default=_UNKNOWN, return_dtype=pl.String
    )
    name = pl.format("Memcpy {} ({} -> {})", direction, source, target)
    return _shaped(
        "kernels",
        rows.select(
            *_on_gpu(),
            "bytes",
            name=name.cast(pl.Categorical),
            graph_node="graphNodeId",
            activity=pl.lit("memcpy", _ACTIVITY),
        ),
    )


def _sets(export: Export, process: Process) -> pl.DataFrame:
    columns = (*_ON_GPU, "bytes", "memKind", "graphNodeId")
    rows = _read(export, process, processes.SETS, columns)
    memory = pl.col("memKind").replace_strict(
        _MEMORY, default=_UNKNOWN, return_dtype=pl.String
    )
    return _shaped(
        "kernels",
        rows.select(
            *_on_gpu(),
            "bytes",
            name=pl.format("Memset ({})", memory).cast(pl.Categorical),
            graph_node="graphNodeId",
            activity=pl.lit("memset", _ACTIVITY),
        ),
    )


def _graphs(export: Export, process: Process) -> pl.DataFrame:
    """Return the runs of CUDA graphs that were traced as a whole, a row each."""
    rows = _read(export, process, processes.GRAPHS, (*_ON_GPU, "graphId"))
    return _shaped(
        "kernels",
        rows.select(
            *_on_gpu(),
            name=pl.lit(WHOLE_GRAPH).cast(pl.Categorical),
            graph_id="graphId",
            activity=pl.lit("kernel", _ACTIVITY),
        ),
    )


def _shaped(table: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows as a raw table; columns that they lack are null."""
    return rows.select(
        pl.col(name).cast(dtype)
        if name in rows.columns
        else pl.lit(None, dtype).alias(name)
        for name, dtype in tables.dtypes(table).items()
    )

"""GPU work and CUDA calls: the raw tables ``kernels`` and ``runtime``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.formats import tables
from traceq.formats.nsys import processes
from traceq.model import schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
_NO_NAME = pl.Series(["?"], dtype=pl.Categorical)
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
    names = _replaced(strings, _VERSION, "")

    def shaped(chunk: pl.DataFrame) -> pl.DataFrame:
        calls = chunk.drop_nulls("start")
        named = calls.select(
            named_by(calls["nameId"], names),
            thread_lane("globalTid"),
            *_times(),
            correlation="correlationId",
        )
        return _shaped("runtime", named)

    only = process.rows_of(export, processes.CALLS)
    return export.read(processes.CALLS, integers(columns), only, shaped)


def _replaced(strings: pl.DataFrame, pattern: str, other: str) -> pl.DataFrame:
    """Return the texts with what matches a pattern replaced, as categories."""
    value = pl.col("value").cast(pl.String).str.replace_all(pattern, other)
    return strings.with_columns(value.cast(pl.Categorical))


def thread_lane(column: str) -> pl.Expr:
    """Return the lane of a host thread, by its global id; without one of thread 0."""
    both = [pl.col(column) // 2**24 % 2**24, pl.col(column) % 2**24]
    return _lane(both)


def gpu_lane() -> pl.Expr:
    """Return the lane of a GPU stream."""
    return _lane([pl.col("deviceId"), pl.col("streamId")])


def _lane(parts: list[pl.Expr]) -> pl.Expr:
    texts = [pl.coalesce(part.cast(pl.String), pl.lit("0")) for part in parts]
    lane = pl.concat_str(texts, separator=tables.LANE_SEPARATOR)
    return lane.cast(pl.Categorical).alias("lane")


def _times() -> list[pl.Expr]:
    length = (pl.col("end") - pl.col("start")).fill_null(0).clip(lower_bound=0)
    return [pl.col("start").alias("ts"), length.alias("dur")]


def named_by(ids: pl.Series, strings: pl.DataFrame) -> pl.Series:
    """Return the texts of ids as categories; ``strings`` are sorted by id."""
    if strings.is_empty():
        return pl.Series(["?"], dtype=pl.Categorical).new_from_index(0, len(ids))
    place = strings["id"].search_sorted(ids.fill_null(-1))
    place = place.clip(upper_bound=strings.height - 1)
    there = strings["id"][place] == ids
    texts = strings["value"][place]
    return texts.zip_with(there.fill_null(value=False), _NO_NAME).alias("name")


def _on_gpu() -> list[pl.Expr]:
    return [
        gpu_lane(),
        *_times(),
        pl.col("deviceId").alias("device"),
        pl.col("streamId").alias("stream"),
        pl.col("correlationId").alias("correlation"),
    ]


def _read(
    export: Export,
    process: Process,
    table: str,
    columns: tuple[str, ...],
    chosen: Callable[[pl.DataFrame], list[pl.Expr | pl.Series]],
) -> pl.DataFrame:
    """Return the rows of a process as the raw table, made chunk by chunk."""

    def shaped(chunk: pl.DataFrame) -> pl.DataFrame:
        rows = chunk.drop_nulls("start")
        return _shaped("kernels", rows.select(*_on_gpu(), *chosen(rows)))

    only = process.rows_of(export, table)
    return export.read(table, integers(columns), only, shaped)


def _kernels(
    export: Export, process: Process, strings: pl.DataFrame, sms: Mapping[int, int]
) -> pl.DataFrame:
    texts = _replaced(strings, *_UNNAMED)
    shared = pl.sum_horizontal("staticSharedMemory", "dynamicSharedMemory")
    units = pl.col("deviceId").replace_strict(sms, default=None, return_dtype=pl.Int64)
    blocks = pl.col("gridX") * pl.col("gridY") * pl.col("gridZ")
    facts = [
        pl.concat_list(_GRID).alias("grid"),
        pl.concat_list(_BLOCK).alias("block"),
        pl.col("registersPerThread").alias("registers"),
        shared.alias("shared_memory"),
        (blocks / units).alias("blocks_per_sm"),
        pl.col("graphId").alias("graph_id"),
        pl.col("graphNodeId").alias("graph_node"),
        pl.lit("kernel", _ACTIVITY).alias("activity"),
    ]

    def chosen(rows: pl.DataFrame) -> list[pl.Expr | pl.Series]:
        name = rows["demangledName"].fill_null(rows["shortName"])
        return [named_by(name, texts), *facts]

    return _read(export, process, processes.KERNELS, _KERNEL, chosen)


def _copies(export: Export, process: Process) -> pl.DataFrame:
    columns = (*_ON_GPU, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId")
    source, target = (_kind_of_memory(kind) for kind in ("srcKind", "dstKind"))
    direction = pl.col("copyKind").replace_strict(
        _DIRECTIONS, default=_UNKNOWN, return_dtype=pl.String
    )
    name = pl.format("Memcpy {} ({} -> {})", direction, source, target)
    chosen = _sized(name, "memcpy")
    return _read(export, process, processes.COPIES, columns, lambda _: chosen)


def _sets(export: Export, process: Process) -> pl.DataFrame:
    columns = (*_ON_GPU, "bytes", "memKind", "graphNodeId")
    chosen = _sized(pl.format("Memset ({})", _kind_of_memory("memKind")), "memset")
    return _read(export, process, processes.SETS, columns, lambda _: chosen)


def _kind_of_memory(column: str) -> pl.Expr:
    return pl.col(column).replace_strict(
        _MEMORY, default=_UNKNOWN, return_dtype=pl.String
    )


def _sized(name: pl.Expr, activity: str) -> list[pl.Expr | pl.Series]:
    return [
        pl.col("bytes"),
        name.cast(pl.Categorical).alias("name"),
        pl.col("graphNodeId").alias("graph_node"),
        pl.lit(activity, _ACTIVITY).alias("activity"),
    ]


def _graphs(export: Export, process: Process) -> pl.DataFrame:
    """Return the runs of CUDA graphs that were traced as a whole, a row each."""
    chosen: list[pl.Expr | pl.Series] = [
        pl.lit(WHOLE_GRAPH).cast(pl.Categorical).alias("name"),
        pl.col("graphId").alias("graph_id"),
        pl.lit("kernel", _ACTIVITY).alias("activity"),
    ]
    columns = (*_ON_GPU, "graphId")
    return _read(export, process, processes.GRAPHS, columns, lambda _: chosen)


def _shaped(table: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows as a raw table; columns that they lack are null."""
    return rows.select(
        pl.col(name).cast(dtype)
        if name in rows.columns
        else pl.lit(None, dtype).alias(name)
        for name, dtype in tables.dtypes(table).items()
    )

"""Kineto captures rewritten as exports of Nsight Systems, for tests of that reader.

Operators and regions become NVTX ranges with the texts of torch's getNvtxStr, GPU work
and calls become CUPTI's tables. What Nsight Systems does not record is left out: Python
frames, allocations, dtypes, strides and values of inputs.
"""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from traceq.formats.chrome import RawTrace

PROCESS = (1 << 48) | (1234 << 24)
_COPY = re.compile(r"Memcpy (\w+) \((.+?) -> (.+?)\)")
_SET = re.compile(r"Memset \((.+?)\)")
_DIRECTIONS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "HtoH": 9, "PtoP": 10}
_MEMORY = {"Pageable": 0, "Pinned": 1, "Device": 2, "Array": 3, "Managed": 4}
_OVERHEAD = {"Buffer Flush": 3, "Instrumentation": 4, "Resource": 5}
_NUMBERS = ("ScalarList",)
_TABLES = {
    "StringIds": "id, value",
    "META_DATA_EXPORT": "name, value",
    "META_DATA_CAPTURE": "name, value",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs, systemClockNs",
    "TARGET_INFO_GPU": "id, name, totalMemory, smCount, computeMajor, computeMinor",
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start, end, deviceId, streamId, correlationId, globalPid, demangledName,"
        " registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ,"
        " staticSharedMemory, dynamicSharedMemory, graphId, graphNodeId"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start, end, deviceId, streamId, correlationId, globalPid, bytes, copyKind,"
        " srcKind, dstKind, graphNodeId"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start, end, deviceId, streamId, correlationId, globalPid, bytes, memKind,"
        " graphNodeId"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, globalTid, correlationId, nameId",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start, end, globalTid, overheadType",
    "NVTX_EVENTS": "start, end, eventType, text, globalTid, textId, domainId",
}


class _Strings:
    """Texts by id, as in StringIds."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def id_of(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids) + 1)


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of an export, without rows."""
    for name, columns in _TABLES.items():
        connection.execute(f"CREATE TABLE {name} ({columns})")


def write_export(path: Path, raw: RawTrace, *, shapes: bool = True) -> None:
    """Write a raw trace as an SQLite export of Nsight Systems."""
    strings = _Strings()
    tables: dict[str, Iterable[Sequence[Any]]] = {
        **_gpu_work(raw, strings),
        "CUPTI_ACTIVITY_KIND_RUNTIME": [*_calls(raw, strings)],
        "CUPTI_ACTIVITY_KIND_OVERHEAD": _overhead(raw),
        "NVTX_EVENTS": [*_ops(raw, shapes=shapes), *_regions(raw)],
        "TARGET_INFO_GPU": _gpus(raw),
        "TARGET_INFO_SESSION_START_TIME": [(0, 0)],
        "META_DATA_EXPORT": [("EXPORT_PRODUCT_VERSION", "2026.2.1.210")],
        "META_DATA_CAPTURE": [("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node")],
    }
    tables["StringIds"] = [(number, text) for text, number in strings.ids.items()]
    connection = sqlite3.connect(path)
    create_tables(connection)
    for name, columns in _TABLES.items():
        places = ", ".join("?" * (columns.count(",") + 1))
        rows = tables[name]
        connection.executemany(f"INSERT INTO {name} VALUES ({places})", rows)  # noqa: S608 - of this file
    connection.commit()
    connection.close()


def _span(row: dict[str, Any], start: int) -> tuple[int, int]:
    begin = start + row["ts"]
    return begin, begin + row["dur"]


def _thread(row: dict[str, Any]) -> int:
    return PROCESS | (row["thread"] + 1)


def _gpu_work(raw: RawTrace, strings: _Strings) -> dict[str, list[Sequence[Any]]]:
    kernels: list[Sequence[Any]] = []
    copies: list[Sequence[Any]] = []
    sets: list[Sequence[Any]] = []
    for row in raw.tables["kernels"].iter_rows(named=True):
        name = str(row["name"])
        place = (row["device"], row["stream"], row["correlation"], PROCESS)
        span = _span(row, raw.start)
        if row["activity"] == "kernel":
            grid, block = (row[key] or [None] * 3 for key in ("grid", "block"))
            facts = (row["registers"], *grid, *block, 0, row["shared_memory"])
            graph = (row["graph_id"], row["graph_node"])
            kernels.append((*span, *place, strings.id_of(name), *facts, *graph))
        elif copy := _COPY.match(name):
            kinds = (_DIRECTIONS[copy[1]], _MEMORY[copy[2]], _MEMORY[copy[3]])
            copies.append((*span, *place, row["bytes"], *kinds, row["graph_node"]))
        elif memory := _SET.match(name):
            kind = _MEMORY.get(memory[1], 7)
            sets.append((*span, *place, row["bytes"], kind, row["graph_node"]))
    return {
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
        "CUPTI_ACTIVITY_KIND_MEMCPY": copies,
        "CUPTI_ACTIVITY_KIND_MEMSET": sets,
    }


def _calls(raw: RawTrace, strings: _Strings) -> Iterable[Sequence[Any]]:
    for row in raw.tables["runtime"].iter_rows(named=True):
        name = str(row["name"])
        # Calls of the runtime carry the version of CUDA they came with.
        known = f"{name}_v3020" if name.startswith("cuda") else name
        call = (_thread(row), row["correlation"], strings.id_of(known))
        yield (*_span(row, raw.start), *call)


def _overhead(raw: RawTrace) -> Iterable[Sequence[Any]]:
    for row in raw.tables["other"].iter_rows(named=True):
        kind = _OVERHEAD.get(str(row["name"]))
        if row["category"] == "overhead" and kind:
            yield (*_span(row, raw.start), _thread(row), kind)


def _ops(raw: RawTrace, *, shapes: bool) -> Iterable[Sequence[Any]]:
    inputs = raw.tables["inputs"]
    sizes = [
        _sizes(text, types)
        for text, types in inputs.select("dims_text", "types").iter_rows()
    ]
    ops = raw.tables["ops"].with_row_index("op_id", offset=1)
    for row in ops.iter_rows(named=True):
        text = str(row["name"])
        if row["sequence"] is not None:
            text += f", seq = {row['sequence']}"
        text += f", op_id = {row['op_id']}"
        if shapes and row["inputs"] is not None and sizes[row["inputs"]]:
            text += f", sizes = {sizes[row['inputs']]}"
        yield (*_span(row, raw.start), 59, text, _thread(row), None, 0)


def _sizes(dims: str | None, types: list[str] | None) -> str:
    """Return shapes as torch's shapesToStr: lists of tensors are flat."""
    flat: list[list[int]] = []
    entries = orjson.loads(dims) if dims else []
    for entry, kind in zip(entries, types or [""] * len(entries), strict=False):
        if kind in _NUMBERS:
            continue
        if entry and isinstance(entry[0], list):
            flat += entry
        else:
            flat.append(entry)
    return str(flat) if flat else ""


def _regions(raw: RawTrace) -> Iterable[Sequence[Any]]:
    rows = raw.tables["annotations"].filter(~pl.col("on_gpu"))
    for row in rows.iter_rows(named=True):
        yield (*_span(row, raw.start), 59, str(row["name"]), _thread(row), None, 0)


def _gpus(raw: RawTrace) -> Iterable[Sequence[Any]]:
    for gpu in (raw.footer | raw.header).get("deviceProperties", []):
        keys = ("id", "name", "totalGlobalMem", "numSms", "computeMajor")
        yield (*(gpu.get(key) for key in keys), gpu.get("computeMinor"))

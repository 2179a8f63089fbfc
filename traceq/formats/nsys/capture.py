"""Settings of a recording by Nsight Systems: GPUs, versions, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec import Struct, structs

from traceq.formats.facts import RECORDER
from traceq.formats.nsys.activities import WHOLE_GRAPH, integers
from traceq.model import lacks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.formats.nsys.export import Export
    from traceq.formats.nsys.processes import Process

_PAIRS = {"name": pl.String(), "value": pl.String()}
_GPUS = {
    "id": pl.Int64(),
    "name": pl.String(),
    "totalMemory": pl.Int64(),
    "smCount": pl.Int64(),
    "computeMajor": pl.Int64(),
    "computeMinor": pl.Int64(),
    "chipName": pl.String(),
}
_GRAPH_MODE = "CUDA_GRAPH_TRACE_OPTIONS:MODE"
_VERSION = "EXPORT_PRODUCT_VERSION"
_NCCL = "nccl"
# Number of parts of the version that users know, as 2026.2.1.
_VERSION_PARTS = 3


class Capture(Struct, frozen=True):
    """Settings that an export was recorded with."""

    version: str
    """Version of Nsight Systems that exported it."""
    epoch_ns: int | None
    """Unix time at which the times of the export are 0."""
    gpus: tuple[Mapping[str, Any], ...]
    """The GPUs, as Kineto's deviceProperties."""
    graph_mode: str
    """Tracing of CUDA graphs: ``Graph`` or ``Node``; empty if unknown."""
    missing: tuple[str, ...] = ()
    """Sentences on what was not recorded, each with the flag that records it."""
    backend: str = ""

    @property
    def sms(self) -> dict[int, int]:
        """The number of multiprocessors of each GPU."""
        return {gpu["id"]: gpu["numSms"] for gpu in self.gpus if gpu.get("numSms")}

    @property
    def recorder(self) -> str:
        """The name of the profiler with its version."""
        return f"Nsight Systems {self.version}".strip()

    def header(self, process: Process) -> dict[str, Any]:
        """Return what the facts of a trace are read from, as Kineto writes it."""
        header: dict[str, Any] = {
            RECORDER: self.recorder,
            "deviceProperties": list(self.gpus),
        }
        if self.epoch_ns is not None:
            header["baseTimeNanoseconds"] = self.epoch_ns
        if process.world_size > 1:
            header["distributedInfo"] = {
                "rank": process.rank,
                "world_size": process.world_size,
                "backend": self.backend,
            }
        return header

    def seen(self, tables: Mapping[str, pl.DataFrame]) -> Capture:
        """Return the capture with what the tables show to be missing."""
        names = tables["kernels"]["name"].unique().cast(pl.String)
        nccl = names.str.contains(_NCCL, literal=True).any()
        missing = tuple(_missing(tables, self, names))
        return structs.replace(self, missing=missing, backend=_NCCL if nccl else "")


def _missing(
    tables: Mapping[str, pl.DataFrame], capture: Capture, kernels: pl.Series
) -> list[str]:
    """Return what was not recorded, with the remedy."""
    lacking = []
    if not tables["kernels"].height:
        lacking.append(lacks.NO_GPU_WORK)
    if not tables["ops"].height:
        lacking.append(lacks.NO_OPERATORS)
    elif not tables["inputs"].height:
        lacking.append(lacks.NO_SHAPES)
    if tables["ops"]["call_stack"].null_count() == tables["ops"].height:
        lacking.append(lacks.NO_LINES)
    if (kernels == WHOLE_GRAPH).any():
        lacking.append(lacks.WHOLE_GRAPHS)
    elif capture.graph_mode == "Graph" and _graph_launches(tables):
        lacking.append(lacks.NO_GRAPHS)
    of_nccl = kernels.str.starts_with(_NCCL).any()
    if of_nccl and not tables["kernels"]["elements"].count():
        lacking.append(lacks.NO_MESSAGES)
    if not any(gpu.get("name") for gpu in capture.gpus):
        lacking.append(lacks.NO_GPU_NAME)
    lacking.append(lacks.UNKNOWN_OVERHEAD)
    return lacking


def _graph_launches(tables: Mapping[str, pl.DataFrame]) -> bool:
    calls = tables["runtime"]["name"].unique().cast(pl.String)
    return bool(calls.str.contains("GraphLaunch", literal=True).any())


def read_capture(export: Export, process: Process) -> Capture:
    """Read how an export was recorded; nothing of it is certain to be there."""
    exported = _values(export, "META_DATA_EXPORT")
    captured = _values(export, "META_DATA_CAPTURE")
    version = ".".join(exported.get(_VERSION, "").split(".")[:_VERSION_PARTS])
    start = export.read("TARGET_INFO_SESSION_START_TIME", integers(("utcEpochNs",)))
    epoch = start["utcEpochNs"].drop_nulls()
    return Capture(
        version=version,
        epoch_ns=epoch[0] if len(epoch) else None,
        gpus=_gpus(export, process),
        graph_mode=captured.get(_GRAPH_MODE, ""),
    )


def _values(export: Export, table: str) -> dict[str, str]:
    """Return the last value of each name."""
    pairs = export.read(table, _PAIRS).drop_nulls()
    return dict(pairs.iter_rows())


def _gpus(export: Export, process: Process) -> tuple[Mapping[str, Any], ...]:
    """Return the GPUs by the ordinals that the process knows them by."""
    listed = export.read("TARGET_INFO_GPU", _GPUS).drop_nulls("id")
    devices = export.read(
        "TARGET_INFO_CUDA_DEVICE", integers(("gpuId", "cudaId", "pid"))
    ).drop_nulls(["gpuId", "cudaId"])
    if process.pid is not None:
        devices = devices.filter(
            pl.col("pid").is_null() | (pl.col("pid") == process.pid)
        )
    ordinal = dict(devices.select("gpuId", "cudaId").iter_rows())
    return tuple(
        {
            "id": ordinal.get(gpu["id"], gpu["id"]),
            "name": gpu["name"] or "",
            "totalGlobalMem": gpu["totalMemory"],
            "numSms": gpu["smCount"],
            "computeMajor": gpu["computeMajor"],
            "computeMinor": gpu["computeMinor"],
        }
        for gpu in listed.iter_rows(named=True)
    )

"""Facts about a recording, from the file's metadata and from its form."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.model import schema
from traceq.model.facts import Facts
from traceq.model.gpu_peaks import amd_name

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.formats.chrome import RawTrace

# Time stamps this large, in nanoseconds, are Unix time; smaller ones are relative.
_UNIX_TIME = 10**18
RECORDER = "traceq: recorder"
"""Member of a trace with the profiler that recorded it, if not PyTorch's."""
RECORDERS = re.compile(r"Nsight Systems(?: [0-9.]{1,20})?")
"""Possible values."""
_OLDEST = (0, 0)
_NEWEST = (99, 0)
# Threads that run in step on AMD's GPUs for computing; NVIDIA's have 32.
_AMD_WARP = 64


def read_facts(path: Path, raw: RawTrace, steps_from: str, steps_sure: str) -> Facts:
    """Collect the facts of a trace."""
    metadata = raw.footer | raw.header
    recorder = _recorder(metadata.get(RECORDER))
    # Only what PyTorch's profiler writes tells its version.
    oldest, newest = (_OLDEST, _NEWEST) if recorder else _torch_versions(raw)
    distributed = metadata.get("distributedInfo")
    job: dict[str, Any] = distributed if isinstance(distributed, dict) else {}
    return Facts(
        path=str(path),
        unpacked_bytes=raw.unpacked_bytes,
        events=raw.tally.events,
        flows=raw.tally.flows,
        start_ns=_start(raw, metadata),
        torch_from=_text(oldest),
        torch_to=_text(newest),
        shapes=raw.tables["ops"]["inputs"].is_not_null().any(),
        stacks=bool(raw.tables["frames"].height)
        or raw.tables["ops"]["call_stack"].is_not_null().any(),
        memory=bool(raw.tables["memory"].height),
        gpu=bool(raw.tables["kernels"].height),
        steps_from=steps_from,
        steps_sure=steps_sure,
        rank=integer(job.get("rank")),
        world_size=integer(job.get("world_size")),
        backend=str(job.get("backend") or ""),
        runtime_version=_runtime_version(metadata),
        damage=raw.damage,
        machine=_machine(metadata.get("host_name")),
        origin_ns=raw.start,
        recorder=recorder,
    )


def _recorder(name: object) -> str:
    """Return the profiler that recorded what a file was made of, if not PyTorch's."""
    known = isinstance(name, str) and RECORDERS.fullmatch(name)
    return str(name) if known else ""


def _machine(name: object) -> str:
    """Return an id of the machine without its name, which is private."""
    if not isinstance(name, str) or not name:
        return ""
    return hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]


def read_devices(raw: RawTrace) -> pl.DataFrame:
    """Make the table of GPUs."""
    properties = (raw.footer | raw.header).get("deviceProperties")
    entries = properties if isinstance(properties, list) else []
    listed = [entry for entry in entries if isinstance(entry, dict)]
    used = raw.tables["kernels"]["device"].drop_nulls().unique().sort().to_list()
    rows = [_device(entry, used) for entry in listed]
    numbers = {row["device"] for row in rows}
    unlisted = [device for device in used if device not in numbers]
    unused = [row for row in rows if not row["used"]]
    if len({row["name"] for row in rows}) == 1:
        # HIP_VISIBLE_DEVICES and the like renumber the devices of the list, but not
        # those of the kernels: of one model, any of them is that device.
        for row, device in zip(unused, unlisted, strict=False):
            row |= {"device": device, "used": True}
        unlisted = unlisted[len(unused) :]
    rows += [{"device": device, "used": True} for device in unlisted]
    table = schema.TABLES["devices"]
    return pl.DataFrame(rows, schema=dict(table.dtypes)).sort("device")


def _device(entry: dict[str, object], used: list[int]) -> dict[str, object]:
    """Return a row of the table of GPUs."""
    memory, sms = _count(entry.get("totalGlobalMem")), _count(entry.get("numSms"))
    major, minor = (_count(entry.get(f"compute{item}")) for item in ("Major", "Minor"))
    name = str(entry.get("name") or "")
    return {
        "device": integer(entry.get("id")),
        "name": amd_name(name, (major, minor, sms), memory)
        if integer(entry.get("warpSize")) == _AMD_WARP
        else name,
        "memory": memory,
        "sms": sms,
        "compute_major": major,
        "compute_minor": minor,
        "used": integer(entry.get("id")) in used,
    }


def _count(value: object) -> int | None:
    """Return a number of things; none of a number that cannot be one."""
    number = integer(value)
    return number if number is not None and number >= 0 else None


def _torch_versions(raw: RawTrace) -> tuple[tuple[int, int], tuple[int, int]]:
    """Bound the version of torch by content that only some versions write."""
    for layout in (True, False):
        oldest, newest = _torch_signs(raw, layout=layout)
        if oldest <= newest:
            return oldest, newest
    return _OLDEST, _NEWEST


def _torch_signs(
    raw: RawTrace, *, layout: bool
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Bound the version by what the file holds and, if it counts, by its layout.

    A file that some tool has read and written again has the layout of that tool.
    """
    header, tables = raw.header, raw.tables
    unix_time = raw.start >= _UNIX_TIME
    old_layout = not raw.key_a_line and "cupti_version" in header
    based_before = "baseTimeNanoseconds" in header
    based_after = "baseTimeNanoseconds" in raw.footer
    at_least = {
        (1, 10): "cpu_op" in raw.categories,
        (1, 13): "kernel" in raw.categories,
        (2, 1): tables["inputs"]["values"].is_not_null().any(),
        (2, 3): "gpu_user_annotation" in raw.categories,
        (2, 4): based_before
        or based_after
        or tables["inputs"]["strides"].is_not_null().any(),
        (2, 6): "trace_id" in header or "cupti_version" in header,
        (2, 8): layout and based_before,
        (2, 12): (layout and raw.key_a_line)
        or "host_name" in header
        or tables["kernels"]["graph_id"].is_not_null().any(),
    }
    at_most = {
        (1, 7): raw.categories <= {""},
        (1, 9): "Operator" in raw.categories,
        (1, 12): "Kernel" in raw.categories,
        (2, 3): unix_time and not (based_before or based_after),
        (2, 7): layout and based_after,
        (2, 11): layout and old_layout,
    }
    return (
        max((version for version, holds in at_least.items() if holds), default=_OLDEST),
        min((version for version, holds in at_most.items() if holds), default=_NEWEST),
    )


def _text(version: tuple[int, int]) -> str:
    return "" if version in (_OLDEST, _NEWEST) else f"{version[0]}.{version[1]}"


def _start(raw: RawTrace, metadata: dict[str, Any]) -> int | None:
    base = integer(metadata.get("baseTimeNanoseconds"))
    if base is not None:
        return base + raw.start
    return raw.start if raw.start >= _UNIX_TIME else None


def _runtime_version(metadata: dict[str, Any]) -> str:
    cuda = integer(metadata.get("cuda_runtime_version"))
    if cuda:
        return f"CUDA {cuda // 1000}.{cuda % 1000 // 10}"
    hip = integer(metadata.get("hip_runtime_version"))
    if hip:
        return f"HIP {hip // 10_000_000}.{hip // 100_000 % 100}"
    return ""


def integer(value: object) -> int | None:
    """Return a number that fits the tables' 64 bits, None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
        return value
    return None

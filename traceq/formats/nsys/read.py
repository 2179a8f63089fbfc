"""Reading of one rank of an Nsight Systems export into the same tables as Kineto's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.common.expressions import place_among, sharing_nulls
from traceq.common.progress import report_progress
from traceq.errors import InputError
from traceq.formats import tables
from traceq.formats.chrome import RawTrace
from traceq.formats.events import Tally
from traceq.formats.gc_pause import collecting_paused
from traceq.formats.nsys import activities, processes, ranges, stacks, stalls
from traceq.formats.nsys.capture import read_capture
from traceq.formats.nsys.collectives import calls_of_nccl, with_messages
from traceq.formats.nsys.database import Database
from traceq.formats.nsys.parquet import ParquetFolder
from traceq.formats.nsys.processes import chosen
from traceq.formats.nsys.shapes import with_shapes
from traceq.formats.unmodified_file import unchanged

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from traceq.formats.nsys.capture import Capture
    from traceq.formats.nsys.export import Export
    from traceq.formats.nsys.processes import Process

_STRINGS = {"id": pl.Int64(), "value": pl.String()}
_STAGES = 5
# Tables that tell an export of Nsight Systems from another database.
_KNOWN = (*processes.GPU_WORK, processes.CALLS, processes.RANGES, "META_DATA_EXPORT")
_TIMED = ("ops", "kernels", "runtime", "annotations", "frames", "memory", "other")


class Recorded(Struct, frozen=True):
    """One rank of an export."""

    raw: RawTrace
    capture: Capture
    """Settings that it was recorded with, and its missing parts."""
    process: Process


def ranks_in(path: Path) -> list[int]:
    """Return the numbers of the ranks of an export: processes with GPU work."""
    export = _opened(path)
    try:
        return [process.rank for process in processes.processes(export)]
    finally:
        export.close()


def read(
    path: Path,
    rank: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Recorded:
    """Read one rank of an export, by default the first."""
    with unchanged(path), collecting_paused():
        export = _opened(path)
        try:
            process = chosen(export, rank)
            return _read(export, process, _Progress(path, progress))
        finally:
            export.close()


class _Progress:
    """Progress by tables, as bytes of the file."""

    def __init__(self, path: Path, progress: Callable[[int, int], None] | None) -> None:
        self.size = size_of(path)
        self._progress = progress

    def done(self, stages: int) -> None:
        """Report that this many of the stages are over."""
        if self._progress is not None:
            self._progress(self.size * stages // _STAGES, self.size)


def size_of(path: Path) -> int:
    """Return the size of an export in bytes."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.glob("*.parquet"))
    return path.stat().st_size


def _opened(path: Path) -> Export:
    export: Export = ParquetFolder(path) if path.is_dir() else Database(path)
    if not any(name in export.tables for name in _KNOWN):
        export.close()
        if any(name.startswith("rocpd_") for name in export.tables):
            msg = (
                f"{path} is a database of rocprofv3: record with PyTorch's profiler"
                " (traceq collect), which traces AMD's GPUs too"
            )
            raise InputError(msg)
        msg = (
            f"{path} is a database, but not an export of Nsight Systems: give the file"
            " that nsys export --type sqlite wrote"
        )
        raise InputError(msg)
    return export


def _read(export: Export, process: Process, progress: _Progress) -> Recorded:
    strings = (
        export.read("StringIds", _STRINGS, reduce=_as_categories)
        .drop_nulls()
        .unique("id", keep="first", maintain_order=True)
        .sort("id")
    )
    capture = read_capture(export, process)
    progress.done(1)
    raw: dict[str, pl.DataFrame] = {}
    # The ranges are most of a file, and largest before they are parted.
    marked = ranges.read_ranges(export, process, strings)
    progress.done(2)
    raw["annotations"] = ranges.regions_of(marked)
    raw["frames"] = ranges.modules_of(marked)
    calls = calls_of_nccl(marked)
    ops = ranges.ops_of(marked)
    del marked
    raw["ops"] = stacks.with_stacks(ops, export, process, strings)
    del ops
    progress.done(3)
    raw["runtime"] = activities.runtime(export, process, strings)
    progress.done(4)
    kernels = activities.gpu_work(export, process, strings, capture.sms)
    raw["kernels"] = with_messages(kernels, raw["runtime"], calls, export, process)
    del kernels
    raw["memory"] = pl.DataFrame(schema=tables.dtypes("memory"))
    raw["other"] = stalls.read_stalls(export, process, strings)
    if not any(rows.height for rows in raw.values()):
        msg = (
            f"{export.path} has no kernel, call or NVTX range: record with nsys profile"
            " --trace=cuda,nvtx"
        )
        raise InputError(msg)
    progress.done(5)
    report_progress("tables", 1, 2)
    events = sum(rows.height for rows in raw.values())
    finished, start = _finish(raw, export, strings)
    capture = capture.seen(finished)
    return Recorded(
        RawTrace(
            tables=finished,
            header=capture.header(process),
            footer={},
            start=start,
            tally=Tally(events=events),
            categories=frozenset(),
            key_a_line=False,
            unpacked_bytes=progress.size,
            damage=tuple(dict.fromkeys(export.damage)),
        ),
        capture,
        process,
    )


def _as_categories(strings: pl.DataFrame) -> pl.DataFrame:
    return strings.with_columns(pl.col("value").cast(pl.Categorical))


def _finish(
    raw: dict[str, pl.DataFrame], export: Export, strings: pl.DataFrame
) -> tuple[dict[str, pl.DataFrame], int]:
    """Give threads and inputs their numbers, and time its start."""
    starts = [raw[name]["ts"].min() for name in _TIMED]
    start = min((ts for ts in starts if isinstance(ts, int)), default=0)
    threads = _threads(raw, export, strings)
    finished = {
        # One after the other, so that two of one table are in memory at most.
        name: _timed(raw.pop(name), threads["lane"], start)
        for name in [*raw]
    }
    finished["ops"], finished["inputs"] = with_shapes(finished["ops"])
    finished["threads"] = threads.drop("lane")
    finished["other"] = finished["other"].with_columns(pl.col("args").cast(pl.String))
    return finished, start


def _timed(rows: pl.DataFrame, lanes: pl.Series, start: int) -> pl.DataFrame:
    thread = place_among(rows["lane"], lanes).alias("thread")
    timed = rows.with_columns(pl.col("ts") - start, thread).drop("lane")
    return sharing_nulls(timed)


def _threads(
    raw: dict[str, pl.DataFrame], export: Export, strings: pl.DataFrame
) -> pl.DataFrame:
    """Make the table of threads, with the lane by which events name them."""
    names = (
        export.read("ThreadNames", activities.integers(("nameId", "globalTid")))
        .drop_nulls()
        .join(strings, left_on="nameId", right_on="id", how="inner")
        .select(
            activities.thread_lane("globalTid").cast(pl.String),
            name=pl.col("value").cast(pl.String),
        )
        .unique("lane", keep="first", maintain_order=True)
    )
    lanes = pl.concat(rows["lane"] for rows in raw.values()).unique().drop_nulls()
    lane = pl.col("lane").str.split(tables.LANE_SEPARATOR)
    return (
        lanes.cast(pl.String)
        .sort()
        .to_frame("lane")
        .with_row_index("id")
        .join(names, on="lane", how="left", maintain_order="left")
        .select(
            "id",
            pl.col("lane").cast(pl.Categorical),
            lane.list.first().alias("pid"),
            lane.list.last().alias("tid"),
            "name",
        )
    )

"""Time of reading memory snapshots, relative to a bare unpickle of the same file.

    python benchmarks/snapshot.py --mb 1000 fixtures/captures/*.snapshot.pickle.gz

Makes a snapshot of each size from real ones, runs each method in a process of its own,
in turns, and prints the median times, their ratio to the bare unpickle's, the same of
the processor's time, which says more on a busy machine, and the peak of resident memory
against the size of the file. Counts of events and sums of their sizes must agree, or it
stops.

A bare unpickle is pickle.load in a Python as it starts. Most of its time goes to the
garbage collector, which walks the new objects again and again; so it is measured
without the collector, too.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import os
import pickle
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import common

if TYPE_CHECKING:
    from collections.abc import Callable

_ROUNDS = 3
_GAP_US = 1_000_000
_BARE = "pickle.load"
_PROTOCOLS = (2, 4)
"""What torch writes, and what Python writes if nobody says."""


def _bare(path: Path, *, collect: bool) -> dict[str, Any]:
    """Unpickle the file and do nothing with it."""
    if not collect:
        gc.disable()
    start, busy = time.perf_counter(), time.process_time()
    with path.open("rb") as file:
        content = pickle.load(file)  # noqa: S301 - made by this script
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    events = [event for trace in content["device_traces"] for event in trace]
    return {
        "seconds": seconds,
        "busy": busy,
        "rows": len(events),
        "bytes": sum(event["size"] for event in events),
    }


def _traceq(path: Path) -> dict[str, Any]:
    """Read the file into tables."""
    import polars as pl  # noqa: PLC0415 - each method pays for its own imports

    from traceq.formats.snapshot import read_snapshot  # noqa: PLC0415

    pl.DataFrame({"warm": [1]}).lazy().select("warm").collect()
    start, busy = time.perf_counter(), time.process_time()
    events = read_snapshot(path).events
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    return {
        "seconds": seconds,
        "busy": busy,
        "rows": events.height,
        "bytes": int(events["size"].sum()),
    }


def _pure(path: Path) -> dict[str, Any]:
    """Read it without compiled code."""
    os.environ["TRACEQ_PURE"] = "1"
    return _traceq(path)


_METHODS: dict[str, Callable[[Path], dict[str, Any]]] = {
    _BARE: lambda path: _bare(path, collect=True),
    "pickle.load, gc off": lambda path: _bare(path, collect=False),
    "read_snapshot": _traceq,
    "without C": _pure,
}


def make(sources: list[Path], target: Path, size: int, protocol: int = 2) -> None:
    """Write a snapshot of about ``size`` bytes: a device for each source.

    Each device has its source's history again and again, moved on in time. As torch
    writes them, each event has a stack of its own, of frames that all stacks share.
    """
    contents = [
        (pickle.loads(packed), len(packed))  # noqa: S301 - the user's own files
        for packed in (gzip.decompress(path.read_bytes()) for path in sources)
    ]
    each = size // len(contents)
    merged = contents[0][0] | {"segments": [], "device_traces": []}
    for device, (content, length) in enumerate(contents):
        merged["segments"] += [
            segment | {"device": device} for segment in content["segments"]
        ]
        trace = max(content["device_traces"], key=len)
        # What does not repeat is a quarter of a source.
        count = max(1, round(each / length / 0.75))
        merged["device_traces"].append(_repeated(trace, count))
    with target.open("wb") as file:
        pickle.dump(merged, file, protocol=protocol)


def _repeated(trace: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the events count times; those that share a stack share its copy."""
    length = trace[-1]["time_us"] - trace[0]["time_us"] + _GAP_US
    events = []
    for number in range(count):
        stacks: dict[int, list[Any]] = {}
        for event in trace:
            frames = event.get("frames", [])
            events.append(
                event
                | {
                    "time_us": event["time_us"] + number * length,
                    "frames": stacks.setdefault(id(frames), list(frames)),
                }
            )
    return events


def _compare(path: Path) -> None:
    size = path.stat().st_size
    runs: dict[str, list[dict[str, Any]]] = {method: [] for method in _METHODS}
    for _ in range(_ROUNDS):
        for method, results in runs.items():
            results.append(common.measure(__file__, method, path))
    bare = runs[_BARE]
    for method, results in runs.items():
        for result in results:
            for what in ("rows", "bytes"):
                if result[what] != bare[0][what]:
                    sys.exit(f"{method}: {result[what]} {what}, not {bare[0][what]}")
        seconds = statistics.median(result["seconds"] for result in results)
        wall, busy = (
            statistics.median(
                result[what] / other[what]
                for result, other in zip(results, bare, strict=True)
            )
            for what in ("seconds", "busy")
        )
        peak = max(result["peak"] for result in results)
        print(
            f"{size / 1e6:6.0f} MB {bare[0]['rows']:9,} events  {method:19}"
            f" {seconds:6.2f} s  {wall:5.2f} x bare ({busy:.2f} x its processor time)"
            f"  peak {peak / size:5.2f} x file"
        )


def main() -> None:
    """Make the files and compare the methods on each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("snapshots", nargs="+", type=Path)
    parser.add_argument("--mb", action="append", type=int, help="size, default 1000")
    parser.add_argument(
        "--protocol", action="append", type=int, help="of the pickle, default 2 and 4"
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        for size in options.mb or [1000]:
            for protocol in options.protocol or _PROTOCOLS:
                path = folder / f"{size}.pickle"
                make(options.snapshots, path, size * 1_000_000, protocol)
                print(f"protocol {protocol}")
                _compare(path)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__" and not common.run_if_asked(_METHODS):
    main()

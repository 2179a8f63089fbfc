"""How fast memory snapshots are read, against a bare unpickle of the same file.

    python benchmarks/snapshot.py --mb 1000 ../shared/traces/*.snapshot.pickle.gz

Makes a snapshot of each size from real ones, runs each method in a process of its own,
in turns, and prints the median times, their ratio to the bare unpickle's and the peak
of resident memory against the size of the file. The garbage collector is off in all of
them: with it, the bare unpickle takes longer. Counts of events and sums of their sizes
must agree, or it stops.
"""

from __future__ import annotations

import argparse
import gc
import gzip
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


def _bare(path: Path) -> dict[str, Any]:
    """Unpickle the file and do nothing with it."""
    gc.disable()
    start = time.perf_counter()
    with path.open("rb") as file:
        content = pickle.load(file)  # noqa: S301 - made by this script
    seconds = time.perf_counter() - start
    events = [event for trace in content["device_traces"] for event in trace]
    return {
        "seconds": seconds,
        "rows": len(events),
        "bytes": sum(event["size"] for event in events),
    }


def _traceq(path: Path) -> dict[str, Any]:
    """Read the file into tables."""
    import polars as pl  # noqa: PLC0415 - each method pays for its own imports

    from traceq.formats.snapshot import read_snapshot  # noqa: PLC0415

    pl.DataFrame({"warm": [1]}).lazy().select("warm").collect()
    start = time.perf_counter()
    events = read_snapshot(path).events
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "rows": events.height,
        "bytes": int(events["size"].sum()),
    }


_METHODS: dict[str, Callable[[Path], dict[str, Any]]] = {
    _BARE: _bare,
    "read_snapshot": _traceq,
}


def _make(sources: list[Path], target: Path, size: int) -> None:
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
        merged["device_traces"].append(_repeated(trace, max(1, each // length)))
    with target.open("wb") as file:
        pickle.dump(merged, file, protocol=2)


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
        for found in results:
            for what in ("rows", "bytes"):
                if found[what] != bare[0][what]:
                    sys.exit(f"{method}: {found[what]} {what}, not {bare[0][what]}")
        seconds = statistics.median(found["seconds"] for found in results)
        against = statistics.median(
            found["seconds"] / other["seconds"]
            for found, other in zip(results, bare, strict=True)
        )
        peak = max(found["peak"] for found in results)
        print(
            f"{size / 1e6:6.0f} MB {bare[0]['rows']:9,} events  {method:14}"
            f" {seconds:6.2f} s  {against:5.2f} x bare  peak {peak / size:5.2f} x file"
        )


def main() -> None:
    """Make the files and compare the methods on each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("snapshots", nargs="+", type=Path)
    parser.add_argument("--mb", action="append", type=int, help="size, default 1000")
    found = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        for size in found.mb or [1000]:
            path = folder / f"{size}.pickle"
            _make(found.snapshots, path, size * 1_000_000)
            _compare(path)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__" and not common.run_if_asked(_METHODS):
    main()

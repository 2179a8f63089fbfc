"""Time of reading traces, relative to orjson reading the same file in the same run.

    python benchmarks/load.py --mb 400 --mb 1500 fixtures/captures/*.trace.json.gz

Makes a file of each size in each layout from real traces, runs each method in a
process of its own, in turns, and prints the median times, their ratio to orjson's
and the peak of resident memory against the size of the file. Row counts and sums of
durations must agree with the plain parse, or it stops.
"""

from __future__ import annotations

import gc
import gzip
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import common
from files import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ROUNDS = 3
_NS = 1000


def _orjson(path: Path) -> dict[str, Any]:
    """Parse the whole file into objects and do nothing with them."""
    import orjson  # noqa: PLC0415 - each method pays for its own imports

    gc.disable()
    start = time.perf_counter()
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    events = orjson.loads(content)["traceEvents"]
    seconds = time.perf_counter() - start
    timed = [
        event for event in events if event["ph"] == "X" and event["name"] != "[memory]"
    ]
    return {
        "seconds": seconds,
        "rows": len(events),
        "nanoseconds": sum(round(event["dur"] * _NS) for event in timed),
    }


def _traceq(path: Path, *, cache: bool) -> dict[str, Any]:
    """Load the file into linked tables."""
    import polars as pl  # noqa: PLC0415

    from traceq.inputs.load_trace import load  # noqa: PLC0415

    pl.DataFrame({"warm": [1]}).lazy().select("warm").collect()
    start = time.perf_counter()
    trace = load(path, cache=cache)
    seconds = time.perf_counter() - start
    tables = [trace.ops, trace.kernels, trace.runtime, trace.annotations]
    tables += [trace.frames, trace.other]
    return {
        "seconds": seconds,
        "rows": trace.facts.events,
        "nanoseconds": sum(int(table["dur"].sum()) for table in tables),
    }


_METHODS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "orjson.loads": _orjson,
    "traceq.load": lambda path: _traceq(path, cache=False),
    "traceq.load, again": lambda path: _traceq(path, cache=True),
}


def _compare(path: Path, label: str) -> None:
    size = common.unpacked_size(path)
    runs: dict[str, list[dict[str, Any]]] = {method: [] for method in _METHODS}
    common.measure(
        __file__, "traceq.load, again", path
    )  # so that there is something to find
    for _ in range(_ROUNDS):
        for method, results in runs.items():
            results.append(common.measure(__file__, method, path))
    plain = runs["orjson.loads"]
    for method, results in runs.items():
        for result in results:
            for what in ("rows", "nanoseconds"):
                if result[what] != plain[0][what]:
                    sys.exit(f"{method}: {result[what]} {what}, not {plain[0][what]}")
        seconds = statistics.median(result["seconds"] for result in results)
        against = statistics.median(
            result["seconds"] / other["seconds"]
            for result, other in zip(results, plain, strict=True)
        )
        peak = max(result["peak"] for result in results)
        print(
            f"{label:24} {method:20} {seconds:7.2f} s  {against:5.2f} x orjson"
            f"  {size / seconds / 1e6:6.0f} MB/s  peak {peak / size:5.2f} x the file"
        )


def main() -> None:
    """Make the files and compare the methods on each."""
    with common.files(common.options(__doc__ or ""), [*LAYOUTS, "gzip"]) as files:
        for label, path in files.items():
            _compare(path, label)


if __name__ == "__main__" and not common.run_if_asked(_METHODS):
    main()

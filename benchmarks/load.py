"""How fast traces are read, against orjson reading the same file in the same run.

    python benchmarks/load.py --mb 400 --mb 1500 ../shared/traces/*.trace.json.gz

Makes a file of each size in each layout from real traces, runs each method in a
process of its own, in turns, and prints the median times, their ratio to orjson's
and the peak of resident memory against the size of the file. Row counts and sums of
durations must agree with the plain parse, or it stops.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from files import LAYOUTS, make

if TYPE_CHECKING:
    from collections.abc import Callable

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

    from traceq.loading import load  # noqa: PLC0415

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


def _measure(method: str, path: Path) -> dict[str, Any]:
    """Run a method in a process of its own."""
    command = [sys.executable, __file__, "--run", method, str(path)]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if run.returncode:
        sys.exit(f"{method} failed on {path}")
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def _peak() -> int:
    """Return the most memory this process held; rusage would count its parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _compare(path: Path, label: str) -> None:
    size = path.stat().st_size
    if path.suffix == ".gz":
        size = int.from_bytes(path.read_bytes()[-4:], "little")
    runs: dict[str, list[dict[str, Any]]] = {method: [] for method in _METHODS}
    _measure("traceq.load, again", path)  # so that there is something to find
    for _ in range(_ROUNDS):
        for method, results in runs.items():
            results.append(_measure(method, path))
    plain = runs["orjson.loads"]
    for method, results in runs.items():
        for found in results:
            for what in ("rows", "nanoseconds"):
                if found[what] != plain[0][what]:
                    sys.exit(f"{method}: {found[what]} {what}, not {plain[0][what]}")
        seconds = statistics.median(found["seconds"] for found in results)
        against = statistics.median(
            found["seconds"] / other["seconds"]
            for found, other in zip(results, plain, strict=True)
        )
        peak = max(found["peak"] for found in results)
        print(
            f"{label:24} {method:20} {seconds:7.2f} s  {against:5.2f} x orjson"
            f"  {size / seconds / 1e6:6.0f} MB/s  peak {peak / size:5.2f} x the file"
        )


def main() -> None:
    """Make the files and compare the methods on each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--mb", action="append", type=int, help="size, default 400")
    parser.add_argument("--layout", action="append", choices=[*LAYOUTS, "gzip"])
    parser.add_argument("--folder", type=Path, help="keep the files here")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    os.environ["TRACEQ_CACHE"] = str(folder / "cache")
    try:
        for size in options.mb or [400]:
            for layout in options.layout or [*LAYOUTS, "gzip"]:
                _compare(
                    _file(options.traces, folder, size, layout), f"{size} MB {layout}"
                )
    finally:
        if not options.folder:
            shutil.rmtree(folder)


def _file(traces: list[Path], folder: Path, size: int, layout: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{layout}-{size}.json"
    if layout == "gzip":
        packed = path.with_suffix(".json.gz")
        if not packed.exists():
            plain = _file(traces, folder, size, "kineto-2.11")
            with plain.open("rb") as source, gzip.open(packed, "wb", 6) as target:
                shutil.copyfileobj(source, target)
        return packed
    if not path.exists():
        make(traces, path, size * 1_000_000, layout)
    return path


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        result = _METHODS[sys.argv[2]](Path(sys.argv[3]))
        print(json.dumps(result | {"peak": _peak()}))
    else:
        main()

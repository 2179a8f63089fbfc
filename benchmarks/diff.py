"""Time of a comparison, relative to loading the same two files in the same run.

    python benchmarks/diff.py --mb 400 fixtures/captures/*.trace.json.gz

Makes two files of each size from real traces, the second from the same ones in reverse
order, runs loading both and comparing them in processes of their own, in turns, and
prints the median times, their ratio and the peak of resident memory against the size of
both files.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import common
from files import make

if TYPE_CHECKING:
    from collections.abc import Callable

_ROUNDS = 3
_NAMES = ("before.json", "after.json")


def _load(folder: Path) -> dict[str, Any]:
    from traceq.inputs.load_trace import load  # noqa: PLC0415 - not counted as time

    start = time.perf_counter()
    for name in _NAMES:
        load(folder / name, cache=False)
    return {"seconds": time.perf_counter() - start, "causes": 0}


def _diff(folder: Path) -> dict[str, Any]:
    from traceq.api.diff import diff  # noqa: PLC0415
    from traceq.differ.compare import Diff  # noqa: PLC0415

    start = time.perf_counter()
    result = diff(folder / _NAMES[0], folder / _NAMES[1], cache=False).compared
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "causes": len(result.causes) if isinstance(result, Diff) else 0,
    }


_METHODS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "two loads": _load,
    "diff": _diff,
}


def _compare(folder: Path, label: str) -> None:
    size = sum((folder / name).stat().st_size for name in _NAMES)
    runs: dict[str, list[dict[str, Any]]] = {method: [] for method in _METHODS}
    for _ in range(_ROUNDS):
        for method, results in runs.items():
            results.append(common.measure(__file__, method, folder))
    for method, results in runs.items():
        seconds = statistics.median(result["seconds"] for result in results)
        ratio = statistics.median(
            result["seconds"] / plain["seconds"]
            for result, plain in zip(results, runs["two loads"], strict=True)
        )
        peak = max(result["peak"] for result in results)
        print(
            f"{label:12} {method:10} {seconds:7.2f} s  {ratio:5.2f} x the loads"
            f"  peak {peak / size:5.2f} x both files  {results[0]['causes']} causes"
        )


def main() -> None:
    """Make the files and compare comparing with loading on each."""
    options = common.options(__doc__ or "")
    with tempfile.TemporaryDirectory() as temporary:
        for size in options.mb:
            folder = (options.folder or Path(temporary)) / f"pair-{size}"
            folder.mkdir(parents=True, exist_ok=True)
            traces = sorted(options.traces)
            for name, sources in zip(_NAMES, (traces, traces[::-1]), strict=True):
                if not (folder / name).exists():
                    make(sources, folder / name, size * 1_000_000, "kineto-2.11")
            _compare(folder, f"{size} MB")


if __name__ == "__main__" and not common.run_if_asked(_METHODS):
    main()

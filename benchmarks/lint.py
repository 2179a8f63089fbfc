"""Time of linting, relative to loading the same file in the same run.

    python benchmarks/lint.py --mb 400 fixtures/captures/*.trace.json.gz

Makes a file of each size from real traces, runs loading alone, linting with every rule
and writing the report in processes of their own, in turns, and prints the median times,
their ratio and the peak of resident memory against the size of the file.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import common

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ROUNDS = 3
_LARGEST_PAGE = 2_000_000


def _load(path: Path) -> dict[str, Any]:
    from traceq.inputs.load_trace import load  # noqa: PLC0415 - not counted as time

    start = time.perf_counter()
    load(path, cache=False)
    return {"seconds": time.perf_counter() - start, "findings": 0}


def _lint(path: Path) -> dict[str, Any]:
    from traceq.inputs.load_trace import load  # noqa: PLC0415
    from traceq.linter.config import Config  # noqa: PLC0415
    from traceq.linter.engine import lint  # noqa: PLC0415
    from traceq.linter.pack import load_rules  # noqa: PLC0415
    from traceq.model.recording import Recording  # noqa: PLC0415

    rules = load_rules()
    start = time.perf_counter()
    recording = Recording(str(path), load(path, cache=False))
    loaded = time.perf_counter()
    report = lint([recording], rules, Config())
    end = time.perf_counter()
    (outcome,) = report.outcomes
    if outcome.crashed:
        sys.exit(f"{outcome.crashed[0].code} crashed: {outcome.crashed[0].error}")
    return {
        "seconds": end - start,
        "load_seconds": loaded - start,
        "lint_seconds": end - loaded,
        "findings": len(outcome.findings),
    }


def _report(path: Path) -> dict[str, Any]:
    from traceq.inputs.load_trace import load  # noqa: PLC0415
    from traceq.linter.config import Config  # noqa: PLC0415
    from traceq.linter.engine import lint  # noqa: PLC0415
    from traceq.linter.pack import load_rules  # noqa: PLC0415
    from traceq.model.recording import Recording  # noqa: PLC0415
    from traceq.report.page.build import report_page  # noqa: PLC0415

    rules = load_rules()
    start = time.perf_counter()
    recording = Recording(str(path), load(path, cache=False))
    report = lint([recording], rules, Config())
    page = report_page([recording], report)
    seconds = time.perf_counter() - start
    (outcome,) = report.outcomes
    if len(page.encode()) > _LARGEST_PAGE:
        sys.exit(f"the page of {path} has {len(page.encode()):,} bytes")
    return {"seconds": seconds, "findings": len(outcome.findings)}


_METHODS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "load": _load,
    "load and lint": _lint,
    "and report": _report,
}


def _compare(path: Path, label: str) -> None:
    size = common.unpacked_size(path)
    runs: dict[str, list[dict[str, Any]]] = {method: [] for method in _METHODS}
    for _ in range(_ROUNDS):
        for method, results in runs.items():
            results.append(common.measure(__file__, method, path))
    for method, results in runs.items():
        seconds = statistics.median(result["seconds"] for result in results)
        ratio = statistics.median(
            result["seconds"] / plain["seconds"]
            for result, plain in zip(results, runs["load"], strict=True)
        )
        peak = max(result["peak"] for result in results)
        print(
            f"{label:24} {method:16} {seconds:7.2f} s  {ratio:5.2f} x load"
            f"  peak {peak / size:5.2f} x the file  {results[0]['findings']} findings"
        )


def main() -> None:
    """Make the files and compare linting with loading on each."""
    with common.files(common.options(__doc__ or ""), ["kineto-2.11"]) as files:
        for label, path in files.items():
            _compare(path, label)


if __name__ == "__main__" and not common.run_if_asked(_METHODS):
    main()

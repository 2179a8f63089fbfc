"""Accuracy of the estimated step without the profiler, by what was recorded.

    python benchmarks/estimates.py FOLDER...

A folder has traces and measured.json, which says what a step of each took without the
profiler, in ms: benchmarks/options has one, and the program that recorded it. Prints
the recorded, the estimated and the measured step of each trace, and the median and the
largest error of those with stacks, and of those without.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from traceq.analysis.replay.bound import bound_of
from traceq.inputs.load_trace import load

if TYPE_CHECKING:
    from collections.abc import Iterator

_MS = 1e6
FOLDER = Path(__file__).parent / "options"


@dataclass(frozen=True)
class Estimate:
    """A step as recorded, estimated from the trace alone, and measured, in ms."""

    name: str
    stacks: bool
    recorded: float
    estimated: float
    measured: float

    @property
    def error(self) -> float:
        """How far the estimate is off, as a share of what was measured."""
        return self.estimated / self.measured - 1


def estimates(folder: Path) -> Iterator[Estimate]:
    """Yield the estimate of each trace in a folder."""
    measured = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    for name, step_ms in measured.items():
        path = folder / f"{name}.json.gz"
        if path.is_file():
            trace = load(path, cache=False)
            bound = bound_of(trace, None)
            yield Estimate(
                name,
                trace.facts.stacks,
                bound.recorded_step_ns / _MS,
                bound.step_ns / _MS,
                step_ms,
            )


def main() -> None:
    """Print the estimates of all folders."""
    results = [
        estimate for folder in sys.argv[1:] for estimate in estimates(Path(folder))
    ]
    for result in results:
        print(
            f"{result.name:28} recorded {result.recorded:7.2f}"
            f" estimated {result.estimated:7.2f} measured {result.measured:7.2f}"
            f" {result.error:+5.0%}"
        )
    for label, stacks in (("with stacks", True), ("without stacks", False)):
        errors = [estimate.error for estimate in results if estimate.stacks is stacks]
        if errors:
            middle, sizes = statistics.median(errors), [abs(error) for error in errors]
            print(
                f"{label}: {len(errors)} traces, {middle:+.0%} at the median, median"
                f" error {statistics.median(sizes):.0%}, largest {max(sizes):.0%}"
            )


if __name__ == "__main__":
    main()

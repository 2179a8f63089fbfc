"""GPU time above its floor that the findings explain, and what plans leave.

    python benchmarks/explained_gpu.py [FILE ...]

The cases are those of ``explained.py``, with the pairs of benchmarks/fusion, or the
files that are named. Of each GPU-bound case: how much of the GPU's time is above the
floor, which share of that the findings explain, and the largest saving of a finding
that is left once the plan is done, as a share of the step. It fails if the median case
has less than 80% explained, or a plan leaves more than 2%.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from explained import cases, linted

from traceq import load
from traceq.linter import View
from traceq.linter.savings import Savings, to_fix

if TYPE_CHECKING:
    from traceq.model.lint_report import RecordingReport

_MS = 1_000_000
_ENOUGH, _LEFT = 0.8, 0.02
Case = tuple[str, Path, "int | None"]
_FUSION = Path(__file__).resolve().parent / "fusion"


def left_over(outcome: RecordingReport, path: Path) -> float:
    """Return the largest saving that is left after the plan, as a share of its step."""
    plan = to_fix(outcome.findings)
    rest = [
        finding for finding in outcome.findings if finding not in plan and finding.fixes
    ]
    if not plan or not rest:
        return 0.0
    savings = Savings(View(load(path), outcome.step_ns), brief=True)
    most = max(savings.saved_after(finding, plan) for finding in rest)
    return most / savings.step_after(plan)


def main(paths: list[str]) -> int:
    """Print a line for each GPU-bound case; return how many bars are missed."""
    named: list[Case] = [(path, Path(path), None) for path in paths]
    pairs: list[Case] = [
        (f"fusion/{path.name.partition('.json')[0]}", path, None)
        for path in sorted(_FUSION.glob("*.json.gz"))
    ]
    shares, most, count = [], 0.0, 0
    seen: set[tuple[float, float]] = set()
    print(f"{'case':34} {'busy':>8} {'above':>8} {'explained':>10} {'left':>6}")
    for name, path, step_ns in named or [*cases(), *pairs]:
        report = linted(name, path, step_ns)
        count += 1
        left = left_over(report, path)
        most = max(most, left)
        # Some recordings are in two folders.
        if report.gpu is None or (report.gpu.busy_ns, report.gpu.above_ns) in seen:
            continue
        seen.add((report.gpu.busy_ns, report.gpu.above_ns))
        shares.append(report.gpu.share)
        print(
            f"{report.name:34} {report.gpu.busy_ns / _MS:8.2f}"
            f" {report.gpu.above_ns / _MS:8.2f} {report.gpu.share:10.0%} {left:6.1%}",
            flush=True,
        )
    median = statistics.median(shares)
    enough = sum(share >= _ENOUGH for share in shares)
    print(
        f"{len(shares)} GPU-bound cases of {count}: {median:.0%} explained at the"
        f" median, {enough} have {_ENOUGH:.0%} or more; plans leave {most:.1%} at most"
    )
    return (median < _ENOUGH) + (most > _LEFT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

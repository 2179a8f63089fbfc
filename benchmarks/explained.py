"""Fraction of the GPU's idle time that the findings explain, over all our cases.

    python benchmarks/explained.py [FILE ...]

The cases are the captures of the pairs files, with their measured steps, the fixtures
and, where it is there, the folder of shared recordings; or the files and run folders
that are given. Of each host-bound case, the most idle first: how long the GPU idles in
a step, which share of that the findings explain, and which with those on what remains,
then the largest entry that is not explained. What is named there most is what the next
rule should be about. It fails if a case that idles for more than 30% of the step has
less than 70% explained and the text does not name the largest unexplained entry.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from captures import read_captures

from traceq.inputs.load_trace import load
from traceq.linter.config import Config
from traceq.linter.engine import lint
from traceq.linter.pack import load_rules
from traceq.model.recording import Recording
from traceq.report.lint import content as words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.model.lint_report import RecordingReport

_ROOT = Path(__file__).resolve().parents[1]
_SHARED = _ROOT.parent / "shared"
_CAPTURES = (
    _ROOT / "fixtures" / "captures",
    _ROOT / "benchmarks" / "held_out",
    _ROOT / "benchmarks" / "models",
)
_MS = 1_000_000
_IDLE, _ENOUGH = 0.3, 0.7


def cases() -> Iterator[tuple[str, Path, int | None]]:
    """Yield all our traces, with what a step takes where that was measured."""
    ours = set()
    for folder in _CAPTURES:
        captures = read_captures(folder)
        for name, path in captures.paths(".trace.json.gz").items():
            ours.add(path.name)
            step_ns = captures.step_ns(name) if name in captures.step_ms else None
            yield name, path, step_ns
    for path in sorted((_ROOT / "fixtures").rglob("trace.json.gz")):
        yield f"fixtures/{path.parent.name}", path, None
    for path in sorted((_ROOT / "fixtures").rglob("rank-*.trace.json.gz")):
        yield f"fixtures/{path.parent.name}", path, None
    for folder_name in ("traces", "pairs"):
        for path in sorted((_SHARED / folder_name).rglob("*.json.gz")):
            if not path.name.startswith("not_") and path.name not in ours:
                yield f"{folder_name}/{path.name.partition('.')[0]}", path, None


def linted(name: str, path: Path, step_ns: int | None) -> RecordingReport:
    """Return what all rules say of a case."""
    trace = load(path)
    recording = Recording(name, trace, step_ns=step_ns or trace.step_ns)
    return lint([recording], load_rules(), Config()).outcomes[0]


def _report(outcome: RecordingReport) -> bool:
    """Print how much is explained, and return whether that is enough."""
    explained_idle, bound = outcome.idle, outcome.bound
    if explained_idle is None or bound is None:
        return True
    text = words.idle(outcome)
    _, _, rest = text.partition("largest unexplained, ")
    print(
        f"{outcome.name:32} {bound.gpu_idle:6.0%} {explained_idle.idle_ns / _MS:9.2f}"
        f" {explained_idle.share:10.0%}"
        f" {explained_idle.with_residual_ns / explained_idle.idle_ns:7.0%}  {rest}"
    )
    return bound.gpu_idle <= _IDLE or explained_idle.share >= _ENOUGH or bool(rest)


def main(paths: list[str]) -> int:
    """Print a line for each host-bound case; return how many fail."""
    given = ((path, Path(path), None) for path in paths)
    outcomes = [linted(*case) for case in (given if paths else cases())]
    host = [outcome for outcome in outcomes if outcome.idle and outcome.bound]
    host.sort(key=lambda report: -report.bound.gpu_idle if report.bound else 0.0)
    print(
        f"{'case':32} {'idle':>6} {'ms/step':>9} {'explained':>10} {'with':>7}"
        "  largest unexplained"
    )
    failed = [report.name for report in host if not _report(report)]
    enough = sum(report.idle.share >= _ENOUGH for report in host if report.idle)
    print(
        f"{len(host)} host-bound cases of {len(outcomes)}; {enough} have {_ENOUGH:.0%}"
        f" or more of the idle time explained; {len(failed)} fail"
    )
    return len(failed)


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))

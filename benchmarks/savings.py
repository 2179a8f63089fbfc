"""What traceq says that fixes save, against what they really saved.

    python benchmarks/savings.py benchmarks/pairs.json benchmarks/pairs_held_out.json

Each file names a folder of captures, whose captures.toml has what a step of each takes
without the profiler, and which of them are pairs:

    {"captures": "folder", "pairs": {"sick": {"twin": "repaired", "fixes": ["ATT001"]}}}

For every pair the sick trace is linted, with the measured step (calibrated) and
without, and the step that is left when its findings are fixed is compared with the step
of the repaired twin. Without ``fixes`` these are all findings; a twin that repairs
fewer names them. The estimate was made on the first file; the second was kept apart,
but for one number that was chosen with both in view (README, "What a fix saves").
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from captures import read_pairs

from traceq.finding import Severity
from traceq.lint.config import Config
from traceq.lint.engine import lint
from traceq.lint.pack import load_rules
from traceq.lint.savings import Savings
from traceq.lint.view import View
from traceq.loading import load
from traceq.recording import Recording

if TYPE_CHECKING:
    from traceq.lint.engine import Outcome

_MS = 1_000_000
_WIDTHS = (24, 6, 8, 8, 8, 7, 8, 7)
_HEAD = ("pair", "bound", "before", "after", "said", "off", "untold", "off")


def _linted(
    path: Path, step_ns: int | None, fixes: tuple[str, ...]
) -> tuple[Outcome, float]:
    """Return what lint says, and what is left of a step, in ms, after the fixes."""
    recording = Recording(str(path), load(path), step_ns=step_ns)
    outcome = lint([recording], load_rules(), Config()).outcomes[0]
    fixed = [
        one
        for one in outcome.findings
        if (one.code in fixes if fixes else one.severity is not Severity.info)
    ]
    worth = Savings(View(load(path), step_ns))
    step = worth.step_ns
    for together in worth.together(fixed):
        step = together.step_ns
    return outcome, step / _MS


def _row(texts: tuple[str, ...]) -> str:
    first, *others = texts
    cells = [first.ljust(_WIDTHS[0])]
    cells += [
        text.rjust(width) for text, width in zip(others, _WIDTHS[1:], strict=True)
    ]
    return " ".join(cells)


def _compare(path: Path) -> None:
    told, untold = [], []
    print(path)
    print(_row(_HEAD))
    for pair in read_pairs(path):
        captures, trace = pair.captures, pair.captures.trace(pair.sick)
        before, after = captures.step_ms[pair.sick], captures.step_ms[pair.twin]
        calibrated, said = _linted(trace, captures.step_ns(pair.sick), pair.fixes)
        alone, guessed = _linted(trace, None, pair.fixes)
        # Without the true step only the saving can be compared.
        guessed += before - alone.step_ns / _MS
        told.append(abs(said / after - 1))
        untold.append(abs(guessed / after - 1))
        worst = [
            one for one in calibrated.findings if one.severity is not Severity.info
        ]
        bound = calibrated.bound.by if calibrated.bound else ""
        print(
            _row(
                (
                    pair.sick,
                    bound,
                    f"{before:.2f}",
                    f"{after:.2f}",
                    f"{said:.2f}",
                    f"{said / after - 1:+.0%}",
                    f"{guessed:.2f}",
                    f"{guessed / after - 1:+.0%}",
                )
            ),
            " ".join(f"{one.code} {one.saves_ns / _MS:.2f}" for one in worst[:6]),
        )
    print(
        f"{len(told)} pairs: off by {statistics.median(told):.0%} at the median and"
        f" {max(told):.0%} at most; without the measured step by"
        f" {statistics.median(untold):.0%} and {max(untold):.0%}"
    )


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    for argument in sys.argv[1:]:
        _compare(Path(argument))

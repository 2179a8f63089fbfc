"""Are findings at the line that a person would name? Runs recorded with sources.

``python benchmarks/lines.py FOLDER...`` lints run folders that ``traceq collect`` made
of the programs in ``fixtures/programs`` and compares the place of every finding with
``lines.toml``: for each program and rule, what stands on the lines that are right. A
finding in a function as a whole is right where the rule finds functions.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceq.common import toml
from traceq.errors import InputError
from traceq.inputs.load_trace import load
from traceq.linter.config import Config
from traceq.linter.engine import lint
from traceq.linter.pack import load_rules
from traceq.model.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.model.finding import Finding

EXPECTED = Path(__file__).parent / "lines.toml"
RIGHT, WRONG, FUNCTION, UNJUDGED = "right", "wrong line", "function only", "not judged"


def judged(finding: Finding, sources: Mapping[str, str], texts: list[str]) -> str:
    """Return whether a finding is at a line with one of these texts."""
    place = finding.place
    if not texts:
        return UNJUDGED
    if not place.exact:
        return RIGHT if f"def {place.function}" in texts else FUNCTION
    source = sources.get(place.file or "", "").splitlines()
    there = source[(place.line or 0) - 1] if len(source) >= (place.line or 0) else ""
    return RIGHT if any(text in there for text in texts) else WRONG


def main(folders: list[str]) -> None:
    """Print each finding with a place, and how many are right."""
    expected: dict[str, Any] = toml.read(EXPECTED, InputError)
    rules, total = load_rules(), Counter[str]()
    for folder in sorted(map(Path, folders)):
        trace = load(folder)
        sources = trace.rank.sources if trace.rank else {}
        recording = Recording(folder.name, trace, step_ns=trace.step_ns)
        (outcome,) = lint([recording], rules, Config(select=("ALL",))).outcomes
        for finding in outcome.findings:
            place = finding.place
            if not place.file:
                continue
            known = expected.get(folder.name, {})
            named = f"{finding.code} {finding.subject}"
            texts = known.get(named) or known.get(finding.code, [])
            verdict = judged(finding, sources, texts)
            total[verdict] += 1
            exact = "line" if place.exact else "function at"
            print(
                f"{verdict:14} {folder.name}: {finding.code} {exact} {place.line}"
                f" {place.function}"
            )
    placed = sum(total.values())
    print(
        f"\n{total[RIGHT]} of {placed} are right ({total[RIGHT] / max(1, placed):.0%}):"
    )
    print(", ".join(f"{count} {verdict}" for verdict, count in total.most_common()))


if __name__ == "__main__":
    main(sys.argv[1:])

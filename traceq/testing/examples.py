"""Drawn examples of a rule, run as its tests: Bad has these findings, Good none."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from traceq.formats.log import log_lines
from traceq.linter.rule import Bad
from traceq.linter.run import Views, run_rule
from traceq.model.recording import Recording
from traceq.ranks.analysis import analyse
from traceq.ranks.digest import Digest, make_digest
from traceq.ranks.job import assemble
from traceq.testing.history import load_history
from traceq.testing.timeline import load_drawn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter.pack import Rules
    from traceq.linter.rule import Good, Rule
    from traceq.ranks.analysis import Analysis

# Rules differ by what a GPU can do; this is the one that drawn traces are of.
DEVICE = {
    "id": 0,
    "name": "NVIDIA H200",
    "computeMajor": 9,
    "computeMinor": 0,
    "numSms": 132,
    "totalGlobalMem": 150_000_000_000,
}


@dataclass(frozen=True)
class Example:
    """One drawn example of a rule, and what came of it."""

    name: str
    """As ``SYN001-Bad-0``."""
    expected: tuple[str, ...]
    found: tuple[str, ...]
    error: str = ""
    """The error that the rule crashed with, and the line of the rule."""

    @property
    def holds(self) -> bool:
        """True if the rule found what it should, and nothing else."""
        return not self.error and self.expected == self.found


def run_examples(rules: Rules) -> Iterator[Example]:
    """Run every example of every rule, through the real reader and engine."""
    for rule in rules.values():
        numbers = {"Bad": 0, "Good": 0}
        for example in rule.examples:
            kind = type(example).__name__
            yield run_example(f"{rule.code}-{kind}-{numbers[kind]}", rule(), example)
            numbers[kind] += 1


def run_example(name: str, rule: Rule, example: Bad | Good) -> Example:
    """Run one example of a rule; a crash of the rule is a result like any other."""
    expected = example.sentences if isinstance(example, Bad) else ()
    try:
        findings = run_rule(rule, Views(drawn(example), job=drawn_job(example)))
    except Exception as error:  # noqa: BLE001 - the author's, whatever it is
        return Example(name, expected, (), _crash(error, type(rule)))
    return Example(name, expected, tuple(finding.message for finding in findings))


def _crash(error: Exception, rule: type[Rule]) -> str:
    """Say what a rule crashed with, and at which of its own lines."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    file = inspect.getfile(rule)
    own = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    return f"{text} ({Path(file).name}:{own[-1]})" if own else text


def drawn_job(example: Bad | Good) -> Analysis | None:
    """Return the job whose ranks an example shows, analysed; none if it has none."""
    if not example.ranks:
        return None
    traces = [
        load_drawn(
            drawing,
            example.args,
            DEVICE,
            {"rank": rank, "world_size": len(example.ranks), "backend": "nccl"},
        )
        for rank, drawing in enumerate(example.ranks)
    ]
    digests = [Digest(make_digest(trace, findings=False)) for trace in traces]
    return analyse(assemble(digests))


def drawn(example: Bad | Good) -> Recording:
    """Return the recording that an example draws."""
    return Recording(
        name="drawn",
        trace=load_drawn(example.drawing, example.args, DEVICE)
        if example.drawing
        else None,
        log=log_lines(example.log) if example.log else None,
        snapshots={0: load_history(example.history)} if example.history else {},
    )

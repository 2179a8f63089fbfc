"""Small programs and findings in them, for tests of edits."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from traceq.common.git_repository import read_repository
from traceq.fix.propose import RecordedProgram, combine, propose
from traceq.model.finding import Evidence, Finding, Place, Severity
from traceq.report.repository_paths import located_finding

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.fix.edit import Proposal

FILE = "train.py"
DATA: dict[str, dict[str, Any]] = {
    "ATT005": {"mask": [8, 8]},
    "CPY003": {"direction": "to the GPU"},
    "LCH003": {"optimizer": "AdamW"},
    "LCH004": {"optimizer": "AdamW"},
    "NRM002": {"kind": "RMSNorm"},
}
ADVICE = {"SYN001": "pass validate_args=False once the program is right"}


@dataclass(frozen=True)
class Case:
    """A program, a finding in it, and the edit or the words of the refusal."""

    name: str
    code: str
    at: str
    """Text of the line of the finding."""
    before: str
    after: str = ""
    refused: str = ""
    function: str = "<module>"
    exact: bool = True
    torch: str = "2.11"
    data: dict[str, Any] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()


def source(text: str) -> str:
    """Return a program without the indentation that it has in a test."""
    return dedent(text).lstrip("\n")


def finding_of(case: Case, text: str) -> Finding:
    """Return the finding at the line of a program that has a text."""
    number = next(
        (n for n, line in enumerate(text.splitlines(), 1) if case.at in line), None
    )
    assert number is not None, case.at
    return Finding(
        code=case.code,
        name=case.code.lower(),
        severity=Severity.warning,
        message="",
        advice=ADVICE.get(case.code, ""),
        place=Place(
            FILE,
            number,
            case.function,
            line_is="call" if case.exact else "function",
        ),
        subject="AdamW",
        count=1,
        data=DATA.get(case.code, {}) | case.data,
        evidence=case.evidence,
    )


def proposal(case: Case, folder: Path) -> tuple[Proposal, str]:
    """Return the edit of a program in a folder, and the program with it."""
    text = source(case.before)
    (folder / FILE).write_text(text, encoding="utf-8", newline="")
    repository = read_repository(folder)
    finding = located_finding(finding_of(case, text), repository)
    known = RecordedProgram({FILE: text}, case.torch)
    proposals, files = combine(propose([finding], repository, known), folder)
    return proposals[0], files[0].after if files else text

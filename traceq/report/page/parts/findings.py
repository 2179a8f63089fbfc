"""The findings as cards: what each costs, where it is, its evidence and its fix."""

from __future__ import annotations

from dataclasses import dataclass
from string import digits
from textwrap import dedent
from typing import TYPE_CHECKING

from traceq.common.words import counted, listed
from traceq.report.base.text import where
from traceq.report.lint import content as words
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.model.finding import CodeFrame, Finding
    from traceq.model.lint_report import RecordingReport
    from traceq.report.page.section import Subject

MOST = 60
_MOST_CODES = 8
_FAMILIES = {
    "ATT": "attention",
    "CPY": "copies",
    "DAT": "data loading",
    "GEM": "matmuls",
    "HST": "host",
    "JIT": "torch.compile",
    "KRN": "kernels",
    "LAY": "layout",
    "LCH": "launches",
    "LOG": "log",
    "LOS": "loss",
    "MEM": "memory",
    "NET": "network",
    "NRM": "norms",
    "RNK": "ranks",
    "SRV": "serving",
    "SYN": "syncs",
    "TRC": "the trace",
}


@dataclass(frozen=True)
class CostBar:
    """Savings of a fix, as shares of the step in percent."""

    likely: float
    low: float
    high: float


@dataclass(frozen=True)
class Card:
    """One finding as the page shows it."""

    key: str
    number: int
    """Index of the finding in the recording, from 0."""
    finding: Finding
    family: str
    """Subject of its family of rules."""
    severity: str
    cost: str
    bar: CostBar | None
    place: str
    evidence: tuple[tuple[str, str], ...]
    frame: tuple[tuple[int, str, bool], ...]
    """The lines of the source: number, text, and whether it is the place."""
    before: tuple[str, ...]
    after: tuple[str, ...]


def findings(subject: Subject) -> Section:
    """Return the cards, what saves most first."""
    outcome = subject.outcome
    cards = cards_of(subject)
    first = cards[:MOST]
    minor = [card for card in first if card.severity == "minor"]
    return Section(
        key=subject.key("findings"),
        title="Findings",
        template="findings.html",
        context={
            "cards": first,
            "serious": [card for card in first if card not in minor],
            "minor": minor,
            "minor_title": _minor_title(minor),
            "more": counted(len(cards) - MOST, "finding") if cards[MOST:] else "",
            "families": _counts([card.family for card in first]),
            "severities": _counts([card.severity for card in first]),
            "together": words.together(outcome),
            "idle": words.idle(outcome),
            "nothing": words.verdict(outcome).capitalize() if not cards else "",
        },
        data={
            "costs": [card.finding.saves_ns for card in first],
            "step_ns": outcome.step_ns,
        },
    )


def _minor_title(cards: Sequence[Card]) -> str:
    """Return the line that minor findings are folded under: how many, and which."""
    codes = listed([card.finding.code for card in cards], _MOST_CODES)
    return f"{counted(len(cards), 'minor finding')}: {codes}"


def cards_of(subject: Subject) -> list[Card]:
    """Return the findings of a recording as cards, in the order of the list."""
    used: set[str] = set()
    cards = []
    for number, finding in enumerate(subject.outcome.findings):
        # The code before and after is the rule's: once is enough.
        example = "" if finding.example in used else finding.example
        used.add(finding.example)
        cards.append(_card(subject, number, finding, example))
    return cards


def _card(subject: Subject, number: int, finding: Finding, example: str) -> Card:
    outcome, frame = subject.outcome, finding.frame
    return Card(
        key=f"{subject.key('finding')}-{number + 1}",
        number=number,
        finding=finding,
        family=_family(finding.code),
        severity=words.weight(finding),
        cost=words.cost(finding, outcome),
        bar=_bar(finding, outcome),
        place=where(finding.place),
        evidence=tuple(
            (entry.label, words.evidence(entry)) for entry in finding.evidence
        ),
        frame=_lines(frame) if frame else (),
        before=_side(example, "+"),
        after=_side(example, "-"),
    )


def _bar(finding: Finding, outcome: RecordingReport) -> CostBar | None:
    """Return the savings of a fix, as shares of the step or of the reserved memory."""
    if finding.cost_bytes and outcome.memory and outcome.memory.reserved:
        part = min(100.0, 100 * finding.cost_bytes / outcome.memory.reserved)
        return CostBar(part, part, part)
    if not outcome.step_ns or not finding.saves_ns:
        return None
    likely, low, high = (
        round(min(100.0, 100 * ns / outcome.step_ns), 3)
        for ns in (finding.saves_ns, finding.saves_low_ns, finding.saves_high_ns)
    )
    return CostBar(likely, low, high)


def _lines(frame: CodeFrame) -> tuple[tuple[int, str, bool], ...]:
    """Return the lines of the source, less what all of them are indented by."""
    texts = dedent("\n".join(frame.lines).expandtabs(4)).split("\n")
    return tuple(
        (line, text, line == frame.marked)
        for line, text in enumerate(texts, frame.first)
    )


def _side(example: str, other: str) -> tuple[str, ...]:
    r"""Return one side of a diff: all lines but those of the other side.

    >>> _side("- x.item()\n+ x", "+"), _side("- x.item()\n+ x", "-")
    (('x.item()',), ('x',))
    """
    lines = [line for line in example.splitlines() if not line.startswith(other)]
    return tuple(line[2:] for line in lines)


def _family(code: str) -> str:
    """Return the subject of a family of rules; for a user's pack, its letters."""
    letters = code.rstrip(digits)
    return _FAMILIES.get(letters, letters)


def _counts(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return names in their order, and how often each is there."""
    return [(name, names.count(name)) for name in dict.fromkeys(names)]

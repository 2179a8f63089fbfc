"""Sentences of the first screen, a line each."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.common.units import share, size, time
from traceq.common.words import counted
from traceq.model.finding import Severity
from traceq.report import bound as bound_words
from traceq.report import steps as steps_words
from traceq.report.base.text import styled, wrapped
from traceq.report.lint import content as words
from traceq.report.lint import cpu
from traceq.report.lint.out_of_memory import answer, ran_out
from traceq.report.lint.rows import cut_text
from traceq.report.lint.slow_steps import BY, sentences

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport, Skipped

_MOST_FIXES = 3
_MOST_NOTES = 3
# What the reasons for skipped rules begin with, and what a reader knows without it.
_LEAD = re.compile(r"^(?:there (?:is|are)|the (?:trace|recording) (?:has|is)) ")
_SHORT = re.compile("[:;,]")


def verdict(outcome: RecordingReport) -> str:
    """Return what bounds the step, the memory's peak, and what was found."""
    parts = (
        ran_out(outcome),
        _bound(outcome),
        words.memory_peak(outcome),
        _findings_line(outcome),
    )
    text = "; ".join(filter(None, parts))
    return f"{text[:1].upper()}{text[1:]}"


def _bound(outcome: RecordingReport) -> str:
    bound = outcome.bound
    if bound is None or outcome.facts is None:
        return "" if outcome.memory else "a log without a trace"
    return bound_words.short_sentence(bound)


def _findings_line(outcome: RecordingReport) -> str:
    """Return the number of findings, and what they save together."""
    regular = [finding for finding in cpu.certain(outcome) if not finding.minor]
    new = "new " if outcome.in_baseline else ""
    if not regular:
        if not outcome.ran or outcome.cpu:
            return cpu.verdict(outcome) if outcome.ran else "no rule could run"
        minor = counted(len(outcome.findings), f"{new}minor finding")
        return f"only {minor}" if outcome.findings else f"no {new}findings"
    text = counted(len(regular), f"{new}finding")
    if outcome.together:
        fixed = outcome.together[-1].findings
        text += f", {fixed} of which" if fixed < len(regular) else ""
        saved = outcome.step_ns - outcome.together[-1].step_ns
        save = "saves" if fixed == 1 else "save"
        return f"{text} {save} {time(saved)} ({share(saved, outcome.step_ns)})"
    which = "the largest" if len(regular) > 1 else "which"
    most = max(regular, key=lambda finding: finding.saves_ns)
    if words.saves_time(most, outcome):
        part = share(most.saves_ns, outcome.step_ns)
        return f"{text}, {which} saves {time(most.saves_ns)} ({part})"
    held = max(regular, key=lambda finding: finding.cost_bytes)
    if outcome.memory and held.cost_bytes and not ran_out(outcome):
        return f"{text}, {which} holds {size(held.cost_bytes)}"
    return text


def step(outcome: RecordingReport) -> str:
    """Return the duration of a step and where it is from; empty without a trace."""
    bound = outcome.bound
    if bound is None or outcome.facts is None:
        return ""
    taken = steps_words.inferred(outcome.facts)
    steps = counted(outcome.steps, "step") + taken
    if not outcome.facts.steps_from:
        steps = "no steps, the whole trace"
    text = f"{time(bound.step_ns)}{words.a_step(outcome)}, {bound_words.source(bound)}"
    if bound.step_from != "recorded":
        text += f"; {time(bound.recorded_step_ns)} {bound_words.AS_RECORDED}"
    return f"{text} ({steps})"


def plan(outcome: RecordingReport) -> str:
    """Return the step with all findings fixed; empty if none saves time."""
    if not outcome.together:
        return ""
    last = outcome.together[-1]
    by = "GPU-bound" if last.by == "gpu" else "host-bound"
    vague = last.step_high_ns - last.step_low_ns > words.VAGUE * (
        outcome.step_ns - last.step_ns
    )
    between = f"{_pair(last.step_low_ns, 'to', last.step_high_ns)}, then {by}"
    return (
        f"After fixing {words.every(last.findings)}:"
        f" {_pair(last.step_ns, 'of', outcome.step_ns)}{words.a_step(outcome)}"
        f" ({between if vague else f'then {by}'})"
    )


def _pair(one: float, word: str, other: float) -> str:
    """Write two times, the unit once if both have the same.

    >>> _pair(29.0e6, "of", 80.9e6), _pair(980e3, "to", 1.2e6)
    ('29.0 of 80.9 ms', '980 µs to 1.20 ms')
    """
    first, second = time(one), time(other)
    number, _, unit = first.partition(" ")
    return f"{number if second.endswith(f' {unit}') else first} {word} {second}"


def fixes(findings: Iterable[Finding], width: int, *, color: bool) -> list[str]:
    """Return the advice of the first findings, two lines each, each advice once.

    Those whose fix saves nothing that is known come last. The one that saves the
    most is among them, though it may be worth fixing only after others.
    """
    advice: dict[str, Finding] = {}
    for finding in sorted(findings, key=_saves_nothing):
        if finding.advice and not finding.minor:
            advice.setdefault(finding.advice, finding)
    every = list(advice.items())
    chosen = every[:_MOST_FIXES]
    if not chosen:
        return []
    most = max(every, key=lambda item: item[1].saves_ns)
    if most not in chosen:
        chosen[-1] = most
    first = max(len(finding.code) for _, finding in chosen) + 2
    lines = [styled("fix first", "dim", color=color)]
    for text, finding in chosen:
        begin, *rest = _two_lines(printable(text), width - first)
        code = styled(finding.code, "bold", color=color)
        lines.append(code + " " * (first - len(finding.code)) + begin)
        lines += [" " * first + line for line in rest]
    return lines


def _two_lines(text: str, width: int) -> list[str]:
    """Return a text in one or two lines, cut if it has more."""
    for length in range(2 * width, width, -1):
        lines = wrapped(cut_text(text, length), width)
        if len(lines) <= 2:  # noqa: PLR2004 - as the name says
            return lines
    return [cut_text(text, width)]


def _saves_nothing(finding: Finding) -> bool:
    """Return whether a finding has no saving, and is none to be fixed all the same."""
    must = finding.leads or finding.severity is Severity.error
    return not (must or finding.saves_ns or finding.cost_bytes)


def notes(texts: Sequence[str], width: int, *, color: bool) -> list[str]:
    """Return notes, a line each; more than a few are counted."""
    most = _MOST_NOTES if len(texts) <= _MOST_NOTES else _MOST_NOTES - 1
    lines = [cut_text(f"note: {text}", width) for text in texts[:most]]
    if texts[most:]:
        lines.append(f"note: {len(texts) - most} more notes: -v")
    return [styled(line, "yellow", color=color) for line in lines]


def out_of_memory(outcome: RecordingReport, width: int) -> list[str]:
    """Return what did not fit, what held the memory and what would fit, a line each."""
    entries = answer(outcome)
    widest = max((len(entry.label) for entry in entries), default=0)
    texts = [f"{entry.label:<{widest}}  {words.evidence(entry)}" for entry in entries]
    return [cut_text(printable(text), width) for text in texts]


def slow_steps(outcome: RecordingReport, width: int) -> list[str]:
    """Return the rare slow steps and their causes, a line each."""
    head, *causes = sentences(outcome) or [""]
    texts = [head, *(f"  {cause.removeprefix(BY)}" for cause in causes)]
    return [cut_text(text, width) for text in texts if text]


def notes_of(outcome: RecordingReport) -> list[str]:
    """Return the notes of a recording, the most important first."""
    kinds = words.step_kinds(outcome)
    return [*words.other_notes(outcome), *([kinds] if kinds else [])]


def rules(outcome: RecordingReport, width: int) -> str:
    """Return how many rules ran, and why others did not, in one line."""
    text = words.rules(outcome, skipped=False)
    if outcome.skipped:
        text += f", {len(outcome.skipped)} skipped: {reasons(outcome.skipped)}"
    return cut_text(text, width)


def reasons(skipped: Iterable[Skipped]) -> str:
    """Return the reasons for skipped rules in few words, with how many each."""
    causes = Counter(_LEAD.sub("", _SHORT.split(rule.reason)[0]) for rule in skipped)
    return ", ".join(
        f"{printable(reason)} ({count})" for reason, count in causes.most_common()
    )


def more(left: Sequence[Finding], shown: Sequence[Finding]) -> str:
    """Return how many findings have no line; empty if all have one."""
    if not left:
        return ""
    # Alone: what another fix covers saves nothing after it.
    most = max(max(finding.saves_ns, finding.saves_alone_ns or 0) for finding in left)
    least = min((finding.saves_ns for finding in shown if finding.saves_ns), default=0)
    if most and most < least:
        save = "saves" if len(left) == 1 else "save"
        return f"+ {len(left)} more that {save} less than {time(least)}: -v"
    minor = all(finding.minor for finding in left)
    return (
        f"+ {counted(len(left), 'minor finding') if minor else f'{len(left)} more'}: -v"
    )

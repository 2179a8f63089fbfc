"""The words of a lint report, the same in every format that people read."""

from __future__ import annotations

from itertools import groupby
from pathlib import PurePath
from string import ascii_uppercase, digits
from typing import TYPE_CHECKING

from traceq.finding import Evidence, Severity
from traceq.report import bottleneck as bottleneck_words
from traceq.report.base.text import place as written_place
from traceq.report.base.text import printable, short_kernel
from traceq.units import amount, share, size, time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.finding import Finding
    from traceq.lint.engine import Outcome, Report

_PAIR = 2
# A fix that saves less than this part of the step saves nothing.
_NOTHING = 0.0005
# A saving whose range is wider than this part of it is given with the range.
_VAGUE = 0.15


def title(outcome: Outcome) -> str:
    """Return what was looked at, in one line."""
    return printable(outcome.name)


def facts(outcome: Outcome) -> str:
    """Return how many steps of what length, what they wait for, and the peak."""
    return "; ".join(filter(None, (_time(outcome), _memory(outcome))))


def _memory(outcome: Outcome) -> str:
    memory = outcome.memory
    if memory is None:
        return ""
    where = f" on rank {memory.rank}" if memory.rank else ""
    where += f" on GPU {memory.device}" if memory.device else ""
    return (
        f"memory peaks at {size(memory.allocated)} allocated,"
        f" {size(memory.reserved)} reserved{where}"
    )


def _time(outcome: Outcome) -> str:
    bound = outcome.bound
    if bound is None or outcome.facts is None:
        return "" if outcome.memory else "a log without a trace"
    steps = f"{outcome.steps} steps" if outcome.steps > 1 else "1 step"
    if not outcome.facts.steps_from:
        steps = "no steps, the whole trace"
    shorter = outcome.step_ns < bottleneck_words.SHORTER * bound.step_ns
    if bound.measured:
        length = f"{steps} of {time(bound.step_ns)} measured without the profiler"
    elif outcome.facts.gpu and shorter:
        length = (
            f"{steps} of {time(bound.step_ns)} as recorded, likely about"
            f" {time(outcome.step_ns)} without the profiler"
        )
    else:
        length = f"{steps} of {time(bound.step_ns)} as recorded"
    return f"{length}; {_bound(outcome)}"


def _bound(outcome: Outcome) -> str:
    if outcome.bottleneck is None or outcome.bound is None:
        return "no GPU work was recorded"
    unclear = outcome.bound.by == "unclear"
    return bottleneck_words.sentence(outcome.bottleneck, likely=unclear)


def bar(outcome: Outcome) -> str:
    """Return what a step waits for, drawn as a bar."""
    return bottleneck_words.bar(outcome.bottleneck) if outcome.bottleneck else ""


def cost(finding: Finding, outcome: Outcome) -> str:
    """Return what a finding costs: memory, or time per step and on what."""
    if finding.cost_bytes and outcome.memory:
        part = share(finding.cost_bytes, outcome.memory.reserved)
        return f"{size(finding.cost_bytes)} ({part})"
    return _time_cost(finding, outcome)


def _time_cost(finding: Finding, outcome: Outcome) -> str:
    bound = outcome.bound
    if bound is None or not (finding.gpu_ns or finding.host_ns):
        return ""
    step = outcome.step_ns
    held = f"{time(max(finding.gpu_ns, finding.host_ns))} a step"
    if finding.saves_ns < _NOTHING * step:
        by = "GPU" if finding.gpu_ns >= finding.host_ns else "host"
        return (
            f"{by} {held}, but a fix saves nothing: the step waits for something else"
        )
    text = f"saves {time(finding.saves_ns)}/step ({share(finding.saves_ns, step)})"
    if finding.saves_high_ns - finding.saves_low_ns > _VAGUE * finding.saves_ns:
        least = time(finding.saves_low_ns) if finding.saves_low_ns else "nothing"
        text += f", {least} to {time(finding.saves_high_ns)}"
    return text


def together(outcome: Outcome) -> str:
    """Return what fixing the worst findings one after the other leaves of a step."""
    found = outcome.together
    if not found:
        return ""
    last = found[-1]
    by = "the GPU" if last.by == "gpu" else "the host"
    vague = last.step_high_ns - last.step_low_ns > _VAGUE * (
        outcome.step_ns - last.step_ns
    )
    between = (
        f" ({time(last.step_low_ns)} to {time(last.step_high_ns)})" if vague else ""
    )
    if len(found) == 1:
        return (
            f"With this fixed, a step takes about {time(last.step_ns)}{between} instead"
            f" of {time(outcome.step_ns)}, and waits for {by}"
        )
    first, *others = found[:-1]
    texts = [f"{time(first.step_ns)} after the first"]
    texts += [f"{time(one.step_ns)} after {one.findings}" for one in others]
    every = "both" if last.findings == _PAIR else f"all {last.findings}"
    texts.append(f"{time(last.step_ns)}{between} after {every}")
    return (
        f"Fixed from the top, a step of {time(outcome.step_ns)} takes about"
        f" {', '.join(texts)}; then it waits for {by}"
    )


def place(finding: Finding) -> str:
    """Return where a finding is: in the source if that is known, else the module."""
    where = finding.place
    source = written_place(where.file, where.line, where.function)
    module = printable(where.module or "")
    return f"{source} in {module}" if source and module else source or module


def evidence(entry: Evidence) -> str:
    """Return one line of what a finding was seen by: name, number, note, count.

    >>> evidence(Evidence("kernel", "void gemm(int)", count=4))
    'gemm ×4'
    >>> evidence(Evidence("waits", value=1500, unit="ns", note="each"))
    '1.50 µs each'
    """
    name = short_kernel(entry.name) if entry.label == "kernel" else entry.name
    number = "" if entry.value is None else amount(entry.value, entry.unit)
    often = "" if entry.count is None else f"×{entry.count:.3g}"
    return printable(" ".join(filter(None, (name, number, entry.note, often))))


def skipped(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the codes of rules that could not look, by the reason."""
    by_reason = sorted(outcome.skipped, key=lambda rule: (rule.reason, rule.code))
    return [
        (", ".join(_ranges([rule.code for rule in rules])), printable(reason))
        for reason, rules in groupby(by_reason, key=lambda rule: rule.reason)
    ]


def _ranges(codes: Sequence[str]) -> list[str]:
    """Write codes that follow each other as a range."""
    runs: list[list[str]] = []
    for code in codes:
        number = int(code.lstrip(ascii_uppercase))
        before = runs[-1][-1] if runs else ""
        if before == f"{code.rstrip(digits)}{number - 1:03}":
            runs[-1].append(code)
        else:
            runs.append([code])
    return [
        f"{run[0]} to {run[-1]}" if len(run) > _PAIR else ", ".join(run) for run in runs
    ]


def verdict(outcome: Outcome) -> str:
    """Return one sentence on the whole."""
    serious = [one for one in outcome.findings if one.severity is not Severity.info]
    minor = len(outcome.findings) - len(serious)
    looked = f"{_counted(outcome.checked, 'rule')} looked"
    if outcome.skipped:
        looked += f", {len(outcome.skipped)} could not"
    if outcome.crashed:
        looked += f", {len(outcome.crashed)} failed"
    if not serious:
        text = "nothing worth a fix was found"
        if outcome.known:
            text = "nothing worth a fix is new"
        if minor:
            text = f"{_counted(minor, 'finding')}, none worth a fix"
        return f"{text}; {looked}"
    text = _counted(len(serious), "finding")
    worst = max(serious, key=lambda one: one.saves_ns)
    if outcome.bound and worst.saves_ns:
        step = time(outcome.step_ns)
        text += f", the worst costs {time(worst.saves_ns)} of {step} a step"
    largest = max(serious, key=lambda one: one.cost_bytes)
    if outcome.memory and largest.cost_bytes:
        text += (
            f", the largest is about {size(largest.cost_bytes)} of"
            f" {size(outcome.memory.reserved)} reserved"
        )
    if minor:
        text += f"; {_counted(minor, 'minor one')}"
    return f"{text}; {looked}"


def notes(outcome: Outcome) -> list[str]:
    """Return what else there is to know: failed rules, allowed and cheap findings."""
    lines = [
        f"{rule.code} failed: {printable(rule.error)}; what it looks for may be there"
        for rule in outcome.crashed
    ]
    lines += [
        f"{allowed.finding.code} is allowed at"
        f" {place(allowed.finding) or 'no known place'}: {printable(allowed.reason)}"
        for allowed in outcome.allowed
    ]
    if outcome.cheap:
        lines.append(
            f"{_counted(outcome.cheap, 'finding')} below min-cost-us not shown"
        )
    if outcome.known:
        have = "has" if outcome.known == 1 else "have"
        lines.append(
            f"{_counted(outcome.known, 'finding')} of the baseline, which {have} not"
            " grown, not shown"
        )
    if outcome.facts:
        lines += [f"the trace is incomplete: {text}" for text in outcome.facts.damage]
    if outcome.memory:
        damage = outcome.memory.damage
        lines += [f"the snapshot is incomplete: {printable(text)}" for text in damage]
    return lines


def unused(report: Report) -> list[str]:
    """Return the entries of the configuration that allow nothing that was found."""
    return [
        f"the configuration allows {printable(entry.rule)} at {printable(entry.where)},"
        " and nothing of the kind was found: remove the entry"
        for entry in report.unused
    ]


def short_name(outcome: Outcome) -> str:
    """Return the name of the file that was looked at."""
    return printable(PurePath(outcome.name).name)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

"""The words of a lint report, the same in every format that people read."""

from __future__ import annotations

from itertools import groupby
from pathlib import PurePath
from string import ascii_uppercase, digits
from typing import TYPE_CHECKING

from traceq.finding import Severity
from traceq.report.text import place as written_place
from traceq.report.text import printable, short_kernel
from traceq.units import share, size, time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.finding import Evidence, Finding
    from traceq.lint.engine import Outcome, Report

_PAIR = 2


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
    source = "measured without the profiler" if bound.measured else "as recorded"
    length = f"{steps} of {time(bound.step_ns)} {source}"
    return f"{length}; {_bound(outcome)}"


def _bound(outcome: Outcome) -> str:
    bound = outcome.bound
    if bound is None or outcome.facts is None or not outcome.facts.gpu:
        return "no GPU work was recorded"
    busy = f"the GPU is busy {share(bound.busy, 1)} of the time"
    if bound.by == "gpu":
        return f"bound by the GPU: {busy}"
    if bound.by == "host":
        return f"bound by the host: {busy}"
    return (
        f"{busy}; recording stacks slows the host down, so it is unclear if the"
        " host or the GPU bounds a step"
    )


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
    gpu, host = f"GPU {time(finding.gpu_ns)}", f"host {time(finding.host_ns)}"
    of_step = f"{time(finding.cost_ns)}/step ({share(finding.cost_ns, bound.step_ns)})"
    if bound.by == "unclear":
        both = [
            text for text, ns in ((gpu, finding.gpu_ns), (host, finding.host_ns)) if ns
        ]
        return f"{' and '.join(both)} a step"
    if bound.by == "host" and not finding.host_ns:
        return f"{gpu} a step, but the step is bound by the host"
    if bound.by == "host" and finding.gpu_ns > finding.host_ns:
        return f"{of_step}; {gpu} a step, but the step is bound by the host"
    if bound.by == "gpu" and not finding.gpu_ns:
        return f"{host} a step, but the step is bound by the GPU"
    return of_step


def place(finding: Finding) -> str:
    """Return where a finding is: in the source if that is known, else the module."""
    where = finding.place
    source = written_place(where.file, where.line, where.function)
    module = printable(where.module or "")
    return f"{source} in {module}" if source and module else source or module


def evidence(entry: Evidence) -> str:
    """Return one line of what a finding was seen by."""
    if entry.what == "kernel":
        name, times, rest = entry.text.partition(" ×")
        return short_kernel(name) + times + printable(rest)
    return printable(entry.text)


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
    worst = max(serious, key=lambda one: one.cost_ns)
    if outcome.bound and worst.cost_ns:
        text += (
            f", the worst costs {time(worst.cost_ns)} of"
            f" {time(outcome.bound.step_ns)} a step"
        )
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

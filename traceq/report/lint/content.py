"""The words of a lint report, the same in every format that people read."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import PurePath
from string import ascii_uppercase, digits
from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.common.units import amount, number, share, size, time
from traceq.common.words import at_function, counted
from traceq.model.finding import COVERED, Evidence, Severity
from traceq.report import bound as bound_words
from traceq.report import graph_replays as replayed_words
from traceq.report import steps as steps_words
from traceq.report.base.columns import Column
from traceq.report.base.content import Content, TextTable
from traceq.report.base.text import at, short_kernel, where
from traceq.report.lint import cpu
from traceq.report.lint.out_of_memory import ran_out
from traceq.report.lint.slow_steps import sentences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.model.finding import CodeFrame, Finding
    from traceq.model.lint_report import RecordingReport, Report

SEVERITY_COLORS = {
    Severity.error: "red",
    Severity.warning: "yellow",
    Severity.info: "cyan",
}
_PAIR = 2
# A fix that saves less than this share of the step saves nothing.
_NOTHING = 0.0005
# A saving whose range is wider than this share of it is printed with the range.
VAGUE = 0.15
# If this share of the idle time is explained, nothing is worth a word.
_ALL_EXPLAINED = 0.95
# Less of the GPU's time above what its work needs is not worth a sentence.
_MATTERS = 0.05
_HEADLINE = 10
# Steps of a plan that are listed before the last one.
_MOST_STEPS = 5
# The rule whose finding says that replays have no known ops.
_UNKNOWN_REPLAY = "TRC007"
_CLAUSE = re.compile(r"[:;,](?= )| because | since | although ")


def content(outcome: RecordingReport) -> Content:
    """Return a recording in a few lines and a table of its findings."""
    columns = ("", "finding", "cost", "where", "fix")
    rows = tuple(
        (
            cpu.LEVEL if finding.would_matter_on_gpu else finding.severity.value,
            printable(f"{finding.code} {headline(finding)}"),
            cost(finding, outcome),
            where(finding.place),
            printable(finding.advice),
        )
        for finding in outcome.findings
    )
    lines = (
        ("Step", facts(outcome)),
        ("Steps", step_kinds(outcome)),
        ("Time", bar(outcome)),
        *(cpu.facts(outcome.cpu) if outcome.cpu else ()),
        ("Fixed", together(outcome)),
        ("Idle", idle(outcome)),
        *(("Note", text) for text in notes(outcome)),
        *(("Skipped", f"{codes}: {why}") for codes, why in skipped(outcome)),
    )
    return Content(
        title=f"{title(outcome)}: {verdict(outcome)}",
        warnings=(),
        facts=tuple((label, text) for label, text in lines if text),
        tables=(TextTable(tuple(map(Column, columns)), rows),) if rows else (),
    )


def title(outcome: RecordingReport) -> str:
    """Return the linted recording, in one line."""
    return printable(outcome.name)


def facts(outcome: RecordingReport) -> str:
    """Return number, duration and bound of the steps, and the memory peak."""
    parts = (ran_out(outcome), _time(outcome), memory_peak(outcome))
    return "; ".join(filter(None, parts))


def memory_peak(outcome: RecordingReport) -> str:
    """Return the peak of the memory; empty without a snapshot."""
    memory = outcome.memory
    if memory is None:
        return ""
    where = f" on rank {memory.rank}" if memory.rank else ""
    where += f" on GPU {memory.device}" if memory.device else ""
    return (
        f"memory peaks at {size(memory.allocated)} allocated,"
        f" {size(memory.reserved)} reserved{where}"
    )


def _time(outcome: RecordingReport) -> str:
    bound = outcome.bound
    if bound is None or outcome.facts is None:
        return "" if outcome.memory else "a log without a trace"
    steps = f"{outcome.steps} steps" if outcome.steps > 1 else "1 step"
    if not outcome.facts.steps_from:
        steps = "no steps, the whole trace"
    recorded = f"{time(bound.recorded_step_ns)} {bound_words.AS_RECORDED}"
    recorded += steps_words.inferred(outcome.facts)
    return f"{steps} of {recorded}; {bound_words.sentence(bound)}"


def step_kinds(outcome: RecordingReport) -> str:
    """Return the sentence on longer steps, where there are some."""
    return steps_words.kinds(outcome.step_kinds) if outcome.step_kinds else ""


def bar(outcome: RecordingReport) -> str:
    """Return the time of a step by cause, drawn as a bar."""
    return bound_words.bar(outcome.bound) if outcome.bound else ""


def cost(finding: Finding, outcome: RecordingReport) -> str:
    """Return the cost of a finding: memory, or the time per step that a fix saves."""
    if finding.cost_bytes and outcome.memory:
        part = share(finding.cost_bytes, outcome.memory.reserved)
        return f"{size(finding.cost_bytes)} ({part})"
    if finding.minor.startswith(COVERED):
        alone = time(finding.saves_alone_ns or 0)
        part = share(finding.saves_alone_ns or 0, outcome.step_ns)
        then = finding.minor.removeprefix("saves ")
        return f"saves {alone}{_per(outcome)} ({part}) alone, {then}"
    if saves_time(finding, outcome):
        return _saving(finding, outcome)
    return _saves_nothing(finding, outcome)


def saves_time(finding: Finding, outcome: RecordingReport) -> bool:
    """Return whether a fix saves an amount of time that is worth a figure."""
    return finding.saves_ns > _NOTHING * outcome.step_ns


def after_others(finding: Finding, outcome: RecordingReport) -> bool:
    """Return whether its saving is what remains once others are fixed."""
    if finding.after:
        return True
    return finding.residual and any(
        not item.residual and item.saves_ns and not item.minor
        for item in outcome.findings
    )


def doubt(finding: Finding) -> str:
    """Return why a finding fails no run, or after which one it saves time."""
    if finding.doubt == "later" and len(finding.after) == 1:
        return f"after {finding.after[0]}"
    return finding.doubt


def _remains(finding: Finding, outcome: RecordingReport) -> str:
    """Return the condition of a residual finding's savings, where there are others."""
    if finding.after:
        few = len(finding.after) == 1
        return f" after {finding.after[0] if few else 'the findings above'}"
    others = after_others(finding, outcome)
    return " once the other findings are fixed" if others else ""


def _per(outcome: RecordingReport) -> str:
    """Return the unit that times are per: a step, or nothing without steps."""
    return "/step" if outcome.bound is None or outcome.bound.stepped else ""


def a_step(outcome: RecordingReport) -> str:
    """Return what follows a time: "a step", or nothing without steps."""
    return " a step" if _per(outcome) else ""


def _saving(finding: Finding, outcome: RecordingReport) -> str:
    part = share(finding.saves_ns, outcome.step_ns)
    text = f"saves {time(finding.saves_ns)}{_per(outcome)} ({part})"
    remains = _remains(finding, outcome)
    if finding.saves_high_ns - finding.saves_low_ns > VAGUE * finding.saves_ns:
        low = time(finding.saves_low_ns) if finding.saves_low_ns else "nothing"
        text += f", {low} to {time(finding.saves_high_ns)}{',' if remains else ''}"
    return text + remains


def _saves_nothing(finding: Finding, outcome: RecordingReport) -> str:
    held, per = max(finding.gpu_ns, finding.host_ns), _per(outcome)
    if not held:
        return ""
    by = "GPU" if finding.gpu_ns >= finding.host_ns else "host"
    # Kernels take as long without the profiler; the host, and waits for it, do not.
    recorded = "" if by == "GPU" and finding.kernel_ns else " as recorded"
    extent = f"{by} {time(held)}{per}{recorded}"
    # Without any time that a fix removes, or a call that does not block any more.
    unfixed = not (finding.kernel_ns or finding.host_ns or finding.calls)
    if (finding.residual or unfixed) and finding.gpu_idle_ns:
        idle = f"{time(finding.gpu_idle_ns)}{per} as recorded"
        return f"GPU idles {idle}, what a fix saves is not known"
    if finding.saves_high_ns > _NOTHING * outcome.step_ns:
        return (
            f"{extent}, but a fix likely saves nothing; up to"
            f" {time(finding.saves_high_ns)} if the host is faster than estimated"
        )
    return f"{extent}, but a fix saves nothing: it is not on the critical path"


def together(outcome: RecordingReport) -> str:
    """Return the step with the worst findings fixed one after the other."""
    if not outcome.together:
        return ""
    *others, last = outcome.together
    by = "GPU-bound" if last.by == "gpu" else "host-bound"
    after = time(last.step_ns)
    if last.step_high_ns - last.step_low_ns > VAGUE * (outcome.step_ns - last.step_ns):
        by = f"{time(last.step_low_ns)} to {time(last.step_high_ns)}; {by}"
    text = (
        f"After fixing {every(last.findings)}: about {after} instead of"
        f" {time(outcome.step_ns)}{a_step(outcome)} ({by})"
    )
    # Only those that change what is printed.
    steps: dict[str, str] = {}
    for other in others[:_MOST_STEPS]:
        steps.setdefault(time(other.step_ns), _first(other.findings))
    steps.pop(after, None)
    parts = ", ".join(f"{which}: {step}" for step, which in steps.items())
    return f"{text}; after {parts}" if parts else text


def idle(outcome: RecordingReport) -> str:
    """Return the part of the GPU's idle time that findings explain, and the rest."""
    explained = outcome.idle
    if explained is None:
        return ""
    codes, idles = ", ".join(explained.residual), time(explained.idle_ns)
    part = share(explained.explained_ns, explained.idle_ns)
    both = share(explained.with_residual_ns, explained.idle_ns)
    more = explained.with_residual_ns > explained.explained_ns
    if not explained.explained_ns and more:
        text = f"{codes} explains {both} of the {idles} in which the GPU idles"
    elif not explained.explained_ns:
        text = f"No finding explains the {idles} in which the GPU idles"
    else:
        text = f"The findings explain {part} of the {idles} in which the GPU idles"
        text += f" ({both} with {codes}, on what remains)" if more else ""
    rest = explained.unexplained
    if rest is None or explained.share > _ALL_EXPLAINED:
        return text
    part = share(rest.ns, explained.idle_ns)
    return f"{text}; largest unexplained, {part}: {bound_words.entry(rest)}"


def gpu(outcome: RecordingReport) -> str:
    """Return the part of the GPU's losses that findings explain, and the rest."""
    account = outcome.gpu
    if account is None or account.above_ns < _MATTERS * account.busy_ns:
        return ""
    text = (
        f"The findings explain {time(account.explained_ns)} of the"
        f" {time(account.above_ns)} in which the GPU does more than its work needs"
    )
    if not account.unexplained or account.share > _ALL_EXPLAINED:
        return text
    rest = account.unexplained[0]
    at = at_function(rest.file, rest.line, rest.function)
    return (
        f"{text}; largest unexplained, {time(rest.ns)}: {rest.part},"
        f" {printable(rest.name or 'unknown')}{f' at {printable(at)}' if at else ''}"
    )


def every(count: int) -> str:
    """Return a number of findings as the object of a sentence: it, both, all 3."""
    if count == 1:
        return "it"
    return "both" if count == _PAIR else f"all {count}"


def _first(count: int) -> str:
    return "the first" if count == 1 else f"the first {count}"


def evidence(entry: Evidence) -> str:
    """Return one line of what a finding was seen by: name, number, note, count.

    >>> evidence(Evidence("kernel", "void gemm(int)", count=4))
    'gemm ×4'
    >>> evidence(Evidence("waits", value=1500, unit="ns", note="each"))
    '1.50 µs each'
    """
    name = short_kernel(entry.name) if entry.label == "kernel" else entry.name
    number = "" if entry.value is None else amount(entry.value, entry.unit)
    often = "" if entry.count is None else f"×{_count(entry.count)}"
    return printable(" ".join(filter(None, (name, number, entry.note, often))))


def _count(count: float) -> str:
    """Write a count: all of a large one, three digits of a small one."""
    return number(count)


def code_lines(frame: CodeFrame) -> list[str]:
    """Return the lines of a code frame with their numbers, the place marked.

    >>> from traceq.model.finding import CodeFrame
    >>> code_lines(CodeFrame(9, ("x = 1", "y = x.item()"), 10))
    ['   9 | x = 1', '> 10 | y = x.item()']
    """
    last = frame.first + len(frame.lines) - 1
    return [
        f"{'>' if number == frame.marked else ' '} {number:>{len(str(last))}} |"
        f" {printable(text.expandtabs(4))}".rstrip()
        for number, text in enumerate(frame.lines, frame.first)
    ]


def weight(finding: Finding) -> str:
    """Return how much a finding counts: minor, in doubt, or its severity."""
    if finding.would_matter_on_gpu:
        return cpu.LEVEL
    return "minor" if finding.minor else finding.doubt or finding.severity.value


def headline(finding: Finding) -> str:
    """Return the problem in at most ten words: the beginning of the message."""
    return _headline(finding.message)


def _headline(message: str) -> str:
    """Return a message without what explains it: after a colon, a comma, because.

    >>> _headline("SDPA falls back 4 times a step because of its attn_mask: bool")
    'SDPA falls back 4 times a step'
    """
    first = _CLAUSE.split(message, maxsplit=1)[0]
    words = first.split()
    if len(words) <= _HEADLINE:
        return " ".join(words)
    return " ".join(words[: _HEADLINE - 1]) + " …"


def skipped(outcome: RecordingReport) -> list[tuple[str, str]]:
    """Return the codes of skipped rules, by the reason."""
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


def verdict(outcome: RecordingReport) -> str:
    """Return one sentence on the whole."""
    would_matter = cpu.would_matter(outcome)
    serious = [
        finding
        for finding in outcome.findings
        if not (finding.minor or finding.would_matter_on_gpu)
    ]
    minor = len(outcome.findings) - len(serious) - len(would_matter)
    if not serious:
        none = "no new findings" if outcome.in_baseline else "no findings"
        text = counted(minor, "minor finding") if minor else none
        if outcome.cpu:
            minors = [counted(minor, "minor finding")] if minor else []
            text = "; ".join([cpu.verdict(outcome), *minors])
        return f"{text}; {rules(outcome)}"
    text, of_these = counted(len(serious), "finding"), len(serious) > 1
    worst = max(serious, key=lambda finding: 0 if finding.after else finding.saves_ns)
    if outcome.bound and worst.saves_ns:
        step = time(outcome.step_ns) + a_step(outcome)
        which = "the worst" if of_these else "which"
        text += f", {which} costs {time(worst.saves_ns)} of {step}"
    largest = max(serious, key=lambda finding: finding.cost_bytes)
    if outcome.memory and largest.cost_bytes:
        which = "the largest" if of_these else "which"
        text += (
            f", {which} costs {size(largest.cost_bytes)} of"
            f" {size(outcome.memory.reserved)} reserved"
        )
    if minor:
        text += f"; {minor} minor"
    if would_matter:
        text += f"; {cpu.verdict(outcome)}"
    return f"{text}; {rules(outcome)}"


def rules(outcome: RecordingReport, *, skipped: bool = True) -> str:
    """Return the numbers of rules that ran, were skipped, crashed or do not apply."""
    text = f"{counted(outcome.ran, 'rule')} ran"
    if outcome.skipped and skipped:
        text += f", {len(outcome.skipped)} skipped"
    if outcome.crashed:
        text += f", {len(outcome.crashed)} crashed"
    if count := len(outcome.not_applicable):
        text += f", {count} {'does' if count == 1 else 'do'} not apply"
    return text


def notes(outcome: RecordingReport) -> list[str]:
    """Return rare slow steps, and further notes."""
    return [*sentences(outcome), *other_notes(outcome)]


def other_notes(outcome: RecordingReport) -> list[str]:
    """Return further notes: crashed rules, hidden findings, replays, missing parts."""
    lines = [
        f"{rule.code} crashed: {printable(rule.error)}; what it looks for may be there"
        for rule in outcome.crashed
    ]
    lines += [
        f"{allowed.finding.code} is allowed"
        f"{at(allowed.finding.place) or ' at no known place'}:"
        f" {printable(allowed.reason)}"
        for allowed in outcome.allowed
    ]
    if count := outcome.below_min_cost:
        they = "it costs" if count == 1 else "they cost"
        lines.append(
            f"{counted(count, 'finding')} hidden: {they} less than min-cost-us"
        )
    if count := outcome.in_baseline:
        they = "it is" if count == 1 else "they are"
        lines.append(
            f"{counted(count, 'finding')} hidden: {they} in the baseline, not grown"
        )
    if outcome.doubtful_step_ns and outcome.bound:
        lines.append(
            bound_words.doubt(outcome.doubtful_step_ns, outcome.bound.recorded_step_ns)
        )
    if outcome.replayed and not _reported_replay(outcome):
        lines.append(replayed_words.sentence(outcome.replayed))
    if outcome.facts:
        lines += [f"the trace is incomplete: {text}" for text in outcome.facts.damage]
        lines += outcome.facts.lacks
    if outcome.memory:
        damage = outcome.memory.damage
        lines += [f"the snapshot is incomplete: {printable(text)}" for text in damage]
    return lines


def _reported_replay(outcome: RecordingReport) -> bool:
    """Return whether a finding says already that replays have no known ops."""
    is_mapped = outcome.replayed and outcome.replayed.mapped
    return not is_mapped and any(
        finding.code == _UNKNOWN_REPLAY for finding in outcome.findings
    )


def unused(report: Report) -> list[str]:
    """Return the entries of the configuration that allow nothing that was found."""
    return [
        f"the configuration allows {printable(entry.rule)} at {printable(entry.where)},"
        " but no finding matches: remove the entry"
        for entry in report.unused
    ]


def short_name(outcome: RecordingReport) -> str:
    """Return the name of the file that was linted."""
    return printable(PurePath(outcome.name).name)

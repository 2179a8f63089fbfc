"""Lint engine: runs the rules, suppresses allowed findings, prices the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from traceq.analysis.base.graph_replays import replayed
from traceq.analysis.patterns.step_kinds import step_kinds
from traceq.analysis.time.cpu_time import cpu_time
from traceq.analysis.time.slow_steps import slow_steps
from traceq.errors import ConfigError
from traceq.linter.by_recorder import by_recorder
from traceq.linter.compiling import fitted, led
from traceq.linter.config import configured
from traceq.linter.explained_gpu import changed_kernels, explained_gpu
from traceq.linter.explained_idle import explained_idle
from traceq.linter.lacks import with_counts
from traceq.linter.library_findings import entry_of, with_libraries
from traceq.linter.need import Need
from traceq.linter.one_edit import with_one_edit
from traceq.linter.plan import with_covered, with_later
from traceq.linter.run import Views, explained, run, unconfirmed, worst_first
from traceq.linter.savings import Savings, in_turn, price, to_fix
from traceq.linter.select import selected
from traceq.linter.snapshot_view import highest
from traceq.linter.suppress import allows_by_code, suppress
from traceq.linter.unrecorded import with_failure, with_levels, with_unrecorded
from traceq.model.lint_report import RecordingReport, Report, Skipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from traceq.analysis.replay.simulation import Change
    from traceq.linter.config import Config
    from traceq.linter.pack import Rules
    from traceq.linter.rule import Rule
    from traceq.linter.run import Ran
    from traceq.linter.view import View
    from traceq.model.finding import Finding
    from traceq.model.lint_report import Allow, CpuTime, ExplainedGpu, ExplainedIdle
    from traceq.model.recording import Recording

# Ranks of a job: fewer are a program of its own.
_JOB = 2


def lint(
    recordings: Iterable[Recording],
    rules: Rules,
    config: Config,
    *,
    brief: bool = False,
) -> Report:
    """Run the selected rules on each recording.

    Where only the findings are wanted it can be brief: without ranges, without what
    they save together and without what bounds the step.
    """
    chosen = selected(rules, config.select, config.ignore)
    if not chosen:
        msg = f"{config.file or 'the command line'} ignores all rules it selects"
        raise ConfigError(msg)
    ready = configured(rules, chosen, config)
    allows = allows_by_code(config.allow, rules)
    outcomes = tuple(
        _lint(recording, ready, allows, config.min_cost_us * 1000, brief=brief)
        for recording in recordings
    )
    return Report.of(outcomes, config.fail_on, config.allow)


def _not_applicable(rule: Rule, recording: Recording) -> str:
    """Return why a rule can find nothing in recordings like this one, or nothing."""
    facts = recording.trace.facts if recording.trace else None
    if Need.JOB in rule.needs and (facts is None or (facts.world_size or 1) < _JOB):
        return "it compares the ranks of a job, and this program has one"
    if Need.NO_GPU in rule.needs and (facts is None or facts.gpu):
        return Need.NO_GPU.value if facts else "there is no trace"
    return ""


def _lint(
    recording: Recording,
    rules: Sequence[Rule],
    allows: Mapping[str, Sequence[Allow]],
    min_cost_ns: float,
    *,
    brief: bool,
) -> RecordingReport:
    reasons = {rule.code: _not_applicable(rule, recording) for rule in rules}
    not_applicable = tuple(
        Skipped(rule.code, rule.name(), reasons[rule.code])
        for rule in rules
        if reasons[rule.code]
    )
    rules = [rule for rule in rules if not reasons[rule.code]]
    views = Views(recording)
    view, peak = views.trace, highest(views.memory)
    savings = Savings(view, brief=brief) if view else None
    ran = with_libraries(_run(rules, views, savings), recording.trace)
    unsuppressed, allowed = suppress(ran.findings, allows, recording)
    by_code = {rule.code: rule for rule in rules}
    findings = unconfirmed(explained(unsuppressed), rules, ran, views)
    findings = fitted(findings, view) if view else findings
    facts = recording.trace.facts if recording.trace else None
    findings = by_recorder(findings, by_code, facts)
    priced, unpriced = price(findings, by_code, savings, peak)
    priced = sorted(priced, key=worst_first)
    if savings and not brief:
        priced = with_covered(priced, by_code, savings)
        priced = with_later(priced, by_code, savings)
    facts = with_counts(facts, ran.skipped) if facts else None
    accounts = _Accounts()
    if facts and view and not brief:
        for completed in (with_failure, with_levels, with_unrecorded):
            facts = completed(facts, view)
    if view and savings and not brief:
        accounts = _accounts(view, savings, ran.findings)
    shown = [
        finding
        for finding in priced
        if _is_shown(finding, by_code[finding.code], min_cost_ns)
    ]
    shown = led(with_one_edit(shown), by_code)
    crashed = (*ran.crashed, *unpriced)
    step_ns = round(savings.step_ns) if savings else 0
    together = tuple(savings.together(to_fix(shown))) if savings and not brief else ()
    return RecordingReport(
        name=recording.name,
        facts=facts,
        bound=view.bound if view else None,
        steps=view.steps if view else 0,
        step_ns=step_ns,
        findings=tuple(in_turn(shown, together, step_ns)),
        together=together,
        below_min_cost=len(priced) - len(shown),
        skipped=tuple(sorted(ran.skipped, key=lambda skipped: skipped.code)),
        crashed=crashed,
        allowed=tuple(allowed),
        ran=len(rules) - len(ran.skipped) - len(crashed),
        memory=peak,
        entry=entry_of(recording.trace) if recording.trace else None,
        replayed=replayed(recording.trace) if recording.trace else None,
        not_applicable=not_applicable,
        step_kinds=step_kinds(recording.trace) if recording.trace else None,
        cpu=accounts.cpu,
        doubtful_step_ns=_doubtful_step(recording),
        slow_steps=slow_steps(recording.slow),
        gpu=accounts.gpu,
        idle=accounts.idle,
    )


class _Accounts(Struct, frozen=True):
    """Accounts of where a step's time goes, as far as the recording allows."""

    cpu: CpuTime | None = None
    gpu: ExplainedGpu | None = None
    idle: ExplainedIdle | None = None


def _accounts(view: View, savings: Savings, findings: Sequence[Finding]) -> _Accounts:
    """Return how much of the step's time the findings explain."""
    warm = view.meets(Need.WARM)
    without_gpu = view.meets(Need.NO_GPU) and view.meets(Need.OPS)
    return _Accounts(
        cpu=cpu_time(view.trace) if without_gpu else None,
        gpu=explained_gpu(view, findings) if warm and view.meets(Need.GPU) else None,
        idle=explained_idle(view, savings, findings) if warm else None,
    )


def _doubtful_step(recording: Recording) -> int | None:
    """Return the measured step that was not used, unless another one was given."""
    if recording.trace is None or recording.step_ns:
        return None
    return recording.trace.doubtful_step_ns


def _run(rules: Sequence[Rule], views: Views, savings: Savings | None) -> Ran:
    """Run the rules; those that report what remains see what the others would fix."""
    ran = run([rule for rule in rules if not rule.residual], views)
    residual = (rule for rule in rules if rule.residual)
    for rule in sorted(residual, key=lambda rule: rule.general):
        fixed: tuple[Change, ...] = ()
        if savings and views.trace and views.trace.bound.by == "host":
            fixed = savings.host_changes(ran.findings)
        named = frozenset[int]().union(*(finding.kernels for finding in ran.findings))
        changed = changed_kernels(ran.findings)
        ran += run([rule], views.after(fixed, named, changed))
    return ran


def _is_shown(finding: Finding, rule: Rule, min_cost_ns: float) -> bool:
    """Return whether a finding costs as much as the user wants to see."""
    unpriced = not rule.priced or finding.would_matter_on_gpu
    return unpriced or finding.cost_bytes > 0 or finding.saves_ns >= min_cost_ns

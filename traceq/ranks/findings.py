"""The rules on jobs: what they find among the ranks, as lint reports it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.analysis.base.assumptions import MEASURED_NOISE
from traceq.linter.config import configured
from traceq.linter.need import Need
from traceq.linter.run import Views, run, worst_first
from traceq.linter.select import selected
from traceq.linter.suppress import allows_by_code, suppress
from traceq.model.finding import Severity
from traceq.model.lint_report import RecordingReport, Report
from traceq.model.recording import Recording

if TYPE_CHECKING:
    from traceq.linter.config import Config
    from traceq.linter.pack import Rules
    from traceq.model.finding import Finding
    from traceq.ranks.analysis import Analysis


def lint_job(name: str, job: Analysis, rules: Rules, config: Config) -> Report:
    """Run the selected rules that are on jobs."""
    chosen = selected(rules, config.select, config.ignore)
    ready = [
        rule for rule in configured(rules, chosen, config) if Need.JOB in rule.needs
    ]
    recording = Recording(name)
    ran = run(ready, Views(recording, job=job))
    allows = allows_by_code(config.allow, rules)
    findings, allowed = suppress(ran.findings, allows, recording)
    step = job.whatifs.took / job.steps
    weighed = [_weighed(finding, step) for finding in findings]
    dear = [
        finding for finding in weighed if finding.saves_ns >= config.min_cost_us * 1000
    ]
    outcome = RecordingReport(
        name=name,
        facts=None,
        bound=None,
        steps=round(job.steps),
        step_ns=round(step),
        findings=tuple(sorted(dear, key=worst_first)),
        together=(),
        below_min_cost=len(weighed) - len(dear),
        skipped=ran.skipped,
        crashed=ran.crashed,
        allowed=tuple(allowed),
        ran=len(ready) - len(ran.skipped) - len(ran.crashed),
    )
    return Report((outcome,), config.fail_on)


def _weighed(finding: Finding, step: float) -> Finding:
    """Make a finding minor that saves less than two runs of a program differ by."""
    if finding.saves_ns >= MEASURED_NOISE * step or finding.severity is Severity.error:
        return finding
    minor = "saves less than two runs of a program differ by"
    return replace(finding, severity=Severity.info, minor=minor)

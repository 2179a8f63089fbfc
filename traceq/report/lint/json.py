"""Findings as JSON, for programs: nanoseconds, and all evidence."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import to_builtins

from traceq import __version__
from traceq.common.safe_text import as_unicode, plain_json
from traceq.report.base.text import short_kernel
from traceq.report.bound import bound_data, entry_data
from traceq.report.lint.cpu import cpu_data
from traceq.report.lint.next_steps import by_finding, next_data

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from traceq.fix.edit import Proposal
    from traceq.model.facts import Facts
    from traceq.model.finding import Finding
    from traceq.model.lint_report import (
        Bound,
        ExplainedGpu,
        ExplainedIdle,
        RecordingReport,
        Report,
        Skipped,
    )
    from traceq.report.lint.next_steps import Proposals

VERSION = 3


_WHOLE_UNITS = ("ns", "bytes")


def render(report: Report, proposals: Proposals = ()) -> str:
    """Return one object in one line; ``version`` says which fields there are.

    In places and evidence, what is not known is left out. Kernels have the short names
    of the text: those of C++ have up to a kilobyte, and ``traceq query`` has them.
    """
    edits = by_finding(report, proposals)
    document = {
        "version": VERSION,
        "traceq": __version__,
        "fail_on": report.fail_on.value,
        "failing": len(report.failing),
        "recordings": [
            _outcome(outcome, of)
            for outcome, of in zip(report.outcomes, edits, strict=True)
        ],
        "unused_allows": [to_builtins(entry) for entry in report.unused],
    }
    return plain_json(orjson.dumps(document).decode()) + "\n"


def _outcome(outcome: RecordingReport, edits: Mapping[str, Proposal]) -> dict[str, Any]:
    def finding(one: Finding) -> dict[str, Any]:
        return _short(finding_data(one)) | next_data(
            one, outcome, edits.get(one.fingerprint)
        )

    return {
        "name": as_unicode(outcome.name),
        "facts": _facts(outcome.facts) if outcome.facts else None,
        "steps": outcome.steps,
        "step_ns": outcome.step_ns,
        "doubtful_step_ns": outcome.doubtful_step_ns,
        "bound": _bound(outcome.bound) if outcome.bound else None,
        "memory": to_builtins(outcome.memory) if outcome.memory else None,
        "findings": [finding(item) for item in outcome.findings],
        "together": [to_builtins(fix) for fix in outcome.together],
        "idle": _idle(outcome.idle) if outcome.idle else None,
        "gpu": _gpu(outcome.gpu) if outcome.gpu else None,
        "below_min_cost": outcome.below_min_cost,
        "in_baseline": outcome.in_baseline,
        "skipped": _by_reason(outcome.skipped),
        "not_applicable": _by_reason(outcome.not_applicable),
        "crashed": [to_builtins(rule) for rule in outcome.crashed],
        "allowed": [
            {"finding": finding(allowed.finding), "reason": allowed.reason}
            for allowed in outcome.allowed
        ],
        "rules_ran": outcome.ran,
        "replayed": to_builtins(outcome.replayed) if outcome.replayed else None,
        "slow_steps": to_builtins(outcome.slow_steps) if outcome.slow_steps else None,
        "step_kinds": to_builtins(outcome.step_kinds) if outcome.step_kinds else None,
        "cpu": cpu_data(outcome.cpu) if outcome.cpu else None,
    }


def _bound(bound: Bound) -> dict[str, Any]:
    """Return the bound without its tables, which ``traceq summary`` has."""
    tables = ("waits", "steps")
    return {key: value for key, value in bound_data(bound).items() if key not in tables}


def _by_reason(rules: Iterable[Skipped]) -> list[dict[str, Any]]:
    """Return the rules that did not run, by the reason."""
    codes: dict[str, list[str]] = {}
    for rule in rules:
        codes.setdefault(rule.reason, []).append(rule.code)
    return [{"reason": reason, "rules": of} for reason, of in codes.items()]


def _short(finding: dict[str, Any]) -> dict[str, Any]:
    """Return a finding without what is not known of its place and its evidence.

    Parts of a nanosecond or a byte are left out as well.
    """
    evidence = [_without_empty(entry) for entry in finding["evidence"]]
    for entry in evidence:
        if entry.get("unit") in _WHOLE_UNITS and "value" in entry:
            entry["value"] = round(entry["value"])
        if entry["label"] == "kernel" and "name" in entry:
            entry["name"] = short_kernel(entry["name"])
    return finding | {"place": _without_empty(finding["place"]), "evidence": evidence}


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, "")}


def _idle(explained: ExplainedIdle) -> dict[str, Any]:
    """Return the explained part of the GPU's idle time, per step."""
    rest = explained.unexplained
    return {
        "idle_ns": round(explained.idle_ns),
        "explained_ns": round(explained.explained_ns),
        "explained_share": round(explained.share, 4),
        "with_residual_ns": round(explained.with_residual_ns),
        "residual": list(explained.residual),
        "largest_unexplained": entry_data(rest) if rest else None,
    }


def _gpu(account: ExplainedGpu) -> dict[str, Any]:
    """Return the explained part of the GPU's losses, per step."""
    return {
        "busy_ns": round(account.busy_ns),
        "floor_ns": round(account.floor_ns),
        "above_floor_ns": round(account.above_ns),
        "explained_ns": round(account.explained_ns),
        "explained_share": round(account.share, 4),
        "largest_unexplained": [
            to_builtins(gpu_entry) for gpu_entry in account.unexplained
        ],
    }


def _facts(facts: Facts) -> dict[str, Any]:
    return asdict(facts) | {"path": as_unicode(facts.path)}


def _alone(finding: Finding) -> int | None:
    """Return what a finding saves without others; none if that is not known."""
    if finding.after:
        return finding.saves_alone_ns
    return None if finding.residual else finding.saves_ns


def finding_data(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain data."""
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "message": finding.message,
        "advice": finding.advice,
        "place": asdict(finding.place),
        "subject": finding.subject,
        "fingerprint": finding.fingerprint,
        "residual": finding.residual,
        "would_matter_on_gpu": finding.would_matter_on_gpu,
        "minor": bool(finding.minor),
        "minor_reason": finding.minor or None,
        "doubt": finding.doubt or None,
        "effort": finding.effort or None,
        "count": finding.count,
        "saves_ns": finding.saves_ns,
        "saves_low_ns": finding.saves_low_ns,
        "saves_high_ns": finding.saves_high_ns,
        "saves_alone_ns": _alone(finding),
        "after": list(finding.after),
        "saves_after_ns": finding.saves_after_ns,
        "kernel_ns": finding.kernel_ns,
        "gpu_idle_ns": finding.gpu_idle_ns,
        "host_ns": finding.host_ns,
        "cost_bytes": finding.cost_bytes,
        "evidence": [asdict(entry) for entry in finding.evidence],
        "data": dict(finding.data),
    }

"""A baseline: findings that were there before are hidden, unless they have grown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct, structs, to_builtins

from traceq.errors import InputError
from traceq.linter.same_finding import extent, growth, matched
from traceq.model.finding import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport, Report

VERSION = 2
_NO_BASELINE = "{file} is not a baseline: write one with --write-baseline"
_LARGEST = 64 << 20


class BaselineEntry(Struct, frozen=True):
    """All findings of one fingerprint in one recording, as a baseline lists them."""

    code: str
    name: str
    fingerprint: str
    where: str
    """File and function, or module, for people who read the baseline."""
    subject: str
    count: int
    saves_ns: int
    cost_bytes: int
    message: str
    """For people too: it is not compared."""


def read_baseline(file: Path) -> list[BaselineEntry]:
    """Return the entries of a baseline: none if the file does not exist yet."""
    if not file.exists():
        return []
    version, entries = _content(file)
    if version != VERSION:
        msg = (
            f"{file} is a baseline of version {version}, not {VERSION}: write it again"
            " with --write-baseline"
        )
        raise InputError(msg)
    try:
        return [BaselineEntry(**entry) for entry in entries]
    except TypeError:
        raise InputError(_NO_BASELINE.format(file=file)) from None


def refuse_other_files(file: Path) -> None:
    """Raise if a file is there that is not a baseline, of whatever version."""
    if file.exists():
        _content(file)


def _content(file: Path) -> tuple[int, list[Any]]:
    """Return a baseline's version and entries."""
    try:
        content: Any = orjson.loads(file.read_bytes()[:_LARGEST])
        version: int = content["version"]
        # Version 1 had a table.
        return version, list(content["known" if version == 1 else "findings"])
    except OSError as error:
        msg = f"{file} cannot be read: {error.strerror or error}"
    except (ValueError, LookupError, TypeError):
        msg = _NO_BASELINE.format(file=file)
    raise InputError(msg) from None


def baseline_of(report: Report) -> list[BaselineEntry]:
    """Return all that is found; of several recordings, the highest figures."""
    entries: dict[str, BaselineEntry] = {}
    for outcome in report.outcomes:
        for _, group in matched((), outcome.findings):
            now = _entry(group)
            before = entries.get(now.fingerprint, now)
            entries[now.fingerprint] = structs.replace(
                now,
                count=max(before.count, now.count),
                saves_ns=max(before.saves_ns, now.saves_ns),
                cost_bytes=max(before.cost_bytes, now.cost_bytes),
            )
    return sorted(
        entries.values(),
        key=lambda baseline_entry: (baseline_entry.code, baseline_entry.fingerprint),
    )


def write_baseline(entries: Iterable[BaselineEntry]) -> bytes:
    """Return a baseline's content."""
    content = {
        "version": VERSION,
        "findings": [to_builtins(entry) for entry in entries],
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n"


def without_listed(report: Report, baseline: Sequence[BaselineEntry]) -> Report:
    """Return a report of what is new or has grown."""
    outcomes = tuple(_without_listed(outcome, baseline) for outcome in report.outcomes)
    return structs.replace(report, outcomes=outcomes)


def _without_listed(
    outcome: RecordingReport, baseline: Sequence[BaselineEntry]
) -> RecordingReport:
    before: dict[str, BaselineEntry | None] = {}
    for old, new in matched(baseline, outcome.findings):
        if new and not old:
            before[new[0].fingerprint] = None
        elif new and growth(extent(old), extent(new), outcome.step_ns) == "grown":
            before[new[0].fingerprint] = old[0]
    shown = tuple(
        _with_past(finding, before[finding.fingerprint])
        for finding in outcome.findings
        if finding.fingerprint in before
    )
    hidden = len(outcome.findings) - len(shown)
    # The combined savings of all findings do not apply to the few that are shown.
    together = () if hidden else outcome.together
    if hidden:
        shown = tuple(replace(finding, saves_after_ns=None) for finding in shown)
    return structs.replace(
        outcome, findings=shown, in_baseline=hidden, together=together
    )


def _with_past(finding: Finding, before: BaselineEntry | None) -> Finding:
    if before is None:
        return finding
    return replace(finding, evidence=(*finding.evidence, _past(before)))


def _past(before: BaselineEntry) -> Evidence:
    """Return the earlier extent of a finding, as evidence."""
    count = before.count if before.count > 1 else None
    if before.cost_bytes:
        return Evidence("before", value=before.cost_bytes, unit="bytes", count=count)
    if before.saves_ns:
        saved = before.saves_ns
        return Evidence("before", value=saved, unit="ns", count=count, note="a step")
    return Evidence("before", "in the baseline", count=count)


def _entry(group: Sequence[Finding]) -> BaselineEntry:
    first, size = group[0], extent(group)
    return BaselineEntry(
        code=first.code,
        name=first.name,
        fingerprint=first.fingerprint,
        where=first.place.key or first.subject,
        subject=first.subject,
        count=size.count,
        saves_ns=size.saves_ns or 0,
        cost_bytes=size.cost_bytes,
        message=first.message,
    )

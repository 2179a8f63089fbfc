"""Findings that were there before: silent, unless they have grown."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from traceq.errors import InputError
from traceq.finding import Evidence
from traceq.units import size, time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from traceq.finding import Finding
    from traceq.lint.engine import Outcome, Report

VERSION = 1
_LARGEST = 64 << 20
# What has grown by more than this is news.
_GROWN = 1.1


@dataclass(frozen=True)
class Known:
    """What all findings of one fingerprint came to, in one recording."""

    code: str
    name: str
    where: str
    """File, function or module, for people who read the baseline."""
    message: str
    count: int
    saves_ns: int
    cost_bytes: int

    def has_grown(self, now: Known) -> bool:
        """Return whether it is a tenth more than it was."""
        # What is not measured in time, or not in bytes, has no cost of that kind.
        return any(
            new > old * _GROWN
            for old, new in (
                (self.count, now.count),
                (self.saves_ns or now.saves_ns, now.saves_ns),
                (self.cost_bytes or now.cost_bytes, now.cost_bytes),
            )
        )

    def sentence(self) -> str:
        """Return what it was, to stand beside what it is."""
        parts = [f"{self.count:,} times a step" if self.count > 1 else ""]
        parts += [f"{time(self.saves_ns)}/step" if self.saves_ns else ""]
        parts += [size(self.cost_bytes) if self.cost_bytes else ""]
        return ", ".join(filter(None, parts)) or "known"


def read_baseline(file: Path) -> dict[str, Known]:
    """Return what a baseline knows, by fingerprint."""
    try:
        content: Any = orjson.loads(file.read_bytes()[:_LARGEST])
        version, entries = content["version"], content["known"]
        known = {mark: Known(**entry) for mark, entry in entries.items()}
    except OSError as error:
        msg = f"{file} cannot be read: {error.strerror or error}"
        raise InputError(msg) from None
    except (ValueError, LookupError, TypeError, AttributeError):
        msg = f"{file} is no baseline: write one with --write-baseline"
        raise InputError(msg) from None
    if version != VERSION:
        msg = f"{file} is of version {version}, not {VERSION}: write it anew"
        raise InputError(msg)
    return known


def baseline_of(report: Report) -> dict[str, Known]:
    """Return what is found, by fingerprint; of several recordings, the most."""
    found: dict[str, Known] = {}
    for outcome in report.outcomes:
        for mark, now in _sums(outcome.findings).items():
            before = found.get(mark, now)
            found[mark] = replace(
                now,
                count=max(before.count, now.count),
                saves_ns=max(before.saves_ns, now.saves_ns),
                cost_bytes=max(before.cost_bytes, now.cost_bytes),
            )
    return found


def write_baseline(known: Mapping[str, Known]) -> bytes:
    """Return a baseline's content, in an order that stays."""
    ordered = sorted(known.items(), key=lambda entry: (entry[1].code, entry[0]))
    content = {
        "version": VERSION,
        "known": {mark: asdict(entry) for mark, entry in ordered},
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n"


def without_known(report: Report, known: Mapping[str, Known]) -> Report:
    """Return a report of what is new or has grown."""
    outcomes = tuple(_without_known(outcome, known) for outcome in report.outcomes)
    return replace(report, outcomes=outcomes)


def _without_known(outcome: Outcome, known: Mapping[str, Known]) -> Outcome:
    now = _sums(outcome.findings)
    silent = {
        mark for mark in now if mark in known and not known[mark].has_grown(now[mark])
    }
    shown = tuple(
        _with_past(one, known.get(one.fingerprint))
        for one in outcome.findings
        if one.fingerprint not in silent
    )
    hidden = len(outcome.findings) - len(shown)
    # What the worst of all save together says nothing of the few that are shown.
    together = () if hidden else outcome.together
    return replace(outcome, findings=shown, in_baseline=hidden, together=together)


def _with_past(finding: Finding, before: Known | None) -> Finding:
    if before is None:
        return finding
    past = Evidence("before", before.sentence())
    return replace(finding, evidence=(*finding.evidence, past))


def _sums(findings: Iterable[Finding]) -> dict[str, Known]:
    sums: dict[str, Known] = {}
    for one in findings:
        place = one.place
        now = Known(
            code=one.code,
            name=one.name,
            where=place.key or one.subject,
            message=one.message,
            count=one.count,
            saves_ns=one.saves_ns,
            cost_bytes=one.cost_bytes,
        )
        before = sums.get(one.fingerprint)
        if before:
            now = replace(
                before,
                count=before.count + now.count,
                saves_ns=before.saves_ns + now.saves_ns,
                cost_bytes=before.cost_bytes + now.cost_bytes,
            )
        sums[one.fingerprint] = now
    return sums

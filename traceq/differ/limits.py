"""Limits of what may change: ``slower:5%,launches:+10,memory:+2%,new-findings``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from traceq.errors import UsageError

if TYPE_CHECKING:
    from traceq.differ.compare import Diff, MemoryChange
    from traceq.differ.jobs import JobDiff
    from traceq.differ.metrics import Metric

NEW_FINDINGS = "new-findings"
_METRICS = {
    "slower": "step",
    "busy": "gpu busy",
    "idle": "idle",
    "launches": "launches",
    "kernels": "kernels",
    "syncs": "syncs",
    "copies": "copies",
    "memory": "memory",
    "waiting": "waiting",
}
NAMES = (*_METRICS, NEW_FINDINGS)
_TIMES = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_SIZES = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_UNITS = {
    **dict.fromkeys(("slower", "busy", "idle", "waiting"), _TIMES),
    "memory": _SIZES,
}
_AMOUNT = re.compile(r"\+?(\d+(?:\.\d+)?)\s*(%|[a-zA-Zµ]*)")
_EXAMPLE = "slower:5%,launches:+10,memory:+2%,new-findings"


@dataclass(frozen=True)
class Limit:
    """One number, and how much it may grow."""

    name: str
    """As it was written, as slower or launches."""
    growth: float
    """The largest growth: a share of what it was, or an amount in its own unit."""
    relative: bool
    text: str
    """The limit as it was written."""


def read_limits(text: str) -> tuple[Limit, ...]:
    """Return the limits that a text states; raise UsageError if it cannot be read."""
    return tuple(_limit(part.strip()) for part in text.split(",") if part.strip())


def _limit(text: str) -> Limit:
    name, colon, amount = (part.strip() for part in text.partition(":"))
    if name == NEW_FINDINGS and not colon:
        return Limit(name, 0.0, relative=False, text=text)
    if name not in _METRICS:
        near = get_close_matches(name, NAMES, n=1)
        hint = f"; did you mean {near[0]}?" if near else f": {', '.join(NAMES)}"
        msg = f"--fail-on has no limit {name!r}{hint}"
        raise UsageError(msg)
    match = _AMOUNT.fullmatch(amount)
    units = _UNITS.get(name, {})
    if not match or (match[2] not in ("%", "") and match[2] not in units):
        examples = "".join(f", 5{unit}" for unit in units) or f", {name}:+10"
        msg = f"--fail-on {text!r}: give an amount, as {name}:5%{examples}"
        raise UsageError(msg)
    value, unit = float(match[1]), match[2]
    if unit == "%":
        return Limit(name, value / 100, relative=True, text=text)
    if units and not unit:
        msg = f"--fail-on {text!r}: give a unit, one of %, {', '.join(units)}"
        raise UsageError(msg)
    return Limit(name, value * units.get(unit, 1.0), relative=False, text=text)


@dataclass(frozen=True)
class Broken:
    """A limit that does not hold."""

    limit: Limit
    metric: Metric | None
    """The number that grew; none for findings."""
    findings: int = 0


def broken(
    diff: Diff | MemoryChange | JobDiff, limits: tuple[Limit, ...]
) -> tuple[Broken, ...]:
    """Return the limits that do not hold; raise UsageError if one cannot be checked."""
    by_name = {metric.name: metric for metric in diff.metrics}
    exceeded = []
    for limit in limits:
        if limit.name == NEW_FINDINGS:
            if diff.findings.crashed:
                msg = (
                    f"--fail-on {NEW_FINDINGS} cannot be checked:"
                    f" {', '.join(diff.findings.crashed)} crashed"
                )
                raise UsageError(msg)
            new = [
                change
                for change in diff.findings.changes
                if change.state == "new" and change.finding.severity.rank > 0
            ]
            if new:
                exceeded.append(Broken(limit, None, len(new)))
            continue
        metric = by_name.get(_METRICS[limit.name])  # type: ignore[call-overload]
        if metric is None or metric.change is None or metric.share is None:
            msg = (
                f"--fail-on {limit.text} cannot be checked: not both recordings have"
                f" {_METRICS[limit.name]}"
            )
            raise UsageError(msg)
        if limit.name == "slower" and diff.verdict == "gpu":
            msg = (
                f"--fail-on {limit.text} cannot be checked: the profiler slowed the"
                " host down; give step times measured without it with --step-ms"
                " BEFORE,AFTER"
            )
            raise UsageError(msg)
        if limit.name == "slower" and diff.verdict != "slower":
            continue
        grown = metric.share if limit.relative else metric.change
        if grown > limit.growth:
            exceeded.append(Broken(limit, metric))
    return tuple(exceeded)

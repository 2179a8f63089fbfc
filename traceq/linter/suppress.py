"""Findings that are intentional: allowed in the configuration, or in the program."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import NOTHING, named_like
from traceq.linter.select import find_rule
from traceq.model.lint_report import Allowed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from traceq.linter.pack import Rules
    from traceq.model.finding import Finding
    from traceq.model.lint_report import Allow
    from traceq.model.recording import Recording
    from traceq.model.trace import Trace

# Codes, beginnings of codes and names, with commas between them; then a reason.
_REGION = r"(?i)^\s*traceq:\s*allow\s+([a-z0-9, -]+?)\s*(?::|$)"
_CODE = r"^[A-Z]{2,5}\d{0,3}$"
_IN_PROGRAM = "allowed in the program"


def allows_by_code(
    allows: Iterable[Allow], rules: Rules
) -> Mapping[str, Sequence[Allow]]:
    """Return the exceptions in the configuration, by the rule's code.

    Raises ``UsageError`` where an entry names no rule.
    """
    by_code: dict[str, list[Allow]] = {}
    for entry in allows:
        by_code.setdefault(find_rule(rules, entry.rule).code, []).append(entry)
    return by_code


def suppress(
    findings: Iterable[Finding],
    allows: Mapping[str, Sequence[Allow]],
    recording: Recording,
) -> tuple[list[Finding], list[Allowed]]:
    """Return the findings that stay, and those that are allowed."""
    trace = recording.trace
    inside = _regions(trace) if trace else NOTHING
    remaining: list[Finding] = []
    allowed: list[Allowed] = []
    for finding in findings:
        entry = _entry_for(finding, allows.get(finding.code, ()), recording.name)
        if entry:
            allowed.append(Allowed(finding, entry.reason, entry))
        elif trace and inside.height and _lies_in(finding, trace, inside):
            allowed.append(Allowed(finding, _IN_PROGRAM))
        else:
            remaining.append(finding)
    return remaining, allowed


def _entry_for(finding: Finding, allows: Iterable[Allow], path: str) -> Allow | None:
    """Return the entry of the configuration that allows a finding."""
    where = (
        finding.place.file or "",
        finding.place.function or "",
        finding.place.module or "",
        finding.subject,
    )
    for entry in allows:
        if any(fnmatch(text, entry.where) for text in where) and fnmatch(
            path, entry.trace
        ):
            return entry
    return None


def _regions(trace: Trace) -> pl.DataFrame:
    """Return the regions that allow rules: ``rule``, ``start`` and ``end``."""
    regions = trace.annotations
    regions = regions.filter(named_like(regions, _REGION) & ~regions["on_gpu"])
    if not regions.height:
        return NOTHING
    named = regions.with_columns(
        codes=pl.col("name").cast(pl.String).str.extract(_REGION, 1)
    )
    return (
        named.drop_nulls("codes")
        .select(
            "thread",
            rule=pl.col("codes").str.to_uppercase().str.split(","),
            start="ts",
            end=pl.col("ts") + pl.col("dur"),
        )
        .explode("rule")
        .with_columns(pl.col("rule").str.strip_chars())
    )


def _lies_in(finding: Finding, trace: Trace, allowed: pl.DataFrame) -> bool:
    """Return whether all that a finding was seen by lies in regions that allow it."""
    rule = pl.col("rule")
    regions = allowed.filter(
        (rule == finding.name.upper())
        | rule.str.contains(_CODE) & pl.lit(finding.code).str.starts_with(rule)
    )
    if not regions.height:
        return False
    by_kernel = trace.kernels.filter(pl.col("id").is_in(list(finding.kernels)))
    ids = {*finding.ops, *by_kernel["op"].drop_nulls().to_list()}
    seen = trace.ops.filter(pl.col("id").is_in(list(ids)))
    # A backward op counts as being where its forward op was.
    seen = trace.ops.filter(
        pl.col("id").is_in(
            seen.select(pl.coalesce("forward", "id")).to_series().implode()
        )
    )
    calls = trace.runtime.filter(pl.col("id").is_in(list(finding.calls)))
    moments = pl.concat([seen["ts"], calls["ts"]]).unique().to_frame("ts")
    inside = moments.join_where(
        regions,
        pl.col("ts") >= pl.col("start"),
        pl.col("ts") < pl.col("end"),
    )
    return moments.height > 0 and inside["ts"].n_unique() == moments.height

"""Findings that are there on purpose, and who said so."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING

import polars as pl

from traceq.lint.select import find_rule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceq.finding import Finding
    from traceq.lint.config import Allow
    from traceq.lint.pack import Rules
    from traceq.trace import Trace

# Codes, beginnings of codes and names, with commas between them; then a reason.
_REGION = r"(?i)^\s*traceq:\s*allow\s+([a-z0-9, -]+?)\s*(?::|$)"
_CODE = r"^[A-Z]{2,5}\d{0,3}$"
IN_PROGRAM = "allowed in the program"


def allowed_by(
    finding: Finding, allows: Iterable[Allow], rules: Rules, path: str
) -> Allow | None:
    """Return the entry of the configuration that allows a finding."""
    where = (
        finding.place.file or "",
        finding.place.function or "",
        finding.place.module or "",
        finding.subject,
    )
    for entry in allows:
        if (
            find_rule(rules, entry.rule).code == finding.code
            and any(fnmatch(text, entry.where) for text in where)
            and fnmatch(path, entry.trace)
        ):
            return entry
    return None


def regions(trace: Trace) -> pl.DataFrame:
    """Return where the program allows rules: ``rule``, ``start`` and ``end``."""
    named = trace.annotations.filter(~pl.col("on_gpu")).with_columns(
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


def lies_in(finding: Finding, trace: Trace, allowed: pl.DataFrame) -> bool:
    """Return whether all that a finding was seen by lies in regions that allow it."""
    rule = pl.col("rule")
    mine = allowed.filter(
        (rule == finding.name.upper())
        | rule.str.contains(_CODE) & pl.lit(finding.code).str.starts_with(rule)
    )
    if not mine.height:
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
        mine,
        pl.col("ts") >= pl.col("start"),
        pl.col("ts") < pl.col("end"),
    )
    return moments.height > 0 and inside["ts"].n_unique() == moments.height

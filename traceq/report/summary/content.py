"""Content of a summary, shared by all formats for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.report.base.content import Content
from traceq.report.summary.facts import facts_of, unrecorded
from traceq.report.summary.gpu_tables import gpu_tables
from traceq.report.summary.optional_tables import critical_tables, host_tables
from traceq.report.summary.serving import serving_table
from traceq.report.summary.tables import kernels, kinds, modules, non_gemm, ops, phases

if TYPE_CHECKING:
    from traceq.analysis.summary import Summary


def content(summary: Summary) -> Content:
    """Return the words for one trace."""
    unit = "ms/step" if summary.steps.height else "ms"
    on_gpu, on_host = (phases, kinds, modules, ops, kernels, non_gemm), (phases, ops)
    parts = on_gpu if summary.facts.gpu else on_host
    tables = [*serving_table(summary.serving), *(part(summary) for part in parts)]
    if summary.path:
        tables = critical_tables(summary.path, unit)
    if summary.host:
        tables = host_tables(summary.host, unit)
    if summary.gpu:
        tables = [*gpu_tables(summary.gpu, unit), *(tables if summary.host else ())]
    return Content(
        title=printable(summary.facts.path),
        warnings=tuple(map(printable, (*summary.facts.damage, *unrecorded(summary)))),
        facts=tuple((label, printable(text)) for label, text in facts_of(summary)),
        tables=tuple(table for table in tables if table.rows),
    )

"""The account of the GPU's busy time: work and losses, by part, line and module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.time.gpu_account import gpu_account as account_of
from traceq.common import units
from traceq.report.page.section import Section
from traceq.report.summary.gpu_tables import gpu_tables

if TYPE_CHECKING:
    from traceq.report.page.section import Subject


def gpu_account(subject: Subject) -> Section | None:
    """Return the tables; none without GPU work or shapes."""
    trace = subject.recording.trace if subject.recording else None
    if trace is None or not trace.facts.gpu or not trace.facts.shapes:
        return None
    account = account_of(trace)
    if not account.busy_total or account.gpu.peak is None:
        return None
    unit = "ms/step" if trace.steps.height else "ms"
    tables = gpu_tables(account, unit)
    return Section(
        key=subject.key("gpu-account"),
        title="Account of the GPU",
        template="tables.html",
        context={
            "facts": [
                ("busy", units.time(account.busy_ns)),
                ("needed", units.time(account.floor_ns)),
                ("lost", units.time(account.above_ns)),
            ],
            "tables": [table for table in tables if table.rows],
            "notes": [
                "Work is what the operations and bytes of an op need at the rate that"
                " kernels of its class reach; all other parts are losses. They add up"
                " to the time in which the GPU is busy."
            ],
        },
    )

"""GPU time above what its work needs that the findings of a step explain.

A kernel's losses are explained if a finding's fix changes the kernel. What is left is
named by its largest entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.model.lint_report import ExplainedGpu, GpuEntry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceq.linter.view import View
    from traceq.model.finding import Finding

MOST_ENTRIES = 5


def changed_kernels(findings: Iterable[Finding]) -> frozenset[int]:
    """Return the kernels that a fix of the findings removes or makes shorter."""
    return frozenset(
        kernel
        for finding in findings
        for fix in finding.fixes
        if fix.kernel_share > 0
        for kernel in fix.kernels
    )


def explained_gpu(view: View, findings: Iterable[Finding]) -> ExplainedGpu | None:
    """Return the explained part of the GPU's losses; none if the host bounds a step."""
    if view.bound.by != "gpu" or not view.trace.facts.shapes:
        return None
    account = view.gpu_account
    if account.gpu.peak is None or account.above_ns <= 0:
        return None
    rest = account.losses(changed_kernels(findings))
    left = float(rest["time"].sum())
    return ExplainedGpu(
        busy_ns=account.busy_ns,
        floor_ns=account.floor_ns,
        above_ns=account.above_ns,
        explained_ns=max(0.0, account.above_ns - left),
        unexplained=tuple(
            GpuEntry(*row)
            for row in rest.head(MOST_ENTRIES)
            .select("part", "name", "time", "kernels", "file", "line", "function")
            .iter_rows()
        ),
    )

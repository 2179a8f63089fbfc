"""A sweep as it is shown, whatever the format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from traceq.analysis.configurations import SweepTable
    from traceq.analysis.sweep_series import Growth, SweepChart
    from traceq.model.sweep_run import SweepRuns


class ShownSweep(Struct, frozen=True):
    """A sweep, its table, and the curves that were asked for."""

    sweep: SweepRuns
    table: SweepTable
    over: str | None
    """Label that numbers are drawn over."""
    by: str | None
    """Label whose values are series."""
    baseline: tuple[str, str] | None
    """Label and value that ratios are to."""
    charts: tuple[SweepChart, ...]
    ratios: tuple[SweepChart, ...]
    growths: tuple[Growth, ...]
    """Findings over the label; none without traces."""
    linted: int
    """Number of configurations whose traces were linted."""

"""Sections of the page of a sweep: sentences, charts, table, findings that grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common import units
from traceq.common.safe_text import printable
from traceq.report.base.columns import Column
from traceq.report.base.content import TextTable
from traceq.report.page.error_bars import plot
from traceq.report.page.section import Section
from traceq.report.sweeps import words
from traceq.report.sweeps.table import text_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.sweep_series import Growth, SweepChart
    from traceq.report.page.charts import Picture
    from traceq.report.page.error_bars import Log
    from traceq.report.sweeps.shown import ShownSweep


def sections(shown: ShownSweep, log: Log = "auto") -> list[Section]:
    """Return the sections on a sweep."""
    over = printable(shown.over or "")
    results = [
        Section(
            key="sweep",
            title=f"Over {over}" if over else "Configurations",
            template="sweep.html",
            context={
                "sentences": words.sentences(shown),
                "pictures": _pictures(shown.charts, log),
                "table": text_table(shown),
            },
        )
    ]
    if shown.baseline and shown.ratios:
        baseline = printable("=".join(shown.baseline))
        results.append(
            Section(
                key="ratios",
                title=f"Relative to {baseline}",
                template="pictures.html",
                context={
                    "lead": "",
                    "notes": (),
                    "pictures": _pictures(shown.ratios, log),
                },
            )
        )
    if shown.growths:
        results.append(
            Section(
                key="findings",
                title=f"Findings over {over}",
                template="tables.html",
                context={
                    "facts": (),
                    "tables": [_growth_table(shown.growths)],
                    "notes": ["Savings of the fixes, by lint, per step."],
                },
            )
        )
    return results


def _pictures(charts: Sequence[SweepChart], log: Log) -> list[tuple[str, Picture]]:
    return [(_title(chart), plot(chart, log)) for chart in charts]


def _title(chart: SweepChart) -> str:
    name = words.title(chart.number)
    fixed = f", {words.labels_text(chart.fixed)}" if chart.fixed else ""
    return f"{name[:1].upper()}{name[1:]}{fixed}"


def _growth_table(growths: Sequence[Growth]) -> TextTable:
    columns = (
        Column("rule"),
        Column("labels"),
        Column("from", number=True),
        Column("to", number=True),
        Column("share of the step", number=True),
        Column("with size"),
    )
    rows = tuple(
        (
            printable(f"{growth.code} {growth.name}"),
            words.labels_text(growth.fixed),
            f"{units.time(growth.saves_ns[0])} at {printable(growth.values[0])}",
            f"{units.time(growth.saves_ns[-1])} at {printable(growth.values[-1])}",
            f"{100 * growth.shares[0]:.1f}% → {100 * growth.shares[-1]:.1f}%",
            ("grows" if growth.grows else "does not grow")
            + (f", {growth.fit.law}" if growth.fit else ""),
        )
        for growth in growths
    )
    return TextTable(columns, rows)

"""Growth of memory with a label of the recordings, by category."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base.scaling_laws import best_fit
from traceq.analysis.sweep import Curve
from traceq.report.memory.content import scaling as scaling_table
from traceq.report.page import charts
from traceq.report.page.curves import Line, Over, plot
from traceq.report.page.section import Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.memory.scaling import Growth

# All at the peak, then the largest categories.
_COLORS = (0, 3, 2, 1, 5)


def scaling(
    label: str,
    growths: Sequence[Growth],
    values: Sequence[float],
    names: Sequence[str],
) -> Section:
    """Return the curves and the table; the names are those of the recordings."""
    lines = []
    for growth, color in zip(growths, _COLORS, strict=False):
        fit = best_fit(values, growth.sizes)
        law = fit if fit and fit.law == growth.law else None
        curve = Curve("memory", growth.category, growth.sizes, law)
        lines.append(Line(growth.category, curve, color))
    picture = plot(Over(label, values, names), lines, charts.axis_size)
    return Section(
        key="scaling",
        title=f"Memory over {label}",
        template="sweep.html",
        context={
            "sentences": [],
            "pictures": [("The most that was live at once", picture)],
            "table": scaling_table(label, growths, values),
        },
    )

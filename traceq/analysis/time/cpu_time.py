"""Time of a step without a GPU: its phases, and the lines that take longest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.callers import callers
from traceq.analysis.base.ownership import named_like
from traceq.analysis.base.steady import in_steps, steady_steps
from traceq.analysis.time.phases import STEP, by_phase
from traceq.common.expressions import END, text
from traceq.common.intervals import disjoint
from traceq.model.finding import Place
from traceq.model.lint_report import CpuLine, CpuTime
from traceq.model.names import DATA_REGION
from traceq.model.schema import PHASES

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace

_MOST_LINES = 5
_DATA = "data"
# Calls are few in a step, and of all the same line asks for a batch.
_SOME = 20


def cpu_time(trace: Trace) -> CpuTime:
    """Return phases and lines of a step as recorded, longest first, per step.

    A line has the time of the operators that it calls, the backward of these included.
    A line that loads data has all of the time of loading.
    """
    steady = steady_steps(trace)
    phases = [
        (phase_time.phase, phase_time.wall_ns)
        for phase_time in by_phase(trace)
        if phase_time.phase != STEP
    ]
    lines = pl.concat([_of_operators(trace, steady), _of_loading(trace, steady)])
    longest = lines.group_by("file", "line", "exact", "function", "name").agg(
        pl.col("ns").sum(), phases=pl.col("phase").unique()
    )
    longest = longest.sort(
        "ns", "file", "line", "name", descending=[True, *[False] * 3]
    )
    return CpuTime(
        phases=tuple(sorted(phases, key=lambda phase: -phase[1])),
        lines=tuple(
            CpuLine(
                place=Place(
                    row["file"],
                    row["line"],
                    row["function"],
                    line_is="call" if row["exact"] else "function",
                ),
                name=row["name"],
                ns=row["ns"] / steady.count,
                phases=tuple(name for name in PHASES if name in row["phases"]),
            )
            for row in longest.head(_MOST_LINES).iter_rows(named=True)
        ),
    )


def _of_operators(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the outermost operators with their lines; without one, their names."""
    ops = in_steps(trace.host_ops, trace, steady)
    outermost = ops["parent"].is_null() & ops["phase"].ne_missing(_DATA)
    known = pl.col("file").is_not_null()
    return ops.filter(outermost).select(
        text("file"),
        pl.coalesce("call_line", "line").cast(pl.Int64).alias("line"),
        text("function"),
        text("phase"),
        exact=pl.col("call_line").is_not_null(),
        name=pl.when(~known).then(text("name")),
        ns="dur",
    )


def _of_loading(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the regions in which batches are loaded, at the line that asks for one."""
    regions = in_steps(trace.annotations, trace, steady)
    loads = named_like(trace.annotations, DATA_REGION)[regions["id"]]
    regions = regions.filter(loads & ~regions["on_gpu"])
    regions = disjoint(regions.with_columns(start="ts", end=END))
    file, line, function, exact = _asking(trace, regions)
    return regions.select(
        file=pl.lit(file, pl.String),
        line=pl.lit(line, pl.Int64),
        function=pl.lit(function, pl.String),
        phase=pl.lit(_DATA),
        exact=pl.lit(exact),
        name=pl.lit(None if file else "DataLoader", pl.String),
        ns=pl.col("end") - pl.col("start"),
    )


def _asking(
    trace: Trace, regions: pl.DataFrame
) -> tuple[str | None, int | None, str | None, bool]:
    """Return file, line and function that ask for a batch, and if the line is exact."""
    result = callers(trace.frames, regions.head(_SOME)).head(1)
    if not result.height:
        return None, None, None, False
    file, line, function = result.select("file", "line", "function").row(0)
    ops = trace.host_ops.filter(
        pl.col("phase") == _DATA,
        text("file") == file,
        text("function") == function,
        pl.col("call_line").is_not_null(),
    )
    if not ops.height:
        return file, line, function, False
    return file, min(ops["call_line"].mode().to_list()), function, True

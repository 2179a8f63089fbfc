"""What the sync rules share: waits grouped by place, and the finding of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.callers import library_calls
from traceq.analysis.base.ownership import same_place
from traceq.lint import Evidence, Fix, Rule, View
from traceq.lint.evidence import module_line
from traceq.words import times

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.lint import Finding

_LIBRARY = ("library", "library_line", "library_function")


@dataclass(frozen=True)
class DeviceSync(Rule):
    """The host waits for the GPU; subclasses differ in what it waits in."""

    def _by_place(
        self, view: View, waits: pl.DataFrame, *causes: str
    ) -> Iterator[Mapping[str, Any]]:
        """Yield a row for each cause and place: one line of the program, or a library.

        The waits are those of traceq.analysis.time.device_syncs, with ``calls``, the
        ids of the runtime calls that wait.
        """
        if not waits.height:
            return
        yield from (
            waits.with_columns(
                library_calls(view.trace.frames, waits),
                lost=pl.min_horizontal("wait", "gap"),
            )
            .group_by(*causes, *same_place(), *_LIBRARY, maintain_order=True)
            .agg(
                pl.col("wait", "gap", "lost").sum(),
                pl.col("calls").explode(),
                pl.col("module").first(),
                waits=pl.len(),
                modules=pl.col("module").cast(pl.String).drop_nulls().unique().sort(),
                ops=pl.col("op").drop_nulls(),
            )
            .iter_rows(named=True)
        )

    def _finding(
        self,
        view: View,
        row: Mapping[str, Any],
        cause: Evidence,
        written: str,
        advice: str,
    ) -> Finding:
        count = row["waits"] / view.steps
        file, line, function = (row[column] for column in _LIBRARY)
        where = f" in {function} ({file}:{line})" if file else ""
        return self.finding(
            f"{written}{where} makes the host wait for the GPU {times(count)} a step",
            subject=cause.name + (f" in {file}:{function}" if file else ""),
            place=view.place(row),
            count=count,
            fix=Fix(syncs=row["calls"]),
            gpu_idle_ns=row["lost"] / view.steps,
            evidence=[
                cause,
                Evidence(
                    "waits", value=row["wait"] / row["waits"], unit="ns", note="each"
                ),
                Evidence(
                    "idle",
                    value=row["gap"] / row["waits"],
                    unit="ns",
                    note="on the GPU after each",
                ),
                *module_line(row["modules"]),
            ],
            data={
                "wait_ns": row["wait"] / view.steps,
                "gap_ns": row["gap"] / view.steps,
            },
            advice=advice,
            ops=row["ops"],
        )

"""Shared code of the sync rules: waits grouped by place, and the finding of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.linter import (
    Evidence,
    Fix,
    Rule,
    View,
    dataclass,
    fill_false,
    module_line,
    often,
    same_place,
)

from ._distributions import at_constructors
from ._known_waits import known_as, known_wait, torch_file
from ._reads import with_uses
from ._removed import host_line, removed_checks
from ._sync_chains import (
    LIBRARY_PLACE,
    chain_advice,
    library_place,
    other_places,
    sync_chains,
)
from ._written import EDITED, OF_CALLER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from traceq.linter import Finding

    from ._known_waits import KnownWait

# What a library waits for, the program can avoid, and only its authors can rewrite.
IN_LIBRARY = (
    "it is in {}: look for an option that turns it off, or call it less often; inside"
    " it, {}"
)
"""Advice on a wait of a library: its name, and what to write instead."""
_OF_OPS = ("called", "gradient", "top", "again", "tests", "computed")
_INNER = ("inner_file", "inner_line", "inner_function")


@dataclass(frozen=True)
class DeviceSync(Rule):
    """The host waits for the GPU; subclasses differ in what it waits in."""

    def _by_place(
        self, view: View, waits: pl.DataFrame, *causes: str
    ) -> Iterator[Mapping[str, Any]]:
        """Yield a row for each cause and place: one line of the program, or a library.

        The waits are those of traceq.analysis.time.device_syncs.
        """
        if not waits.height:
            return
        rows = waits.join(
            sync_chains(view), on="id", how="left", maintain_order="left"
        ).with_columns(
            *callers.library_calls(view.trace.frames, waits),
            *_functions(view, waits),
            lost=pl.when("in_vain").then(0).otherwise(pl.min_horizontal("wait", "gap")),
        )
        rows = at_constructors(_with_known(rows, causes[0]))
        if "method" in causes:
            rows, causes = with_uses(view, rows), (*causes, "use", "asked")
        # What has one switch is one finding, whichever functions of a library wait.
        yield from (
            rows.group_by(
                *causes,
                *same_place(),
                "known",
                *_group_keys(),
                maintain_order=True,
            )
            .agg(
                pl.col(*LIBRARY_PLACE, *_INNER).min(),
                *(pl.col(name) for name in _OF_OPS if name in rows.columns),
                pl.col("wait", "gap", "lost").sum(),
                pl.col("calls").explode().drop_nulls(),
                pl.col("in_vain").sum(),
                pl.col("at").drop_nulls().unique(),
                pl.col("module").first(),
                pl.col("together").any(),
                also=pl.col("places").explode().drop_nulls().unique().sort(),
                waits=pl.len(),
                modules=pl.col("module").cast(pl.String).drop_nulls().unique().sort(),
                ops=pl.col("op").drop_nulls(),
                inner=pl.struct(
                    "thread", start="inner_start", end="inner_end"
                ).unique(),
            )
            .iter_rows(named=True)
        )

    def _finding(
        self,
        view: View,
        row: Mapping[str, Any],
        cause: Evidence,
        words: tuple[str, str],
        removed: Sequence[Fix] = (),
    ) -> Finding:
        """Return the finding of a row.

        The words are how the wait is written, and what to write instead, which removes
        more than the wait. ``of_place`` of a row is the advice on places by name, for
        those that wait instead.
        """
        count = row["waits"] / view.steps
        written, advice = resolved(row, cause.name, words)
        switch = _switch(row)
        if switch:
            removed = removed_checks(view, switch, row)
        file, line, function = library_place(row)
        where = f" in {function} ({file}:{line})" if file and not switch else ""
        return self.finding(
            f"{written}{where} makes the host wait for the GPU {often(count)}",
            subject=cause.name + (f" in {file}:{function}" if file else ""),
            place=view.place(row),
            count=count,
            fix=[Fix(syncs=row["calls"]), *removed],
            gpu_idle_ns=row["lost"] / view.steps,
            evidence=[
                cause,
                Evidence(
                    "waits",
                    value=row["wait"] / row["waits"],
                    unit="ns",
                    note=_recorded(view, row),
                ),
                Evidence(
                    "idle",
                    value=row["gap"] / row["waits"],
                    unit="ns",
                    note="on the GPU after each, as recorded",
                ),
                *(host_line(view, fix) for fix in removed),
                *other_places(row),
                *module_line(row["modules"]),
            ],
            data={
                "wait_ns": row["wait"] / view.steps,
                "gap_ns": row["gap"] / view.steps,
            },
            advice=chain_advice(row, advice, row.get("of_place", {})),
            effort="edit" if switch or (cause.name in EDITED and not file) else None,
            ops=row["ops"],
        )


def resolved(
    row: Mapping[str, Any], cause: str, words: tuple[str, str]
) -> tuple[str, str]:
    """Return how a wait is written and advice on it, by the library that waits."""
    written, advice = words
    if switch := _switch(row):
        return switch.written, switch.advice
    file, _, _ = library_place(row)
    if file and cause not in OF_CALLER:
        advice = IN_LIBRARY.format(file.partition("/")[0], advice)
    return written, advice


def _switch(row: Mapping[str, Any]) -> KnownWait | None:
    return known_as(row["known"]) if row["known"] else None


def _recorded(view: View, row: Mapping[str, Any]) -> str:
    """Return what is known of waits as recorded: what they are for, or for nothing."""
    note = "each, as recorded"
    if 2 * row["in_vain"] > row["waits"]:
        return f"{note}, most of it while the GPU idles, with nothing to wait for"
    if row["wait"] / row["waits"] * view.steps > view.steady.time:
        # It is longer than a step.
        return f"{note}, mostly for work from before the step"
    return note


def _with_known(waits: pl.DataFrame, cause: str) -> pl.DataFrame:
    """Return waits with how what is ``known`` of each is written.

    ``of_torch`` is whether torch's code waits. The function around a wait has no span
    where nothing goes with it.
    """
    by = ["inner_file", "inner_function", cause]
    each = waits.select(by).unique(maintain_order=True)
    rows = each.cast(pl.String).rows()
    waited = [known_wait(*row) for row in rows]
    torch = [torch_file(file) is not None for file, *_ in rows]
    each = each.with_columns(
        known=pl.Series([row and row.written for row in waited], dtype=pl.String),
        of_torch=pl.Series(torch, dtype=pl.Boolean),
        removes=pl.Series([bool(row and row.removes()) for row in waited]),
    )
    spans = ("inner_start", "inner_end")
    return (
        waits.join(each, on=by, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(pl.when("removes").then(span).alias(span) for span in spans)
        .drop("removes")
    )


def _group_keys() -> Iterator[pl.Expr]:
    """Yield the function that the finding names: a library's, or else torch's."""
    unknown, library = pl.col("known").is_null(), pl.col("library")
    torch = unknown & library.is_null() & pl.col("of_torch")
    for columns, named in ((LIBRARY_PLACE, unknown), (_INNER, torch)):
        for column in columns:
            yield pl.when(named).then(column).alias(f"by_{column}")


def _functions(view: View, waits: pl.DataFrame) -> pl.DataFrame:
    """Return the functions that wait; all that print a tensor are as none."""
    calls = callers.innermost_calls(view.trace.frames, waits)
    if "method" not in waits.columns:
        return calls
    printing = fill_false(waits["method"] == "print")
    return calls.select(
        pl.when(~printing).then(column).alias(column) for column in calls.columns
    )


def library_of(via: str | None) -> str:
    """Return the library of a function that the program calls; empty if it is none.

    >>> library_of("add_self_loops (torch_geometric/utils/loop.py:585)")
    'torch_geometric'
    """
    return (via or "").partition(" (")[2].partition("/")[0]

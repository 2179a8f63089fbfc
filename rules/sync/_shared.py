"""Shared code of the sync rules: waits grouped by place, and the finding of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.analysis.time import device_syncs
from traceq.linter import (
    Evidence,
    Fix,
    Rule,
    View,
    at_function,
    dataclass,
    fill_false,
    module_line,
    often,
    same_place,
    text,
)

from ._known_waits import known_wait, torch_file
from ._removed import host_line, removed_checks
from ._written import OF_CALLER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from traceq.linter import Finding

_LIBRARY = ("library", "library_line", "library_function")
_PLACE = pl.format(
    "{} ({}{})",
    text("function"),
    text("file"),
    pl.format(":{}", "line").fill_null(""),
)
_THEIRS = pl.format(
    "{} ({}:{})", text("library_function"), text("library"), "library_line"
)
_MOST_ALSO = 3
# More waits in a row and step are a loop that reads values: it is a finding of its own,
# and what removing it saves is not of the wait before it. As many are read at once.
_MOST_CHAINED = 7
# What a library waits for, the program can avoid, and only its authors can rewrite.
IN_LIBRARY = (
    "it is in {}: look for an option that turns it off, or call it less often; inside"
    " it, {}"
)
"""Advice on a wait of a library: its name, and what to write instead."""
_OF_OPS = ("called", "gradient", "top", "again")
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
            _chains(view), on="id", how="left", maintain_order="left"
        ).with_columns(
            *callers.library_calls(view.trace.frames, waits),
            *_functions(view, waits),
            lost=pl.min_horizontal("wait", "gap"),
        )
        rows = rows.hstack(_known(rows, causes[0]))
        # What has one switch is one finding, whichever functions of a library wait.
        yield from (
            rows.group_by(
                *causes, *same_place(), "known", *_told_apart(), maintain_order=True
            )
            .agg(
                pl.col(*_LIBRARY, *_INNER).min(),
                *(pl.col(one) for one in _OF_OPS if one in waits.columns),
                pl.col("wait", "gap", "lost").sum(),
                pl.col("calls").explode(),
                pl.col("module").first(),
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
        more than the wait.
        """
        count, (written, advice) = row["waits"] / view.steps, words
        switch = row["known"] and known_wait(
            row["inner_file"], row["inner_function"], cause.name
        )
        if switch:
            written, advice = switch.written, switch.advice
            removed = removed_checks(view, switch, row)
        file, line, function = _library(row)
        where = ""
        if file and not switch:
            where = f" in {function} ({file}:{line})"
            if cause.name not in OF_CALLER:
                advice = IN_LIBRARY.format(file.partition("/")[0], advice)
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
                    note="each, as recorded",
                ),
                Evidence(
                    "idle",
                    value=row["gap"] / row["waits"],
                    unit="ns",
                    note="on the GPU after each, as recorded",
                ),
                *(host_line(view, fix) for fix in removed),
                *_also(row),
                *module_line(row["modules"]),
            ],
            data={
                "wait_ns": row["wait"] / view.steps,
                "gap_ns": row["gap"] / view.steps,
            },
            advice=advice,
            ops=row["ops"],
        )


def _known(waits: pl.DataFrame, cause: str) -> pl.DataFrame:
    """Return how what is known of each wait is written, and if torch's code waits."""
    by = ["inner_file", "inner_function", cause]
    each = waits.select(by).unique(maintain_order=True)
    rows = each.cast(pl.String).rows()
    waited = [known_wait(*row) for row in rows]
    written = [one and one.written for one in waited]
    torch = [torch_file(file) is not None for file, *_ in rows]
    each = each.hstack(
        [
            pl.Series("known", written, dtype=pl.String),
            pl.Series("of_torch", torch, dtype=pl.Boolean),
        ]
    )
    matched = waits.join(
        each, on=by, how="left", nulls_equal=True, maintain_order="left"
    )
    return matched.select("known", "of_torch")


def _told_apart() -> Iterator[pl.Expr]:
    """Yield the function that the finding names: a library's, or else torch's."""
    unknown, library = pl.col("known").is_null(), pl.col("library")
    torch = unknown & library.is_null() & pl.col("of_torch")
    for columns, named in ((_LIBRARY, unknown), (_INNER, torch)):
        for one in columns:
            yield pl.when(named).then(one).alias(f"by_{one}")


def _chains(view: View) -> pl.DataFrame:
    """Return for each sync the ``calls`` to remove, and ``places`` that wait instead.

    The longest one of a chain has those of all, if all are in the program's own code
    and no loop of many is among them.
    Where a library waits too, that wait stays and takes the place of the others.
    """
    chains = device_syncs.sync_chains(view.trace)
    chains = chains.hstack(callers.library_calls(view.trace.frames, chains))
    calls = view.trace.runtime[["id", "op"]].join(chains, on="op", how="semi")
    calls = calls.group_by("op").agg(mine=pl.col("id").sort())
    # All calls of an op: a copy and the sync that follows it wait for the same.
    rows = chains.join(calls, on="op", how="left", maintain_order="left").with_columns(
        pl.coalesce("mine", pl.concat_list("id")), place=pl.coalesce(_PLACE, _THEIRS)
    )
    together = rows.group_by("chain").agg(
        chained=pl.col("mine").explode(),
        places=pl.col("place").drop_nulls(),
        all_own=pl.col("library").is_null().all() & (pl.len() <= _MOST_CHAINED),
    )
    return rows.join(together, on="chain", how="left", maintain_order="left").select(
        "id",
        calls=pl.when("longest", "all_own").then("chained").otherwise("mine"),
        places=pl.when("longest").then("places"),
    )


def _also(row: Mapping[str, Any]) -> list[Evidence]:
    """Return the other places that must not wait either."""
    own = at_function(row["file"], row["line"], row["function"])
    return [
        Evidence("also", place, note="waits instead, unless it goes too")
        for place in row["also"]
        if place != own
    ][:_MOST_ALSO]


def _functions(view: View, waits: pl.DataFrame) -> pl.DataFrame:
    """Return the functions that wait; all that print a tensor are as none."""
    calls = callers.innermost_calls(view.trace.frames, waits)
    if "method" not in waits.columns:
        return calls
    printing = fill_false(waits["method"] == "print")
    return calls.select(
        pl.when(~printing).then(one).alias(one) for one in calls.columns
    )


def _library(row: Mapping[str, Any]) -> tuple[str | None, int | None, str | None]:
    """Return the function of a library that waits: its file, line and name."""
    torch = torch_file(row["inner_file"])
    if row["library"] is None and torch:
        return torch, row["inner_line"], row["inner_function"]
    return row["library"], row["library_line"], row["library_function"]


def library_of(via: str | None) -> str:
    """Return the library of a function that the program calls; empty if it is none.

    >>> library_of("add_self_loops (torch_geometric/utils/loop.py:585)")
    'torch_geometric'
    """
    return (via or "").partition(" (")[2].partition("/")[0]

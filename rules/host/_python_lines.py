"""Lines of a function at which its Python takes long, and what is written there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time import host_activity
from traceq.linter import Evidence, View, dataclass, fill_false, gap_causes, gap_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import GapCause, Place

# Lines of a smaller share of a function's time are not named, and one of most of it is
# the place. Heuristic thresholds.
_NAMED, _MOST = 0.1, 0.5
_MOST_NAMED = 3
# Shorter times between two calls may be of anything. Heuristic threshold.
_GAP_NS = 100_000
NOT_SHOWN = "the trace does not show what it does"
_RECORD = "; traceq collect records the lines of the calls around it"
_OF_LIST = (
    "{text} at line {line} reads a list one element after the other: make one array of"
    " it first, torch.from_numpy(np.array({argument}, dtype={dtype})), if its elements"
    " are numbers or arrays of one size"
)
_LOOP = (
    "; there is a loop at line {line}: if it goes over elements, replace it with"
    " operators of torch or NumPy on whole arrays"
)


@dataclass(frozen=True)
class SilentTime:
    """Work of a function that calls nothing for long."""

    does: str
    advice: str
    place: Place
    evidence: tuple[Evidence, ...] = ()


def silent_time(view: View, place: Place, segments: pl.DataFrame) -> SilentTime:
    """Return what the source has where a function calls nothing for long."""
    does = "takes long without calling anything"
    silent = segments.filter(
        pl.col("kind") == host_activity.PYTHON,
        pl.col("end") - pl.col("start") >= _GAP_NS,
        ~fill_false(pl.col("called").str.starts_with("<")),
    )
    around = gap_lines(view.trace, place, silent)
    gaps = (
        silent.select("estimated")
        .hstack(around)
        .group_by("before", "called_before", "after", "called_after")
        .agg(pl.col("estimated").sum())
        .sort(-pl.col("estimated"), "before", "after")
        .rows(named=True)
    )
    least = _NAMED * float(silent["estimated"].sum())
    evidence, found = [], None
    for gap in gaps:
        if gap["estimated"] < least:
            continue
        cause = _only(gap_causes(view.trace, place, gap))
        where = _between(gap["before"], gap["after"])
        if cause and cause.kind == "list":
            name = f"{cause.line}: {cause.text}"
            found = found or SilentTime(
                f"takes long in {cause.text}",
                _OF_LIST.format(**cause._asdict()),
                _at(place, cause.line),
            )
        elif where:
            name = where
            loop = _LOOP.format(line=cause.line) if cause else ""
            found = found or SilentTime(
                does, f"{NOT_SHOWN} between lines {where}{loop}", place
            )
        else:
            continue
        evidence.append(_line(view, name, gap["estimated"]))
    lines = "" if view.trace.frames["call_line"].count() else _RECORD
    found = found or SilentTime(does, NOT_SHOWN + lines, place)
    return replace(found, evidence=tuple(evidence[:_MOST_NAMED]))


def _only(causes: list[GapCause] | None) -> GapCause | None:
    """Return what takes long between two calls, if there is but one such thing."""
    return causes[0] if causes and len(causes) == 1 else None


def _between(before: int | None, after: int | None) -> str:
    """Return the lines of the calls around; empty where one is not known."""
    return f"{before} and {after}" if before and after else ""


def _line(view: View, name: str, estimated: float) -> Evidence:
    value = round(estimated / view.steps)
    return Evidence("line", name, value=value, unit="ns", note="a step, estimated")


def hot_lines(
    view: View, place: Place, segments: pl.DataFrame
) -> tuple[Place, list[Evidence]]:
    """Return the place at the line that takes most of a function, and the longest ones.

    Time between two calls counts as of the second one, whose line it is on mostly.
    """
    lines = gap_lines(view.trace, place, segments)
    table = (
        segments.select("estimated")
        .hstack(
            lines.select(
                line=pl.coalesce("inside", "after", "before"),
                called=pl.when(pl.col("inside").is_not_null()).then("called_before"),
            )
        )
        .group_by("line")
        .agg(
            pl.col("estimated").sum(),
            pl.col("called").drop_nulls().mode().sort().first(),
        )
        .filter(pl.col("estimated") >= _NAMED * float(segments["estimated"].sum()))
        .drop_nulls("line")
        .sort(-pl.col("estimated"), "line")
    )
    if not table.height:
        return place, []
    line, estimated, _ = table.row(0)
    if estimated >= _MOST * float(segments["estimated"].sum()):
        place = _at(place, line)
    return place, list(_longest(view, table))


def _longest(view: View, table: pl.DataFrame) -> Iterator[Evidence]:
    for line, estimated, called in table.head(_MOST_NAMED).iter_rows():
        yield _line(view, f"{line}: {called}" if called else str(line), estimated)


def _at(place: Place, line: int) -> Place:
    if line == place.line:
        return place
    return replace(place, line=line, line_is="call", begins=place.line)

"""Small functions whose Python adds up: by the function that calls them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.analysis.time import host_activity
from traceq.linter import Evidence, at_function, counted, dataclass, listed, text

from ._python_functions import functions, inside, is_at, is_library, silent_calls
from ._python_kinds import ADVICE, WORKS, in_forward, looks_like

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import View

    _Place = tuple[str | None, int | None, str | None]

PLACE = [*host_activity.PLACE]
_MANY = (
    "none of them takes long alone: call them less often, as once for a batch in place"
    " of once for each sample, keep what they make where it does not change, and"
    " replace loops over elements with operators on whole arrays"
)
TIMES = ("estimated", "extra")
_OF_MEMBER = (*PLACE, *TIMES)
# Functions of at least this part of what is reported may be so together, and those
# that take up to this many times as much are small. Heuristic thresholds.
_SMALL, _ALONE = 0.1, 2
# Fewer functions are named one by one. Heuristic threshold.
_SEVERAL = 3
_MOST_NAMED, _MOST_IN_MESSAGE = 4, 3


@dataclass(frozen=True)
class Group:
    """Functions that one function calls, itself or by others."""

    file: str | None
    line: int | None
    function: str | None
    members: pl.DataFrame
    """Rows of them, what takes longest first."""


def by_caller(
    view: View, least: float
) -> tuple[
    list[tuple[Mapping[str, Any], pl.DataFrame]], list[tuple[Group, pl.DataFrame]]
]:
    """Return functions that take long alone, and groups of others that do together.

    Each has the host's time in it.
    """
    rows = _with_comprehensions(view, functions(view, _SMALL * least))
    tables: dict[int, pl.DataFrame] = {}
    alone: list[int] = []
    pool: list[int] = []
    for number, row in enumerate(rows):
        table = pl.concat([inside(view, is_at(part)) for part in row["parts"]])
        table = table.with_columns(text("library"), text("called"))
        works = looks_like(table)[0] == WORKS
        if works and is_library(view, row, table):
            continue
        tables[number] = table
        # What takes long in a way of its own has advice of its own; small functions of
        # a model's forward go where it is compiled, which LCH002 is on.
        of_model = in_forward(table)
        plain = works and not silent_calls(table) and not of_model
        if row["extra"] >= (_ALONE * least if plain else least):
            alone.append(number)
        elif not of_model:
            pool.append(number)
    small = pl.DataFrame(
        [
            {"number": number, **{name: rows[number][name] for name in _OF_MEMBER}}
            for number in pool
        ]
    )
    shared = [
        (group, pl.concat([tables[number] for number in group.members["number"]]))
        for group in _groups(view, small, least)
    ]
    taken = {number for group, _ in shared for number in group.members["number"]}
    alone += [
        number
        for number in pool
        if number not in taken and rows[number]["extra"] >= least
    ]
    return [(rows[number], tables[number]) for number in sorted(alone)], shared


def _with_comprehensions(view: View, rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Return functions with their ``parts``: themselves, and comprehensions in them.

    A generator or a comprehension, which Python calls, is of the function that has it,
    where that is among them.
    """
    every = [{**row, "parts": [row]} for row in rows.iter_rows(named=True)]
    inner = [row for row in every if _is_part(row["function"])]
    if not inner:
        return every
    callers_of, _ = _callers(view)
    by_place = {_place(row): row for row in every}
    for row in inner:
        caller = callers_of.get(_place(row))
        while caller and _is_part(caller[-1]) and caller != callers_of.get(caller):
            caller = callers_of.get(caller)
        around = by_place.get(caller) if caller else None
        if around:
            for name in TIMES:
                around[name] += row[name]
            around["parts"] += row["parts"]
            every.remove(row)
    return sorted(every, key=lambda row: -row["estimated"])


def _is_part(function: str | None) -> bool:
    return (function or "").startswith("<") and function != "<module>"


def _place(row: Mapping[str, Any]) -> _Place:
    file, line, function = (row[name] for name in PLACE)
    return file, line, function


def _groups(view: View, small: pl.DataFrame, least: float) -> list[Group]:
    """Return the functions that share a caller and together take this long.

    The caller is the innermost one of the program's own, and is of the group itself if
    it is small. One that runs for several steps, as the training loop, has to call
    them itself.
    """
    if not small.height or small["extra"].sum() < least:
        return []
    callers_of, calls = _callers(view)
    rows = {_place(row): row for row in small.to_dicts()}
    below: dict[_Place, list[_Place]] = {place: [place] for place in rows}
    shared = []
    for place in _deepest_first(list(rows), callers_of):
        members = below.get(place, [])
        if 2 * calls.get(place, 0) <= view.trace.steps.height:
            members = [member for member in members if callers_of.get(member) == place]
        total = sum(rows[member]["extra"] for member in members)
        if total >= least and len(members) >= _SEVERAL:
            ids = [rows[member]["number"] for member in members]
            chosen = small.filter(pl.col("number").is_in(ids))
            shared.append(Group(*place, members=chosen))
        elif above := callers_of.get(place):
            below.setdefault(above, []).extend(below.get(place, []))
    return shared


def _callers(view: View) -> tuple[dict[_Place, _Place], dict[_Place, int]]:
    """Return who mostly calls each function of the program's own, and its calls."""
    own = view.trace.frames.filter("own")
    own = own.select("thread", "ts", "dur", text("file"), "line", text("function"))
    # Right before a call its caller is the innermost one.
    before = own.select("thread", pl.col("ts") - 1)
    around = callers.innermost(own, before).select(pl.col(PLACE).name.prefix("of_"))
    pairs = own.select(PLACE).hstack(around).group_by(pl.all()).len()
    pairs = pairs.sort("len", *pairs.columns[:-1], descending=[True, *[False] * 6])
    calls = pairs.group_by(PLACE).agg(pl.col("len").sum())
    others = pairs.drop_nulls("of_function").filter(
        pl.struct(PLACE)
        != pl.struct(*(pl.col(f"of_{name}").alias(name) for name in PLACE))
    )
    most = others.unique(PLACE, keep="first", maintain_order=True)
    return (
        {row[:3]: row[3:6] for row in most.rows()},
        {row[:3]: row[3] for row in calls.rows()},
    )


def _deepest_first(
    places: list[_Place], callers_of: Mapping[_Place, _Place]
) -> list[_Place]:
    """Return functions and all that call them, each before its callers."""
    depths: dict[_Place, int] = {}
    for place in places:
        chain, at = [], place
        while at not in chain:
            chain.append(at)
            if at not in callers_of:
                break
            at = callers_of[at]
        for depth, caller in enumerate(reversed(chain)):
            depths[caller] = max(depth, depths.get(caller, 0))
    return sorted(depths, key=lambda place: -depths[place])


def advice_on(table: pl.DataFrame) -> str:
    """Return advice on many small functions, by what they do."""
    return looks_like(table)[1].replace(ADVICE, _MANY)


def member_lines(view: View, group: Group) -> Iterator[Evidence]:
    """Yield the functions that take longest."""
    for row in group.members.head(_MOST_NAMED).iter_rows(named=True):
        name = at_function(row["file"], row["line"], row["function"])
        value = round(row["estimated"] / view.steps)
        yield Evidence("of it", name, value=value, unit="ns", note="a step, estimated")


def message(group: Group) -> str:
    """Return the sentence on a group, with those that take longest."""
    place = (group.file, group.line, group.function)
    members = group.members.select(PLACE).rows()
    count = len(members)
    names = list(dict.fromkeys(str(row[-1]) for row in members if row != place))
    if place in members:
        called = f"{group.function} and {counted(count - 1, 'small function')} that it"
        return f"{called} calls work in Python: {listed(names, _MOST_IN_MESSAGE)}"
    called = f"{counted(count, 'small function')} that {group.function}"
    return f"{called} calls work in Python: {listed(names, _MOST_IN_MESSAGE)}"

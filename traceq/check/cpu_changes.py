"""Differences between the CPU part of a new run and that of a fixture, with places."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.host_calls import KEY, OP, SYNC
from traceq.check.budgets import budget_text
from traceq.check.cpu import BREAK, KINDS, RECOMPILE
from traceq.check.difference import Difference
from traceq.check.spread import FEWEST, tidy
from traceq.common.units import number
from traceq.common.words import at_function, at_line, counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.check.budgets import Budget
    from traceq.check.cpu import CpuPart

_MOST = 3
_EXACT = ("casts", "copies", "syncs")
_ONCE = (BREAK, RECOMPILE)
_LINE = pl.col("line").min()
_CALL_LINES = pl.col("call_lines").explode().drop_nulls().unique().sort()
_NAMES = {BREAK: "graph break", RECOMPILE: "recompilation"}


def cpu_differences(
    before: CpuPart, limits: Mapping[str, Budget], now: CpuPart
) -> Iterator[Difference]:
    """Yield budgets that a run does not keep, and ops that take other dtypes.

    More than allowed fails, less is only reported. Casts, copies and syncs are
    compared one by one where they must be exact: one more of a kind is more, even if
    there is one less of another.
    """
    before, now = _alike(before, now)
    gains = _gains(before, now)
    then, numbers = before.numbers, now.numbers
    for name, limit in limits.items():
        value, kind = numbers[name], KINDS[name]
        rows = gains.filter(pl.col("kind") == kind)
        off = not limit.holds(value)
        as_recorded = not limit.tolerance and limit.value == then[name]
        other = name in _EXACT and as_recorded and _has_more(before, now, kind)
        if off or other:
            worse = other or value > limit.value
            text = f"CPU {name} {value:,.12g}, the budget is {budget_text(name, limit)}"
            more = f": {_explained(rows)}" if worse and rows.height else ""
            yield Difference("budget", text + more, fails=worse)
    tolerance = limits["ops"].tolerance if "ops" in limits else 0.0
    yield from _other_dtypes(before, now, gains, tolerance)


def spent_on(part: CpuPart, name: str) -> list[str]:
    """Return the parts of a number of a run, most first, with their places."""
    by_place = (
        _keyed(part)
        .filter(pl.col("kind") == KINDS[name])
        .group_by("kind", "what", "why", "file", "function")
        .agg(pl.col("count").sum(), _LINE, _CALL_LINES)
        .sort(-pl.col("count"), *("what", "file", "function", "line"))
    )
    rows = by_place.head(_MOST).with_columns(before=0.0).iter_rows(named=True)
    parts = [_spent(row) for row in rows]
    left = by_place.height - len(parts)
    return [*parts, *([f"and {counted(left, 'other')}"] if left else [])]


def _spent(row: dict[str, Any]) -> str:
    if row["kind"] in _ONCE:
        why = f": {row['why']}" if row["why"] else ""
        return f"{_NAMES[row['kind']]}{_place(row)}{why}"
    return f"{number(row['count'])} {row['what']} a step{_place(row)}"


def _alike(before: CpuPart, now: CpuPart) -> tuple[CpuPart, CpuPart]:
    """Leave out what only one of the two could see."""
    if before.stacks == now.stacks:
        return before, now
    hidden = (pl.col("kind") == SYNC) & pl.col("what").str.starts_with("Tensor.")
    return tuple(  # type: ignore[return-value]  # two of them
        replace(cpu_part, calls=cpu_part.calls.filter(~hidden))
        for cpu_part in (before, now)
    )


def _gains(expectation: CpuPart, now: CpuPart) -> pl.DataFrame:
    """Return the calls that increased: ``more``, with their new places."""
    before, after = _keyed(expectation), _keyed(now)
    gains = after.join(
        before.select(*KEY, before="count"), on=KEY, how="left", nulls_equal=True
    )
    more = pl.col("count") - pl.col("before").fill_null(0.0)
    # Lines of the same place are one in what is known.
    return (
        gains.with_columns(more=more)
        .filter(pl.col("more") > 0)
        .sort(-pl.col("more"), *("kind", "what", "file", "function", "line"))
    )


def _keyed(part: CpuPart) -> pl.DataFrame:
    """Return one row for each key; why something was compiled again is no key."""
    recompiled = pl.col("kind") == RECOMPILE
    return (
        part.calls.with_columns(
            why=pl.col("what"),
            what=pl.when(recompiled).then(pl.lit("")).otherwise("what"),
            file=pl.col("file").fill_null(""),
            function=pl.col("function").fill_null(""),
        )
        .group_by(KEY)
        .agg(pl.col("count").sum(), _LINE, _CALL_LINES, pl.col("why").last())
    )


def _has_more(expectation: CpuPart, now: CpuPart, kind: str) -> bool:
    """Return whether there is more of anything of a kind, wherever it is."""

    def sums(part: CpuPart, count: pl.Expr) -> dict[str, float]:
        rows = part.calls.filter(pl.col("kind") == kind)
        return dict(rows.group_by("what").agg(count.sum()).iter_rows())

    _, most = _limits(expectation)
    before = sums(expectation, most)
    after = sums(now, pl.col("count"))
    return any(
        tidy(count) > tidy(before.get(what, 0.0)) for what, count in after.items()
    )


def _limits(before: CpuPart) -> tuple[pl.Expr, pl.Expr]:
    """Return between which counts those of a new run lie, as of the numbers."""
    least, most = (pl.col(limit).fill_null(pl.col("count")) for limit in ("min", "max"))
    beyond = (most - least) / max(FEWEST, before.steps - 1)
    return (least - beyond).clip(lower_bound=0), most + beyond


def _explained(gains: pl.DataFrame) -> str:
    by_place = (
        gains.group_by("kind", "what", "why", "file", "function", maintain_order=True)
        .agg(pl.col("more").sum(), pl.col("before").sum(), _LINE, _CALL_LINES)
        .sort("more", descending=True, maintain_order=True)
    )
    parts = [_gain(row) for row in by_place.head(_MOST).iter_rows(named=True)]
    left = by_place.height - len(parts)
    return "; ".join([*parts, *([f"and {counted(left, 'other')}"] if left else [])])


def _gain(row: dict[str, Any]) -> str:
    kind, more = row["kind"], f"{number(row['more'])} more"
    if kind in _ONCE:
        why = f", {row['why']}" if row["why"] else ""
        return f"{more} {_NAMES[kind]}{_place(row)}{why}"
    return f"{more} {row['what']} a step{_place(row)}"


def _place(row: dict[str, Any]) -> str:
    """Return the place: lines if all of them are new, else the function."""
    file, function, lines = row["file"], row["function"], row["call_lines"]
    if not file:
        return ""
    if lines and (len(lines) == 1 or not row["before"]):
        others = len(lines) - 1
        more = f" and {counted(others, 'other line')}" if others else ""
        return f" at {at_line(file, lines[0])} {function}{more}"
    at_lines = f", at one of the lines {', '.join(map(str, lines))}" if lines else ""
    return f" in {at_function(file, row['line'], function)}{at_lines}"


def _other_dtypes(
    before: CpuPart, now: CpuPart, gains: pl.DataFrame, tolerance: float
) -> Iterator[Difference]:
    """Yield the places at which ops take dtypes that they did not take before."""
    changed = _changed_dtypes(before, now, tolerance)
    rows = gains.filter(pl.col("kind") == OP).join(
        changed, on=("what", "dtypes"), how="inner", maintain_order="left"
    )
    places = rows.group_by("file", "function", maintain_order=True)
    for (file, function), group_rows in places:
        (row,) = group_rows.select(
            pl.col("before").sum(),
            *(_LINE, _CALL_LINES.implode()),
            file=pl.lit(file),
            function=pl.lit(function),
        ).to_dicts()
        parts = [_taken(item) for item in group_rows.head(_MOST).iter_rows(named=True)]
        left = group_rows.height - len(parts)
        text = "; ".join(parts) + (f"; and {counted(left, 'other op')}" if left else "")
        yield Difference("dtype", f"other dtypes on the CPU{_place(row)}: {text}")


def _changed_dtypes(
    expectation: CpuPart, now: CpuPart, tolerance: float
) -> pl.DataFrame:
    """Return ``what`` and ``dtypes`` of known ops that are new, with the old ``was``.

    Where an op took both before, it is changed if calls moved from the one to the
    other: more of this and fewer of that, beyond the tolerance.
    """
    before, after = (_by_dtypes(part) for part in (expectation, now))
    both = after.join(before, on=("what", "dtypes"), how="full", coalesce=True)
    count = pl.col("count").fill_null(0)
    # Within what the known steps have, nothing has changed.
    least, most = (pl.col(f"{limit}_right").fill_null(0) for limit in ("least", "most"))
    change = count - count.clip(least, most)
    total = pl.col("count_right").fill_null(0).sum().over("what")
    lost = -change.clip(upper_bound=0).sum().over("what")
    was = pl.col("dtypes").filter(change < 0).first().over("what")
    is_new = pl.col("count_right").is_null()
    moved = (change > tolerance * total) & (lost > tolerance * total)
    return (
        both.with_columns(was=was, changed=(change > 0) & (is_new | moved), total=total)
        .filter("changed", pl.col("total") > 0)
        .select("what", "dtypes", "was")
    )


def _by_dtypes(part: CpuPart) -> pl.DataFrame:
    ops = part.calls.filter(pl.col("kind") == OP)
    least, most = _limits(part)
    return ops.group_by("what", "dtypes").agg(
        pl.col("count").sum(), least=least.sum(), most=most.sum()
    )


def _taken(row: dict[str, Any]) -> str:
    takes, was = row["dtypes"], row["was"]
    if was is None:
        return f"{row['what']} takes {_listed(takes)}, too"
    if _listed(takes) == _listed(was):
        return f"{row['what']} takes ({', '.join(takes)}) instead of ({', '.join(was)})"
    return f"{row['what']} takes {_listed(takes)} instead of {_listed(was)}"


def _listed(dtypes: list[str]) -> str:
    """Return dtypes in a few words.

    >>> _listed(["float32"] * 3), _listed(["float32", "int64"]), _listed([])
    ('float32', 'float32 and int64', 'no tensor')
    """
    return " and ".join(dict.fromkeys(dtypes)) or "no tensor"

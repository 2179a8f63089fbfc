"""Syncs that follow each other: without the first, the next one waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.analysis.time import device_syncs, serving
from traceq.linter import (
    Evidence,
    View,
    listed,
    text,
)

from ._environment import acted_on
from ._known_waits import torch_file
from ._written import WRITTEN, explicit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


LIBRARY_PLACE = ("library", "library_line", "library_function")
# The line of the call where collect wrote it; else that of the function, which a file's
# own statements do not have.
_LINE = pl.coalesce("call_line", pl.when(text("function") != "<module>").then("line"))
_PLACE = pl.format(
    "{} ({}{})",
    text("function"),
    text("file"),
    pl.format(":{}", _LINE).fill_null(""),
)
_THEIRS = pl.format(
    "{} ({}:{})", text("library_function"), text("library"), "library_line"
)
_MOST_ALSO = 3
# More waits in a row and step are a loop that reads values: it is a finding of its own,
# and what removing it saves is not of the wait before it. As many are read at once.
_MOST_CHAINED = 7


def sync_chains(view: View) -> pl.DataFrame:
    """Return for each sync the ``calls`` to remove, and ``places`` that wait instead.

    The longest one of a chain has those of all, if all are in the program's own code
    and no loop of many is among them; it is ``together`` then, with another one.
    Where a library waits too, or the program has to, as for a token or an action, that
    wait stays and takes the place of the others. To remove one ``in_vain`` saves
    nothing: it has no calls. So are all of a place whose time is mostly of such waits.
    """
    chains = device_syncs.sync_chains(view.trace)
    chains = chains.hstack(callers.library_calls(view.trace.frames, chains))
    calls = view.trace.runtime[["id", "op"]].join(chains, on="op", how="semi")
    calls = calls.group_by("op").agg(mine=pl.col("id").sort())
    # All calls of an op: a copy and the sync that follows it wait for the same.
    rows = chains.join(calls, on="op", how="left", maintain_order="left")
    rows = rows.with_columns(
        view.trace.ops["call_line"][rows["op"]].alias("call_line")
    ).with_columns(
        pl.coalesce("mine", pl.concat_list("id")),
        place=pl.coalesce(_PLACE, _THEIRS),
    )
    length = pl.col("end") - pl.col("ts")
    at = pl.coalesce("place", pl.col("id").cast(pl.String))
    vain = (length * pl.col("in_vain")).sum().over(at)
    rows = rows.with_columns(
        in_vain=pl.col("in_vain") | (2 * vain > length.sum().over(at))
    )
    if not view.trace.frames.height:
        rows = rows.with_columns(place=_calls_of(view, rows))
    none = pl.lit([], pl.List(pl.UInt32))
    rows = rows.with_columns(mine=pl.when("in_vain").then(none).otherwise("mine"))
    rows = rows.with_columns(has_to=_has_to(view, rows))
    chained = rows.group_by("chain").agg(
        chained=pl.col("mine").explode().drop_nulls(),
        places=pl.col("place").drop_nulls(),
        several=pl.col("place").n_unique() > 1,
        all_own=pl.col("library").is_null().all()
        & ~pl.col("has_to").any()
        & (pl.len() <= _MOST_CHAINED),
    )
    all_go = pl.col("longest") & pl.col("all_own") & ~pl.col("in_vain")
    return rows.join(chained, on="chain", how="left", maintain_order="left").select(
        "id",
        at="place",
        calls=pl.when(all_go).then("chained").otherwise("mine"),
        places=pl.when("longest", ~pl.col("in_vain")).then("places"),
        together=all_go & pl.col("several"),
        in_vain="in_vain",
        outside=pl.when(pl.col("op").is_null()).then(text("name")),
    )


def _calls_of(view: View, syncs: pl.DataFrame) -> pl.Series:
    """Return how a program writes each sync, where no stack says who calls."""
    names = view.trace.ops["name"][view.outermost_ops[syncs["op"]]].cast(pl.String)
    each = syncs.select(calls=text("name")).with_columns(op=names)
    kinds = each.unique(maintain_order=True)
    words = [
        WRITTEN.get(op, ("a copy to the host", ""))[0] if op else explicit(call)[0]
        for call, op in kinds.rows()
    ]
    kinds = kinds.with_columns(words=pl.Series(words, dtype=pl.String))
    return each.join(
        kinds, on=["calls", "op"], how="left", nulls_equal=True, maintain_order="left"
    )["words"]


def explicit_places(view: View) -> dict[str, str]:
    """Return advice by place on the syncs that the program makes outside of ops."""
    outside = sync_chains(view).select("at", "outside").drop_nulls().unique()
    return {place: explicit(call)[1] for place, call in outside.rows()}


def _has_to(view: View, syncs: pl.DataFrame) -> pl.Series:
    """Return which syncs stay: for tokens and actions, and of large copies.

    Other rules have these, or none.
    """
    copying = device_syncs.waits_to_copy(view.trace, view.steady).filter("copying")
    others = pl.concat([copying["id"], serving.token_syncs(view.trace)])
    return acted_on(view, syncs) | syncs["id"].is_in(others.implode())


def other_places(row: Mapping[str, Any]) -> list[Evidence]:
    """Return the other places that must not wait either."""
    return [
        Evidence("also", place, note="waits instead, unless it goes too")
        for place in row["also"]
        if place not in row["at"]
    ][:_MOST_ALSO]


def chain_advice(
    row: Mapping[str, Any], advice: str, of_place: Mapping[str, str]
) -> str:
    """Return advice on all waits of a chain, if they go together, from that on one.

    The advice on the waits of other places is by place, as far as it is known.
    """
    others = [place for place in row["also"] if place not in row["at"]]
    if not row["together"] or not others:
        return advice
    by_advice: dict[str | None, list[str]] = {}
    for place in others[:_MOST_ALSO]:
        by_advice.setdefault(of_place.get(place), []).append(place)
    parts = [advice]
    for other, places in by_advice.items():
        verb = "waits" if len(places) == 1 else "wait"
        where = f"at {listed(places)}, which {verb} instead otherwise"
        if other is None:
            parts.append(f"and remove the wait {where}")
            continue
        parts.append(
            f"do the same {where}" if other == advice else f"and {where}: {other}"
        )
    return "; ".join(parts)


def library_place(row: Mapping[str, Any]) -> tuple[str | None, int | None, str | None]:
    """Return the function of a library that waits: its file, line and name."""
    torch = torch_file(row["inner_file"])
    if row["library"] is None and torch:
        return torch, row["inner_line"], row["inner_function"]
    return row["library"], row["library_line"], row["library_function"]

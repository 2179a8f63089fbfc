"""Recorded calls that fill a pause of the host, and what to do about each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time import host_activity
from traceq.linter import text

if TYPE_CHECKING:
    from traceq.linter import View

# Calls that take long for a reason of their own, by what to do about them.
_ADVICE = (
    (
        r"\b(v?fork(pty)?|fork_exec|posix_spawnp?|Popen)\b",
        "it starts a process: start processes once, before the loop, and keep them",
    ),
    (r"\bsleep\b", "do not sleep in the loop"),
    (
        r"\b(read(line|lines|into|all|_record)?|write(lines|_record)?|p?open|flush|save"
        r"|loads?|dumps?|fsync|scandir|listdir|stat|imread|imwrite)\b",
        "it reads or writes: do it in a thread or a process of its own, ahead of the"
        " step that needs it, or in fewer steps",
    ),
    (
        r"\b(acquire|wait(pid)?|e?poll|recv(_into|_bytes)?|connect)\b|function select>",
        "it waits for a thread, a process or the network: see why that takes long",
    ),
)
_OTHER = (
    "see whether the step needs the call: make it once, before the loop, or in fewer"
    " steps"
)
# A pause is the call's own if it is most of the call. Heuristic threshold.
_MOST = 0.5


def filling(view: View, pauses: pl.DataFrame, usual: float) -> pl.Series:
    """Return the built-in call that fills each pause, null where none is known to.

    Python's garbage collector may run in any call: one that mostly takes less than the
    pause divided by ``usual`` is not the reason, unless it is one that waits.
    """
    host, frames = view.host_account.host, view.trace.frames
    at = pauses["at"]
    # Of backward one call holds all of it.
    is_call = host.are("frames")[at] & (pauses["kind"] != host_activity.ENGINE)
    rows = pl.DataFrame({"row": host.tree["row"][at], "is_call": is_call})
    frame = rows.select(pl.when("is_call").then("row")).to_series()
    calls = pauses.select("recorded", call=text("called")).with_columns(
        dur=frames["dur"][frame]
    )
    names = calls["call"].drop_nulls().unique().to_list()
    mostly = (
        frames.select(call=text("name"), mostly="dur")
        .filter(pl.col("call").is_in(names))
        .group_by("call")
        .agg(pl.col("mostly").median())
    )
    waits = pl.col("call").str.contains("|".join(names for names, _ in _ADVICE))
    fills = (
        pl.col("call").str.starts_with("<built-in")
        & (pl.col("recorded") >= _MOST * pl.col("dur"))
        & (waits | (usual * pl.col("mostly") >= pl.col("recorded")))
    )
    return (
        calls.join(mostly, on="call", how="left", maintain_order="left")
        .select(pl.when(fills).then("call"))
        .to_series()
    )


def plain(call: str) -> str:
    """Return the name of a built-in call, without what it is a method of."""
    return re.sub(r"^<built-in (?:function|method) (\S+?)(?: of .*)?>$", r"\1", call)


def advice(call: str) -> str:
    """Return what to do about a call that stops the host."""
    return next((one for names, one in _ADVICE if re.search(names, call)), _OTHER)

"""Calls of planned ops, with the iterations and the sizes of their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from ._shared import settled

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from traceq.linter import (
        View,
    )

MATMUL, CONVOLUTION, ATTENTION = "matmul", "convolution", "attention"
_OTHER = "operator"
# What the library does for a new shape, by kind of op.
KINDS = (
    (ATTENTION, r"_cudnn_attention", "cuDNN builds a plan for attention"),
    (CONVOLUTION, r"conv", "cuDNN chooses an algorithm for a convolution"),
    ("FFT", r"_fft_", "cuFFT builds a plan for an FFT"),
    (MATMUL, r"mm$", "cuBLAS chooses an algorithm for a matmul"),
    (_OTHER, r"", "an operator prepares itself"),
)
_EMBEDS = ("aten::embedding",)
COMPILED = r"^(Torch-Compiled Region|CompiledFunction)"
SUMS = ("excess", "own", "idle", "loading", "passing")
# A call on inputs that are new, which takes far longer than the usual.
SLOW = pl.col("new") & (pl.col("excess") > 0)
# New shapes must be slow this many times as often as known ones.
_CLEARLY = 3


def settled_calls(view: View, calls: pl.DataFrame) -> pl.DataFrame:
    """Return calls of ops that are planned, and what they took.

    Those that compile, capture or run in a step that does are left to other rules.
    """
    rows = settled(view, calls).with_columns(kind=_kind(), slow=SLOW).sort("ts")
    passes = _passes(view)
    return rows.with_columns(
        iteration=_iterations(view, rows),
        loading=_loading(passes),
        passing=pl.when(passes).then(_loading(passes)).otherwise(0),
    )


def _loading(passes: pl.Expr) -> pl.Expr:
    """Return what of each slow call is the loading of a kernel's code.

    That is what it takes beyond a search. Where none is known, all of what passes by
    itself is loading, and nothing of what comes back.
    """
    slow, loads, own = pl.col("slow"), pl.col("loads"), pl.col("own")
    search = own.filter(slow & ~loads).median().over("name")
    beyond = pl.coalesce(own - search, pl.when(passes).then(own - pl.col("usual")))
    return pl.when(slow & loads).then(beyond.clip(lower_bound=0)).fill_null(0)


def _passes(view: View) -> pl.Expr:
    """Return whether the loading of an op's slow calls passes by itself.

    Where few of the slow calls load, it is the searches that choose other kernels.
    Where most do, they are slow for it alone, and are not once all kernels have been
    used; but what is loaded again for a kernel that ran before is part of a plan, as
    cuDNN's for attention, and comes back with each.
    """
    ran = view.trace.kernels.drop_nulls("op").sort("ts").unique("name", keep="first")
    loads = pl.col("slow") & pl.col("loads")
    again = loads & ~pl.col("op").is_in(ran["op"].implode())
    mostly = 2 * loads.sum() > pl.col("slow").sum()
    return (mostly & (2 * again.sum() < loads.sum())).over("name")


def _iterations(view: View, calls: pl.DataFrame) -> pl.Series:
    """Return in which iteration of its step each call is.

    A module begins its next one where it is called on other inputs than before. Without
    modules it is each embedding of tokens.
    """
    layer = ("step", "thread", "name", "module", "line")
    other = pl.col("inputs").ne_missing(pl.col("inputs").shift(1)).over(layer)
    by_module = other.cast(pl.Int64).cum_sum().over(layer)
    embeds = view.trace.host_ops.filter(
        view.ops_named(_EMBEDS).gather(view.trace.host_ops["id"])
    )["ts"].sort()
    by_tokens = embeds.search_sorted(calls["ts"]).cast(pl.Int64)
    return calls.select(
        pl.when(pl.col("module").is_not_null()).then(by_module).otherwise(by_tokens)
    ).to_series()


def _kind() -> pl.Expr:
    return pl.coalesce(
        pl.when(pl.col("name").str.contains(pattern)).then(pl.lit(kind))
        for kind, pattern, _ in KINDS
    )


def calls_at_place(calls: pl.DataFrame, row: Mapping[str, Any]) -> pl.DataFrame:
    """Return all calls of a group's ops at its place, whatever they took."""
    same = (pl.col(key).eq_missing(row[key]) for key in ("kind", "file", "line"))
    return calls.filter(*same, pl.col("name").is_in(row["names"]))


def is_of_shapes(calls: pl.DataFrame) -> bool:
    """Return whether it is new shapes that are slow: known ones hardly ever are."""
    rates = calls.select(
        new=pl.col("slow").filter("new").mean(),
        again=(pl.col("excess") > 0).filter(~pl.col("new")).mean().fill_null(0),
    )
    new, again = rates.row(0)
    return bool(new > _CLEARLY * again)

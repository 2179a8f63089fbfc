"""Matching of the kernels of a replayed CUDA graph with captured calls."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import known, text

if TYPE_CHECKING:
    from traceq.graph.host import Frames

# Strangers' traces may have any number of graphs and captures; programs have dozens.
_MOST_GRAPHS = 2_000
_MOST_CAPTURES = 1_000
_TRITON = "triton_"
_ATEN = r"^aten::"
# Kernels of these kinds are launched by ATen's ops of these names alone.
_OPS_OF_KIND = {
    "gemm": r"mm|mv|matmul|linear|linalg|conv|attention|dot|rnn|lstm|gru|einsum|cdist",
    "attention": r"attention|flash|sdpa|fmha",
    "conv": r"conv",
}
# Ops, and kinds of kernels that they do not launch.
_NEVER = {
    r"^aten::(add|sub|mul|div|neg|exp|pow|sqrt|rsqrt|relu|gelu|silu|tanh|sigmoid|copy"
    r"|fill|zero|cos|sin)_?$": (
        "reduction",
        "norm",
        "softmax",
        "sort",
        "pooling",
        "routing",
    ),
    r"^aten::b?mm$": (
        *("norm", "softmax", "elementwise", "copy", "embedding"),
        *("sort", "pooling", "routing"),
    ),
}
_PAIRS = {
    "kernel": pl.UInt32(),
    "launch": pl.UInt32(),
    "window": pl.UInt32(),
    "call": pl.UInt32(),
    "op": pl.UInt32(),
    "certain": pl.Boolean(),
    "shaped": pl.Boolean(),
}


def as_text(grid: str) -> pl.Expr:
    """Return the thread blocks of kernels as text, which can be compared."""
    return pl.col(grid).cast(pl.List(pl.String)).list.join(",")


def replayed_kernels(tables: Frames) -> pl.DataFrame:
    """Return the GPU work of replays in the order of the graph, ``at`` in ``launch``.

    That is the order of its nodes where the trace numbers them (``ordered``), else of
    time. Replays of one ``graph`` run the same kernels.
    """
    launches = tables["runtime"].filter(pl.col("call") == "graph launch")
    ordered = pl.col("graph_node").is_not_null().all().over("launch")
    order = pl.when(ordered).then("graph_node").otherwise("ts")
    kernels = (
        tables["kernels"]
        .join(
            launches.select("ts", "step", launch="id"),
            on="launch",
            suffix="_of_launch",
            maintain_order="left",
        )
        .with_columns(ordered=ordered)
        .sort("launch", order, "id")
        .select(
            "launch",
            "kind",
            "ordered",
            text("activity"),
            text("name"),
            kernel="id",
            grid=as_text("grid"),
            launched="ts_of_launch",
            step="step_of_launch",
            at=pl.int_range(pl.len()).over("launch"),
            count=pl.len().over("launch"),
        )
    )
    graph = pl.struct("name", "grid", "at", "ordered").hash().sum().over("launch")
    return kernels.with_columns(graph=graph)


def matched(
    kernels: pl.DataFrame, calls: pl.DataFrame, windows: pl.DataFrame
) -> pl.DataFrame:
    """Return the kernels whose captured op is known.

    ``kernel``, ``launch``, ``window``, ``call``, ``op``, and whether that is
    ``certain``: else it may be another call of the same op, and if it is not
    ``shaped`` on other inputs.
    """
    calls = calls.with_columns(count=pl.len().over("window"))
    sizes = calls.partition_by("count", as_dict=True)
    graphs = kernels.join(calls, on="count", how="semi").partition_by(
        "count", "graph", as_dict=True, maintain_order=True
    )
    pairs = [
        _of_graph(replays, _latest(sizes[count,]), windows)
        for (count, _), replays in islice(graphs.items(), _MOST_GRAPHS)
    ]
    return pl.concat([pl.DataFrame(schema=_PAIRS), *pairs])


def _latest(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of the latest captures, where there are very many."""
    windows = calls["window"].unique(maintain_order=True).tail(_MOST_CAPTURES)
    return calls.filter(pl.col("window").is_in(windows.implode())).drop("count")


def _of_graph(
    kernels: pl.DataFrame, calls: pl.DataFrame, windows: pl.DataFrame
) -> pl.DataFrame:
    """Match each replay of one graph with a capture that fits it."""
    table = kernels.filter(pl.col("launch") == pl.col("launch").min())
    pairs = _fitting(_paired(table, calls))
    if pairs.is_empty():
        return pl.DataFrame(schema=_PAIRS)
    fitting = windows.join(pairs.select("window").unique(), on="window", how="semi")
    captures = _by_launch(kernels, fitting)
    several = calls.join(fitting, on="window", how="semi").group_by("at")
    agreed = several.agg(
        same_op=pl.col("op_name").n_unique() == 1,
        same=pl.col("content").n_unique() == 1,
        same_inputs=pl.col("inputs").n_unique() == 1,
    )
    alone = pl.col("captures") == 1
    return (
        kernels.select("kernel", "launch", "at")
        .join(captures, on="launch")
        .join(pairs, on=["window", "at"])
        .join(agreed, left_on="call_at", right_on="at")
        .filter(alone | pl.col("same_op"))
        .with_columns(
            certain=pl.col("certain") & (alone | pl.col("same")),
            shaped=alone | pl.col("same_inputs"),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in _PAIRS.items())
    )


def _by_launch(kernels: pl.DataFrame, fitting: pl.DataFrame) -> pl.DataFrame:
    """Return the fitting capture of each replay, and the number of candidates.

    Where a step replays several graphs alike, they are captured in the same order;
    of captures again the latest ones count, and none of after the replay.
    """
    before = fitting.with_columns(
        since=pl.when(pl.col("recorded") == 0).then("end")
    ).sort("since", "recorded", "start", nulls_last=False)
    launches = (
        kernels.select("launch", "launched", "step").unique().sort("launched", "launch")
    )
    ends = before["since"].drop_nulls()
    known_before = ends.search_sorted(launches["launched"], side="right")
    step = pl.col("step").is_not_null()
    return (
        launches.with_columns(
            captures=known_before.cast(pl.Int64) + before["since"].null_count(),
            replays=pl.when(step).then(pl.len().over("step")).otherwise(1),
            nth=pl.when(step).then(pl.int_range(pl.len()).over("step")).otherwise(0),
        )
        .filter(pl.col("captures") > 0)
        .with_columns(
            chosen=pl.when(pl.col("replays") <= pl.col("captures"))
            .then(pl.col("captures") - pl.col("replays") + pl.col("nth"))
            .otherwise(pl.col("captures") - 1)
        )
        .select("launch", "captures", window=pl.lit(before["window"]).gather("chosen"))
    )


def _paired(kernels: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Pair the kernels of a replay with the calls of captures, each by its ``window``.

    Where no branches run at the same time, and where the nodes are numbered, the n-th
    kernel is of the n-th call. Between, kernels are those of their name in their order.
    """
    side_by_side = pl.col("forked") & ~pl.lit(kernels["ordered"].all())
    calls = calls.with_columns(forked=side_by_side)
    ran = kernels.join(calls.select("window", "at", "forked"), on="at")
    exact = calls.filter("forked").select("window", name="exact", named=True).unique()
    ran = ran.join(exact, on=["window", "name"], how="left")
    named = pl.coalesce(
        pl.when(pl.col("activity") != "kernel").then("activity"),
        pl.when(pl.col("named")).then("name"),
        pl.lit(""),
    )
    called = pl.coalesce(
        pl.when(pl.col("activity") != "kernel").then("activity"), "exact", pl.lit("")
    )
    keys = ["window", "forked", "among", "nth"]
    return (
        ran.with_columns(_among(named))
        .with_columns(_NTH)
        .join(
            calls.with_columns(_among(called)).with_columns(_NTH, call_at="at"),
            on=keys,
            how="full",
            coalesce=True,
            suffix="_of_call",
        )
    )


def _among(name: pl.Expr) -> pl.Expr:
    return pl.when("forked").then(name).otherwise(pl.lit("")).alias("among")


_NTH = (
    pl.when("forked")
    .then(pl.int_range(pl.len()).over("window", "forked", "among"))
    .otherwise("at")
    .alias("nth")
)


def _fitting(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs of the captures that fit, less those that are in doubt."""
    wrong = _wrong()
    missing = pl.col("kernel").is_null() | pl.col("call").is_null()
    unfit = (missing | (wrong & ~pl.col("forked"))).any().over("window")
    pairs = pairs.filter(~unfit).with_columns(wrong=wrong)
    # Between branches, kernels of one name that fall on one op alone are of that op.
    alike = (
        (pl.col("op_name").n_unique() == 1) & ~pl.col("wrong").any() & (pl.len() > 1)
    ).over("window", "name")
    by_name = pl.col("forked") & (pl.col("among") != "")
    single = by_name & (pl.len().over("window", "forked", "among") == 1)
    return pairs.filter(~pl.col("wrong"), ~pl.col("forked") | by_name | alike).select(
        "window", "at", "call", "call_at", "op", certain=~pl.col("forked") | single
    )


def _wrong() -> pl.Expr:
    """Return whether a kernel cannot come from the captured call of its pair."""
    name, op, kind = pl.col("name"), pl.col("op_name"), text("kind")
    aten = op.str.contains(_ATEN)
    return pl.any_horizontal(
        pl.col("activity") != pl.col("activity_of_call"),
        known(pl.col("exact") != name),
        known(pl.col("grid_of_call") != pl.col("grid")),
        known(name.str.starts_with(_TRITON) & (op != name)),
        *(
            known((kind == one) & aten & ~op.str.contains(ops))
            for one, ops in _OPS_OF_KIND.items()
        ),
        *(
            known(op.str.contains(ops) & kind.is_in(kinds))
            for ops, kinds in _NEVER.items()
        ),
    )

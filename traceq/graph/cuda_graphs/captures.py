"""Ops of the kernels in replayed CUDA graphs, from their captures.

A replay is one call on the host, so its kernels belong to no op. While the graph was
captured, each op made the calls that launch, copy and set, and nothing ran. The kernels
of a replay are those calls, in their order unless the graph has branches. If the
capture was recorded, in this trace or in another one, every replay gets a copy of the
captured ops, and its kernels get theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import END, asof, known, text
from traceq.graph.cuda_graphs.match import as_text, matched, replayed_kernels
from traceq.graph.cuda_graphs.replayed_ops import with_copies
from traceq.graph.nesting import INDEX, nearest
from traceq.model import schema
from traceq.model.names import BEGIN_CAPTURE, END_CAPTURE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.graph.host import Frames

_ACTIVITY = {"launch": "kernel", "copy": "memcpy", "set": "memset"}
# A graph's call of a host function is no work of the GPU.
_HOST_NODE = r"LaunchHostFunc"
# Work on one stream of a capture waits for work on another: the graph has branches.
_FORK = r"StreamWaitEvent"
_TRITON = "triton_"
_PLACE = ("file", "line", "function", "call_line")


def mapped(tables: Frames, others: Sequence[Frames] = ()) -> dict[str, pl.DataFrame]:
    """Return the tables that change when replayed kernels get their captured ops.

    ``others`` are tables of traces in which graphs were captured, in this order. A
    kernel whose op is in doubt stays as it is. What changes is ``ops``, ``kernels``,
    ``threads``, ``inputs`` and ``fused``; nothing does where no capture fits.
    """
    kernels = replayed_kernels(tables)
    if kernels.is_empty() and _windows(tables["runtime"], 0).is_empty():
        return {}
    recorded = [tables, *others]
    windows = pl.concat(
        _windows(one["runtime"], at) for at, one in enumerate(recorded)
    ).with_columns(window=pl.int_range(pl.len(), dtype=INDEX))
    names = kernels["name"].unique()
    calls = pl.concat(
        _with_own_replays(one, captured_calls, windows) if at else captured_calls
        for at, one in enumerate(recorded)
        for captured_calls in [
            _calls(one, windows.filter(pl.col("recorded") == at), names)
        ]
    )
    pairs = matched(kernels, calls, windows)
    launching = calls.select("window", "thread", capturing=True).unique()
    captured = [
        one["ops"]
        .with_columns(window=_in_window(one["ops"], windows.filter(here)))
        # Other threads may do something else meanwhile.
        .join(launching, on=["window", "thread"], how="left", maintain_order="left")
        for at, one in enumerate(recorded)
        for here in [pl.col("recorded") == at]
    ]
    own = known(captured[0]["capturing"])
    marked = {**tables, "ops": tables["ops"].with_columns(captured=own)}
    if pairs.is_empty():
        return {"ops": marked["ops"]}
    used = windows.join(pairs, on="window", how="semi").drop("thread")
    captured = [
        ops.filter("capturing").join(used, on="window", maintain_order="left")
        for ops in captured
    ]
    return with_copies([marked, *others], pl.concat(captured), pairs)


def replayed_regions(tables: Frames) -> pl.DataFrame:
    """Return the regions around replays as if they were around the copied ops.

    In a recording of a capture the region is missing that the capture is inside of.
    """
    launches = tables["runtime"].select("thread", launch="id", at="ts")
    regions = tables["annotations"].filter(~pl.col("on_gpu"))
    around = asof(
        launches.join(tables["kernels"].filter("certain"), on="launch", how="semi"),
        regions.select("thread", "ts", region="id", name="name", end=END),
        "at",
        "ts",
        by="thread",
    ).filter(pl.col("at") < pl.col("end"))
    ops = tables["ops"]
    roots = nearest(ops["parent"], ops["parent"].is_null())
    spans = ops.select("ts", "thread", root="id", until=END)
    rows = (
        tables["kernels"]
        .select("launch", "certain", root=roots[tables["kernels"]["op"]])
        .filter("certain")
        .join(around.select("launch", "region", "name"), on="launch")
        .join(spans, on="root")
        .group_by("region", "name", "thread", maintain_order=True)
        .agg(pl.col("ts").min(), dur=pl.col("until").max() - pl.col("ts").min())
        .with_columns(id="region", on_gpu=pl.lit(value=False), step=None)
    )
    return schema.TABLES["annotations"].shaped(rows)


def _windows(runtime: pl.DataFrame, recorded: int) -> pl.DataFrame:
    """Return the captures of each thread: ``thread``, ``start`` and ``end``."""
    name = text("name")
    marks = runtime.filter(name.str.contains(f"{BEGIN_CAPTURE}|{END_CAPTURE}"))
    begins = name.str.contains(BEGIN_CAPTURE)
    return (
        marks.sort("thread", "ts")
        .with_columns(
            begins=begins,
            end=pl.col("ts").shift(-1).over("thread"),
            ends=~begins.shift(-1).over("thread"),
        )
        .filter("begins", "ends")
        .sort("ts")
        .select("thread", start=END, end="end", recorded=pl.lit(recorded))
    )


def _calls(tables: Frames, windows: pl.DataFrame, names: pl.Series) -> pl.DataFrame:
    """Return the captured calls that put work into a graph, by ``window`` and ``at``.

    ``exact`` is the kernel's name where the call or its op tells, ``forked`` whether
    other branches of the graph may run at the same time. Calls of the same ``content``
    are of the same op on the same inputs in the same line.
    """
    runtime, ops = tables["runtime"], tables["ops"]
    forks = pl.col("ts").filter(text("name").str.contains(_FORK))
    works = pl.col("call").cast(pl.String).is_in(list(_ACTIVITY))
    rows = (
        runtime.with_columns(window=_in_window(runtime, windows))
        .filter(pl.col("window").is_not_null())
        .with_columns(first=forks.min().over("window"), last=forks.max().over("window"))
        .filter(works & (pl.col("kernels") == 0))
        .filter(~text("name").str.contains(_HOST_NODE))
        .sort("window", "ts", maintain_order=True)
    )
    op = ops.select("name", "inputs", *_PLACE)[rows["op"]]
    inputs = tables["inputs"].drop("id").hash_rows()[op["inputs"]]
    name = op["name"].cast(pl.String)
    names_kernel = name.str.starts_with(_TRITON) | name.is_in(names.implode())
    return rows.select(
        "window",
        "thread",
        "op",
        at=pl.int_range(pl.len()).over("window"),
        call="id",
        op_name=name,
        activity=pl.col("call").cast(pl.String).replace_strict(_ACTIVITY),
        exact=pl.coalesce(text("kernel"), pl.when(names_kernel).then(name)),
        grid=as_text("grid"),
        forked=known(pl.col("ts").is_between("first", "last")),
        inputs=inputs,
        content=op.with_columns(inputs=inputs).hash_rows(),
    )


def _with_own_replays(
    tables: Frames, calls: pl.DataFrame, windows: pl.DataFrame
) -> pl.DataFrame:
    """Return calls with the kernels that they were where the same trace replays them.

    A graph of another shape may have the same ops, but not the same kernels and grids.
    """
    kernels = replayed_kernels(tables)
    if kernels.is_empty() or calls.is_empty():
        return calls
    ran = (
        matched(kernels, calls, windows.with_columns(recorded=pl.lit(0)))
        .filter("certain")
        .join(kernels.filter(pl.col("activity") == "kernel"), on="kernel")
        .unique("call")
        .select("call", ran="name", ran_grid="grid")
    )
    return (
        calls.join(ran, on="call", how="left", maintain_order="left")
        .with_columns(
            exact=pl.coalesce("ran", "exact"), grid=pl.coalesce("ran_grid", "grid")
        )
        .drop("ran", "ran_grid")
    )


def _in_window(events: pl.DataFrame, windows: pl.DataFrame) -> pl.Series:
    """Return the capture that each event of a thread begins in.

    Another thread's is in the one that is open, as the backward's is; where two are
    open it is in none.
    """
    rows = events.select("thread", "ts").with_row_index("row")
    sides = windows.select("thread", "start", "end", "window")
    own = asof(rows, sides, "ts", "start", by="thread")
    open_one = asof(rows, sides.drop("thread"), "ts", "start")
    begun, ended = (
        windows[side].sort().search_sorted(own["ts"], side="right").cast(pl.Int64)
        for side in ("start", "end")
    )
    own_window = pl.when(own["ts"] < own["end"]).then(own["window"])
    alone = (open_one["ts"] < open_one["end"]) & (begun - ended == 1)
    other = pl.when(alone).then(open_one["window"])
    return own.with_columns(window=pl.coalesce(own_window, other)).sort("row")["window"]

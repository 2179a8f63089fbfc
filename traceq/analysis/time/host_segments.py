"""What the host was doing at every instant of the steps, one thing at a time.

All that a thread does is a tree of regions, Python calls, operators and runtime calls.
Between two moments at which anything begins or ends nothing changes, so each such
segment belongs to the innermost thing that is open: to what begins there, or to what is
around the thing that ends there. Of several threads that launch GPU work, the one that
does something counts: while backward runs in autograd's thread, the main thread waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.gpu_idle import idle_gaps
from traceq.expressions import END, text
from traceq.graph.nesting import INDEX, nearest, parents
from traceq.intervals import overlap
from traceq.model.names import STEP

if TYPE_CHECKING:
    from traceq.trace import Trace

# From the outside in, where two begin and end together.
PARTS = ("annotations", "frames", "ops", "runtime")


@dataclass(frozen=True)
class HostSegments:
    """The host's time in the steady-state steps, cut into segments."""

    segments: pl.DataFrame
    """``start``, ``end`` and ``step``, ``at`` (the row of ``tree`` that it belongs to,
    none if nothing was open) and ``idle``, how much of it the GPU idled."""
    tree: pl.DataFrame
    """What the threads did: ``part`` (the index in PARTS), ``row`` (of that table),
    ``thread`` and ``parent``, the row of this frame around it."""
    steps: int
    threads: tuple[int, ...]
    """The threads that launch, the main one last."""

    def nearest(self, marked: pl.Series) -> pl.Series:
        """Return for each row of the tree itself, if marked, or the nearest around."""
        return nearest(self.tree["parent"], marked)

    def around(self, marked: pl.Series) -> pl.Series:
        """Return for each row of the tree the nearest marked one around it."""
        return self.nearest(marked)[self.tree["parent"]]

    def rows_of(self, part: str) -> pl.Series:
        """Return for each row of the tree its row in a table, if it is of that."""
        mine = pl.col("part") == PARTS.index(part)
        return self.tree.select(pl.when(mine).then("row")).to_series()


@cached_per_trace
def host_segments(trace: Trace) -> HostSegments:
    """Return the host's time in the steady-state steps; all of it without steps."""
    windows = _windows(trace)
    threads = _threads(trace)
    tree = _tree(trace, threads)
    owners = _owners(tree, threads, windows)
    segments = owners.with_columns(idle=overlap(owners, idle_gaps(trace)))
    return HostSegments(
        segments, tree.drop("ts", "end"), max(1, windows.height), threads
    )


def _windows(trace: Trace) -> pl.DataFrame:
    steps = trace.steps.filter(~pl.col("warmup"))
    if steps.height:
        return steps.select("step", start="ts", end=END)
    ends = [table.select(END.max()).item() for table in (trace.ops, trace.runtime)]
    end = max((one for one in ends if one is not None), default=0)
    return pl.DataFrame(
        {"step": [None], "start": [0], "end": [end]},
        schema={"step": pl.Int64, "start": pl.Int64, "end": pl.Int64},
    )


def _threads(trace: Trace) -> tuple[int, ...]:
    """Return the threads that launch GPU work, or run ops; the main one last."""
    launching = trace.runtime.filter(pl.col("kernels") > 0)["thread"].unique()
    marks = trace.annotations.filter(~pl.col("on_gpu"), text("name").str.contains(STEP))
    # Without marks the main thread is the one in which most Python, or most ops, ran.
    for table in (marks, trace.frames, trace.host_ops, trace.runtime):
        counts = table.group_by("thread").len().sort("len", "thread")
        if counts.height:
            main = int(counts["thread"][-1])
            return (*sorted(set(launching.to_list()) - {main}), main)
    return ()


def _tree(trace: Trace, threads: tuple[int, ...]) -> pl.DataFrame:
    regions = trace.annotations.filter(
        ~pl.col("on_gpu"), ~text("name").str.contains(STEP)
    )
    tables = (regions, trace.frames, trace.host_ops, trace.runtime)
    rows = (
        pl.concat(
            table.select(
                "thread",
                "ts",
                end=END,
                part=pl.lit(part, pl.UInt8),
                row=pl.col("id"),
            )
            for part, table in enumerate(tables)
        )
        .filter(pl.col("thread").is_in(list(threads)), pl.col("end") > pl.col("ts"))
        .sort(
            pl.col("thread"), pl.col("ts"), -pl.col("end"), "part", maintain_order=True
        )
    )
    return rows.with_columns(parent=parents(rows["thread"], rows["end"]))


def _owners(
    tree: pl.DataFrame, threads: tuple[int, ...], windows: pl.DataFrame
) -> pl.DataFrame:
    """Return the segments with the row that each belongs to, those in the steps."""
    at = pl.int_range(pl.len(), dtype=pl.Int64)
    # At one moment ends come first, the innermost of them first, and starts last.
    moments = pl.concat(
        [
            tree.select("thread", time="ts", at=at, order=at + 1),
            tree.select(
                "thread", time="end", at=pl.col("parent").cast(pl.Int64), order=-at
            ),
        ]
    ).sort("time", "order")
    edges = pl.concat([windows["start"], windows["end"]]).unique()
    opened = pl.when(pl.col("at") >= 0).then("at").cast(INDEX)
    cut = (
        pl.concat(
            [_of_one_thread(moments, threads), edges.to_frame("time")],
            how="diagonal_relaxed",
        )
        .sort("time", maintain_order=True)
        .with_columns(pl.col("at").forward_fill())
        .unique("time", keep="last", maintain_order=True)
        .select(start="time", end=pl.col("time").shift(-1), at=opened)
        .drop_nulls("end")
    )
    steps = windows.select("step", begin="start", close="end").sort("begin")
    return (
        cut.join_asof(steps, left_on="start", right_on="begin")
        .filter(pl.col("start") < pl.col("close"))
        .select("start", "end", "step", "at")
    )


def _of_one_thread(moments: pl.DataFrame, threads: tuple[int, ...]) -> pl.DataFrame:
    """Return from each moment on what is open in the first thread that does something.

    Two neighbours become one thread at a time, all pairs at once: there may be very
    many threads. What is open is ``at``, -1 if nothing is.
    """
    ranks = pl.DataFrame(
        {"thread": threads, "rank": range(len(threads))},
        schema={"thread": moments.schema["thread"], "rank": pl.Int64},
    )
    found = moments.join(ranks, on="thread", maintain_order="left").select(
        "time", "rank", pl.col("at").fill_null(-1), row=pl.int_range(pl.len())
    )
    for _ in range(max(0, len(threads) - 1).bit_length()):
        found = _in_pairs(found)
    return found.sort("row").select("time", "at")


def _in_pairs(found: pl.DataFrame) -> pl.DataFrame:
    """Make one of each two neighbours; the second counts while the first is idle."""
    pair, is_first = pl.col("rank") // 2, pl.col("rank") % 2 == 0
    begins = pair != pair.shift(1, fill_value=-1)
    first, second = (
        pl.when(mine).then("at").when(begins).then(-1).forward_fill()
        for mine in (is_first, ~is_first)
    )
    return found.sort(pair, "row").select(
        "time", "row", rank=pair, at=pl.when(first >= 0).then(first).otherwise(second)
    )

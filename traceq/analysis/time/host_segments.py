"""What the host was doing at every instant of the steps, one thing at a time.

All that a thread does is a tree of regions, Python calls, operators and runtime calls.
Between two moments at which anything begins or ends nothing changes, so each such
segment belongs to the innermost thing that is open: to what begins there, or to what is
around the thing that ends there. Of several threads that launch GPU work, the one that
does something counts: while backward runs in autograd's thread, the main thread waits.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.expressions import END, known, text
from traceq.graph.nesting import INDEX, nearest, parents, row_numbers
from traceq.model.names import STEP
from traceq.records import dataclass

if TYPE_CHECKING:
    from traceq.trace import Trace

_SIDES = ("start", "end")
# From the outside in, where two begin and end together.
PARTS = ("annotations", "frames", "ops", "runtime")


@dataclass(frozen=True)
class HostSegments:
    """The host's time in the steady-state steps, cut into segments."""

    segments: pl.DataFrame
    """``start``, ``end`` and ``at``, the row of ``tree`` that it belongs to, none if
    nothing was open."""
    tree: pl.DataFrame
    """What the threads did: ``part`` (the index in PARTS), ``row`` (of that table),
    ``thread`` and ``parent``, the row of this frame around it."""
    windows: pl.DataFrame
    """The steps, or all of the recording: ``step``, ``start`` and ``end``. They are in
    order and do not overlap."""
    threads: tuple[int, ...]
    """The threads that launch, the main one last."""

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return max(1, self.windows.height)

    @cached_property
    def op(self) -> pl.Series:
        """For each row of the tree the op that it is, or is in."""
        op = self.rows_of("ops")
        return op[self.nearest(op.is_not_null())]

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
    segments = _in_windows(_opened(tree, threads, windows), windows)
    return HostSegments(segments, tree.drop("ts", "end"), windows, threads)


def _in_windows(opened: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the time from each moment to the next as segments, those in the steps."""
    spans = windows.filter(pl.col("end") > pl.col("start"))
    first, after = (opened["time"].search_sorted(spans[side]) for side in _SIDES)
    inside = pl.repeat(None, opened.height, dtype=pl.Boolean, eager=True)
    inside = inside.scatter(after, values=False).scatter(first, values=True)
    return opened.select(start="time", end=pl.col("time").shift(-1), at="at").filter(
        known(inside.forward_fill())
    )


def _windows(trace: Trace) -> pl.DataFrame:
    steps = trace.steps.filter(~pl.col("warmup"))
    if steps.height:
        found = steps.select("step", start="ts", end=END).sort("start")
        # Where steps overlap, an instant is of the one that began last.
        until = pl.min_horizontal("end", pl.col("start").shift(-1))
        return found.with_columns(end=until)
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


def _opened(
    tree: pl.DataFrame, threads: tuple[int, ...], windows: pl.DataFrame
) -> pl.DataFrame:
    """Return what is open from each moment on: ``time`` and ``at``, none for nothing.

    The moments are those at which anything begins or ends, and the edges of steps.
    """
    rank = _ranks(threads)[tree["thread"]]
    columns = ("time", "at", "rank")
    ends = pl.DataFrame([tree["end"], tree["parent"], rank], columns)
    starts = pl.DataFrame([tree["ts"], row_numbers(tree.height), rank], columns)
    # The edges are of a thread behind all others, which never does anything.
    edges = pl.concat([windows["start"], windows["end"]]).unique().to_frame("time")
    nothing = edges.select(
        "time", at=pl.lit(None, INDEX), rank=pl.lit(len(threads), INDEX)
    )
    # At one moment ends come first, the innermost of them first, and starts last.
    moments = pl.concat([ends.reverse(), starts, nothing]).sort(
        "time", maintain_order=True
    )
    last = pl.col("time").ne_missing(pl.col("time").shift(-1))
    return moments.select("time", at=_of_one_thread(moments, len(threads))).filter(last)


def _ranks(threads: tuple[int, ...]) -> pl.Series:
    """Return by number of a thread its place among these threads, if it has one."""
    places = pl.repeat(None, max(threads, default=0) + 1, dtype=INDEX, eager=True)
    return places.scatter(list(threads), row_numbers(len(threads)))


def _of_one_thread(moments: pl.DataFrame, threads: int) -> pl.Series:
    """Return at each moment what is open in the first thread that does something.

    Moments of one thread that follow each other while it is busy, or while it is not,
    are a run. Which thread counts changes only where a run begins, and runs are few.
    """
    at, rank, busy = moments["at"], pl.col("rank"), pl.col("at").is_not_null()
    begins = moments.select(
        rank.ne_missing(rank.shift(1)) | busy.ne_missing(busy.shift(1))
    ).to_series()
    runs = moments.with_row_index("first").filter(begins)
    counts = _counting(runs, threads)
    itself = known(counts == row_numbers(runs.height))
    if itself.all():
        return at
    # While another thread counts, what it had opened last stays open.
    last = runs["first"].shift(-1, fill_value=moments.height) - 1
    others = at[last][counts]
    run = begins.cum_sum() - 1
    return at.zip_with(itself[run], others[run])


def _counting(runs: pl.DataFrame, threads: int) -> pl.Series:
    """Return at the beginning of each run the run of the thread that counts then.

    Two neighbours become one thread at a time, all pairs at once: there may be very
    many threads.
    """
    run = pl.int_range(pl.len())
    busy = pl.col("at").is_not_null()
    found = runs.select(
        pl.col("rank").cast(pl.Int64),
        run=run,
        counts=pl.when(busy).then(run).otherwise(-1),
    )
    for _ in range(threads.bit_length()):
        found = _in_pairs(found)
    counts = pl.when(pl.col("counts") >= 0).then("counts").cast(INDEX)
    return found.sort("run").select(counts).to_series()


def _in_pairs(found: pl.DataFrame) -> pl.DataFrame:
    """Make one of each two neighbours; the second counts while the first is idle."""
    pair, is_first = pl.col("rank") // 2, pl.col("rank") % 2 == 0
    begins = pair != pair.shift(1, fill_value=-1)
    first, second = (
        pl.when(mine).then("counts").when(begins).then(-1).forward_fill()
        for mine in (is_first, ~is_first)
    )
    # By one number, which is much faster to sort by than two.
    order = pair * pl.len() + pl.col("run")
    return found.sort(order).select(
        "run", rank=pair, counts=pl.when(first >= 0).then(first).otherwise(second)
    )

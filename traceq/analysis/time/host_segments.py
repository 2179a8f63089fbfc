"""Host segments: one activity for every instant of the steps.

The activity of a thread is a tree of regions, Python calls, operators and runtime
calls. Every instant belongs to the innermost node that is open: the one that began
last, or the parent of the one that ended last. If several threads launch GPU work, the
one that is active counts: while backward runs in autograd's thread, the main thread
waits. A segment is an interval in which one node counts.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.group_ids import alike
from traceq.analysis.time.call_paths import PARTS, contexts
from traceq.common.expressions import END, known, text
from traceq.graph.host import only
from traceq.graph.nesting import (
    INDEX,
    arrived,
    in_preorder,
    marked_at,
    parents_or,
    row_numbers,
)
from traceq.model.names import STEP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.time.call_paths import Contexts
    from traceq.model.trace import Trace

# Columns that identify equal rows of a table in the account.
_SAME = {
    "annotations": ["name"],
    "ops": ["name", "compiling", "module", "file", "line", "function"],
    "runtime": ["call", "name"],
}


class HostSegments(Struct, frozen=True, dict=True):
    """The host's time in the steady-state steps, cut into segments."""

    segments: pl.DataFrame
    """``start``, ``end`` and ``at``, the row of ``tree`` that it belongs to."""
    tree: pl.DataFrame
    """The activity of the threads, in pre-order: ``part`` (the index in PARTS), ``row``
    (of that table) and ``parent``, the row of this frame around it. The last row is a
    sentinel: it is around all others, and open where no activity is. So ``parent`` is
    never null, and lookups take a fraction of the time."""
    windows: pl.DataFrame
    """The steps, or all of the recording: ``step``, ``start`` and ``end``. They are in
    order and do not overlap."""
    threads: tuple[int, ...]
    """The threads that launch, the main one last."""
    first: pl.Series
    """The first row of the tree of each thread, and of nothing."""
    contexts: Contexts
    """The rows of the tree by how they were called."""

    @property
    def steps(self) -> int:
        """Number of steps, at least 1."""
        return max(1, self.windows.height)

    @property
    def nothing(self) -> int:
        """The row of the tree that stands for nothing."""
        return self.tree.height - 1

    @cached_property
    def op(self) -> pl.Series:
        """For each row of the tree the op that it is, or is in."""
        around = self.nearest(self.are("ops"))
        return only(self.tree["row"][around], around < self.nothing)

    def nearest(self, marked: pl.Series) -> pl.Series:
        """Return for each row of the tree itself, if marked, or the nearest around."""
        return arrived(row_numbers(len(marked)).zip_with(marked, self.tree["parent"]))

    def thread(self, rows: pl.Series) -> pl.Series:
        """Return for each of these rows of the tree which of the threads it is of."""
        return self.first.search_sorted(rows, side="right") - 1

    def in_contexts(self, marked: pl.Series) -> pl.Series:
        """Return which segments are those of marked contexts."""
        return marked_at(marked, self.contexts.number[self.segments["at"]])

    def are(self, part: str) -> pl.Series:
        """Return which rows of the tree are of a table."""
        return self.tree["part"] == PARTS.index(part)


@cached_per_trace
def host_segments(trace: Trace) -> HostSegments:
    """Return the host's time in the steady-state steps; all of it without steps."""
    windows = _windows(trace)
    threads = _threads(trace)
    tree = _tree(trace, threads)
    # One after the other: both at once would be the most memory that lint needs.
    call_contexts = contexts(tree)
    tree = tree[["ts", "end", "part", "row", "thread", "parent"]]
    segments = _opened(tree, len(threads), windows)
    # Rows are by thread: nobody needs to keep it for each.
    first = tree["thread"].search_sorted(row_numbers(len(threads) + 1))
    columns = tree[["part", "row", "parent"]]
    return HostSegments(segments, columns, windows, threads, first, call_contexts)


def _windows(trace: Trace) -> pl.DataFrame:
    steps = trace.steps.filter("averaged")
    if steps.height:
        windows = steps.select("step", start="ts", end=END).sort("start")
        # Where steps overlap, an instant is of the one that began last.
        until = pl.min_horizontal("end", pl.col("start").shift(-1))
        return windows.with_columns(end=until)
    ends = [table.select(END.max()).item() for table in (trace.ops, trace.runtime)]
    end = max((item for item in ends if item is not None), default=0)
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
    tables = [
        [*table[["thread", "ts", "dur", "id"]], _numbers(part, table)]
        for part, table in zip(
            PARTS, (regions, trace.frames, trace.host_ops, trace.runtime), strict=True
        )
    ]
    return tree_of(len(threads), _ranks(trace, threads), tables)


def tree_of(
    threads: int, ranks: pl.Series, tables: Sequence[Sequence[pl.Series]]
) -> pl.DataFrame:
    """Return the rows of tables that are of the threads and take time, as a tree.

    The tables are those of PARTS: of each ``thread``, ``ts``, ``dur``, ``id`` and a
    number of each row. ``ranks`` are those of the threads, none for all others.
    """
    rows = (_rows(part, table, ranks) for part, table in enumerate(tables))
    # Nothing is of a thread behind all others.
    nothing = pl.select(
        ts=pl.lit(0, pl.Int64),
        end=pl.lit(1, pl.Int64),
        part=pl.lit(len(tables), pl.UInt8),
        row=pl.lit(0, INDEX),
        thread=pl.lit(threads, INDEX),
        code=pl.lit(0, INDEX),
    )
    tree = in_preorder(pl.concat([*rows, nothing], rechunk=True))
    parent = parents_or(tree["thread"], tree["end"], tree.height - 1)
    return tree.with_columns(parent.alias("parent"))


def _rows(part: int, table: Sequence[pl.Series], ranks: pl.Series) -> pl.DataFrame:
    """Return the rows of a table that are of the threads and take time."""
    thread, ts, dur, row, number = table
    # Numbers of one table are of no other.
    code = (1 + number * len(PARTS) + part).cast(INDEX)
    rows = pl.DataFrame(
        [ts, ts + dur, row, ranks[thread], code], ["ts", "end", "row", "thread", "code"]
    ).filter(pl.col("thread").is_not_null(), pl.col("end") > pl.col("ts"))
    return rows.select(
        "ts", "end", pl.lit(part, pl.UInt8).alias("part"), "row", "thread", "code"
    )


def _numbers(part: str, table: pl.DataFrame) -> pl.Series:
    """Return a number for each row of a table, the same for those that are the same."""
    if part == "frames":
        # The name tells all but the line, which may not be known.
        names = table["name"].to_physical().cast(INDEX)
        return names * 2 + table["line"].is_null().cast(INDEX)
    return alike(*table.select(_SAME[part])).number


def _opened(tree: pl.DataFrame, threads: int, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the innermost open event over the steps, as segments."""
    edges = pl.concat([windows["start"], windows["end"]]).unique().sort()
    begin = windows.filter(pl.col("end") > pl.col("start"))["start"]
    inside = edges.is_in(begin.implode()).cast(INDEX)
    return opened(tree[:-1], pl.DataFrame({"time": edges, "inside": inside}), threads)


def opened(rows: pl.DataFrame, edges: pl.DataFrame, threads: int) -> pl.DataFrame:
    """Return the innermost open event, segment by segment: ``start``, ``end``, ``at``.

    ``rows`` are in pre-order, ``edges`` in order. A segment ends where something else
    counts, and at edges; none begins at an edge that is not ``inside``, or after it.
    """
    moments = _moments(rows, edges["time"], threads)
    time, at = moments["time"], _of_one_thread(moments, threads, rows.height)
    # Of what changes at one moment only the last lasts.
    lasting = pl.DataFrame([time, at], ["start", "at"]).filter(time.shift(-1) > time)
    begins = lasting["at"].ne_missing(lasting["at"].shift(1))
    begins |= lasting["start"].is_in(edges["time"].implode())
    starts = lasting.filter(begins)
    last = edges["time"].search_sorted(starts["start"], side="right").cast(pl.Int64) - 1
    inside = (edges["inside"] > 0)[only(last, last >= 0).cast(INDEX)]
    return starts.select(
        "start", pl.col("start").shift(-1, fill_value=time.max()).alias("end"), "at"
    ).filter(known(inside))


def _moments(rows: pl.DataFrame, edges: pl.Series, threads: int) -> pl.DataFrame:
    """Return the event that is open from each moment on: ``time``, ``at`` and ``rank``.

    The moments are those at which anything begins or ends, and the edges, which are of
    a thread behind all others, which never does anything.
    """
    columns = ("time", "at", "rank")
    ends = pl.DataFrame([rows["end"], rows["parent"], rows["thread"]], columns)
    starts = pl.DataFrame(
        [rows["ts"], row_numbers(rows.height), rows["thread"]], columns
    )
    none_open = edges.to_frame("time").with_columns(
        at=pl.lit(rows.height, INDEX), rank=pl.lit(threads, INDEX)
    )
    # At one moment ends come first, the innermost of them first, and starts last.
    return pl.concat([ends.reverse(), starts, none_open]).sort(
        "time", maintain_order=True
    )


def _ranks(trace: Trace, threads: tuple[int, ...]) -> pl.Series:
    """Return by number of a thread its place among these threads, if it has one."""
    places = pl.repeat(None, trace.threads.height, dtype=INDEX, eager=True)
    return places.scatter(list(threads), row_numbers(len(threads)))


def _of_one_thread(moments: pl.DataFrame, threads: int, nothing: int) -> pl.Series:
    """Return at each moment what is open in the first thread that does something.

    Moments of one thread that follow each other while it is busy, or while it is not,
    are a run. Which thread counts changes only where a run begins, and runs are few.
    """
    at, rank, busy = moments["at"], pl.col("rank"), pl.col("at") < nothing
    begins = moments.select(
        rank.ne_missing(rank.shift(1)) | busy.ne_missing(busy.shift(1))
    ).to_series()
    first = begins.arg_true()
    after = first.shift(-1, fill_value=moments.height)
    runs = moments.select(pl.all().gather(first)).select(
        "rank", busy=busy, first=first, after=after
    )
    counts = _counting(runs, threads)
    # While another thread counts, what it had opened last stays open.
    others = (
        runs.select("first", "after", at=at[after - 1][counts])
        .filter(known(counts != row_numbers(runs.height)))
        .select("at", moment=pl.int_ranges("first", "after", dtype=INDEX))
        .explode("moment")
    )
    return at.scatter(others["moment"], others["at"])


def _counting(runs: pl.DataFrame, threads: int) -> pl.Series:
    """Return at the beginning of each run the run of the thread that counts then.

    Two neighbours become one thread at a time, all pairs at once: there may be very
    many threads.
    """
    run = pl.int_range(pl.len())
    pairs = runs.select(
        pl.col("rank").cast(pl.Int64),
        run=run,
        counts=pl.when("busy").then(run).otherwise(-1),
    )
    for _ in range(threads.bit_length()):
        pairs = _in_pairs(pairs)
    counts = pl.when(pl.col("counts") >= 0).then("counts").cast(INDEX)
    return pairs.sort("run").select(counts).to_series()


def _in_pairs(runs: pl.DataFrame) -> pl.DataFrame:
    """Make one of each two neighbours; the second counts while the first is idle."""
    pair, is_first = pl.col("rank") // 2, pl.col("rank") % 2 == 0
    begins = pair != pair.shift(1, fill_value=-1)
    first, second = (
        pl.when(own).then("counts").when(begins).then(-1).forward_fill()
        for own in (is_first, ~is_first)
    )
    # By one number, which is much faster to sort by than two.
    order = pair * pl.len() + pl.col("run")
    return runs.sort(order).select(
        "run", rank=pair, counts=pl.when(first >= 0).then(first).otherwise(second)
    )

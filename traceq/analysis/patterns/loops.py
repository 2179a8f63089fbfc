"""Python loops that launch little in each iteration: what they launch and take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.gpu_idle import idle_gaps
from traceq.analysis.base.ownership import NOTHING, called_ops, named_like, nobody
from traceq.analysis.patterns.loop_iterations import CALL, LOOP, iterations
from traceq.common.expressions import END, rows_where, text
from traceq.common.intervals import overlap
from traceq.graph.nesting import row_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace


class Loops(Struct, frozen=True):
    """The loops of a trace."""

    table: pl.DataFrame
    """One row for each place in the program: what a loop there launches and takes."""
    spans: pl.DataFrame
    """Host time in each ``loop`` and in its backward: ``start``, ``end``, and
    ``begins``, true for an iteration."""

    def spans_of(self, row: Mapping[str, Any]) -> pl.DataFrame:
        """Return the host's spans in the loop of a row, or in several ``loops``."""
        return self.spans.filter(pl.col("loop").is_in(row.get("loops", [row["loop"]])))


@cached_per_trace
def loops(trace: Trace, steady: SteadySteps, min_iterations: int) -> Loops:
    """Return the loops of at least this many iterations, by place.

    The table has ``loop``, a number, the place, and for all calls of all steps
    together: ``iterations``, ``calls`` (of the function), ``longest`` (the most
    iterations of a call), ``kernels``, those of them ``back``, in its backward, and
    those ``launched`` before its end, ``kernel_median_ns``, ``gpu_ns`` (the sum of
    their times), ``host_ns`` (in the loop and its backward), ``idle_ns`` (of the GPU
    meanwhile), ``syncs``, ``names`` (of its ops, in order), ``mark``, ``modules``,
    ``ops``, ``gradients`` (the number of weights that get theirs in its backward),
    ``called`` (the most modules that a call runs in the loop).
    """
    repeats = iterations(trace, steady, min_iterations)
    if not repeats.height:
        return Loops(NOTHING, NOTHING)
    table = (
        repeats.group_by(LOOP, maintain_order=True)
        .agg(
            iterations=pl.len(),
            calls=pl.struct(CALL).n_unique(),
            longest=pl.struct(CALL).unique_counts().max(),
            mark=text("mark").first(),
            modules=text("module").drop_nulls().unique().sort(),
        )
        .with_row_index("loop")
    )
    # From here on a loop is its number, which is faster to group by than its place.
    numbers = table.select("loop", *LOOP)
    repeats = repeats.join(numbers, on=LOOP, nulls_equal=True, maintain_order="left")
    ops = _ops_of(trace, repeats)
    backward = ops.filter(pl.col("forward").is_not_null())
    gradients = _gradients(trace, backward)
    spans = pl.concat(
        [
            repeats.select("loop", "start", "end", begins=pl.lit(value=True)),
            backward.select("loop", start="ts", end=END, begins=pl.lit(value=False)),
            gradients.select("loop", start="ts", end=END, begins=pl.lit(value=False)),
        ]
    )
    spans = spans.with_columns(
        length=pl.col("end") - pl.col("start"), idle=overlap(spans, idle_gaps(trace))
    )
    for more in (
        spans.group_by("loop").agg(
            host_ns=pl.col("length").sum(), idle_ns=pl.col("idle").sum()
        ),
        _gpu_work(trace, ops),
        _names(ops),
        gradients.group_by("loop").agg(gradients=pl.len()),
        _called(ops),
    ):
        table = _joined(table, more)
    return Loops(table, spans)


def _joined(loops: pl.DataFrame, more: pl.DataFrame) -> pl.DataFrame:
    return loops.join(more, on="loop", how="left", maintain_order="left")


def _ops_of(trace: Trace, repeats: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost ops in the iterations, and those whose forward is there."""
    ops = trace.ops
    outermost = rows_where(called_ops(trace) == ops["id"])
    begun = _forward(trace)[outermost]
    forward = begun.zip_with(begun >= 0, outermost)
    # A loop may be a moment of a long recording: only what is near is looked at.
    at = ops["ts"][forward]
    near = at.is_between(repeats["start"].min(), repeats["end"].max())
    placed = (
        ops[["id", "name", "module", "ts", "dur"]][outermost.filter(near)]
        .with_columns(
            forward=begun.filter(near),
            at=at.filter(near),
            forward_thread=ops["thread"][forward.filter(near)],
        )
        .sort("at")
    )
    last = pl.col("start").max().over("loop", *CALL)
    return placed.join_asof(
        repeats.select(
            "loop", *CALL, "start", "end", "thread", own="module", last=last
        ),
        left_on="at",
        right_on="start",
        by_left="forward_thread",
        by_right="thread",
        strategy="backward",
        check_sortedness=False,
    ).filter(pl.col("at") < pl.col("end"))


def _forward(trace: Trace) -> pl.Series:
    """Return the forward op of each op of the backward; of a node, what it has inside.

    The node of a write into a slice has none itself.
    """
    ops, root = trace.ops, called_ops(trace)
    inside = rows_where(ops["forward"].is_not_null() & ops["forward"][root].is_null())
    # In reverse: of several the first one is what stays.
    inside = inside.reverse()
    return ops["forward"].scatter(root[inside], ops["forward"][inside])


def _called(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the number of child modules that the module of each loop calls in it."""
    own = text("own").fill_null("")
    child = text("module").str.strip_prefix(own).str.extract(r"^/?([^/]+)")
    children = (
        ops.filter(pl.col("forward").is_null())
        # Each pair once: as text a name takes its length for each row.
        .unique(["loop", *CALL, "own", "module"])
        .group_by("loop", *CALL)
        .agg(called=child.drop_nulls().n_unique())
    )
    return children.group_by("loop").agg(pl.col("called").max())


def _gradients(trace: Trace, backward: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that accumulate the gradient of a weight, with their loop.

    They run right after the backward op that computed the gradient, and so belong to
    the loop of the last op before them that is not one of them.
    """
    ops = trace.ops
    accumulates = named_like(ops, "AccumulateGrad$")
    rows = rows_where(ops["parent"].is_null() & (ops["phase"] == "backward"))
    last = pl.when(~pl.col("accumulates")).then("id").forward_fill().over("thread")
    return (
        ops[["id", "thread", "ts", "dur"]][rows]
        .with_columns(accumulates=accumulates[rows])
        .sort("thread", "ts")
        .with_columns(last=last)
        .filter("accumulates")
        .join(backward.select("loop", last="id"), on="last")
    )


def _gpu_work(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels of each loop, and how often the host waits for the GPU."""
    back = pl.col("forward").is_not_null()
    op_loops = ops.select(
        "loop", back=back, launched=~back | (pl.col("ts") < pl.col("last"))
    )
    # For each op its row among those of loops.
    at = nobody(trace).scatter(ops["id"], row_numbers(ops.height))
    at = at[called_ops(trace)]
    of_kernel = at[trace.kernels["op"]]
    waiting = trace.runtime["op"].filter(trace.runtime["call"] == "sync")
    launched = (
        op_loops[of_kernel.drop_nulls()]
        .with_columns(trace.kernels["dur"].filter(of_kernel.is_not_null()))
        .group_by("loop")
        .agg(
            kernels=pl.len(),
            back=pl.col("back").sum(),
            launched=pl.col("launched").sum(),
            kernel_median_ns=pl.col("dur").median(),
            gpu_ns=pl.col("dur").sum(),
        )
    )
    counts = op_loops[at[waiting].drop_nulls()].group_by("loop").agg(syncs=pl.len())
    return _joined(launched, counts).with_columns(pl.col("syncs").fill_null(0))


def _names(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the names of each loop's forward ops, in order, and the ids of all."""
    forward = ops.filter(pl.col("forward").is_null()).sort("ts")
    names = forward.group_by("loop", maintain_order=True).agg(
        names=text("name").unique(maintain_order=True)
    )
    return _joined(names, ops.group_by("loop").agg(ops="id"))

"""Python loops that launch little in each round, found by the ops that come again.

A loop is found in one call of one function or module: an op that it calls there many
times marks the rounds. What lies between two marks, in whatever it calls, is one
round, and the backward of its ops belongs to it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.gpu_idle import idle_gaps
from traceq.analysis.base.ownership import outermost_ops
from traceq.analysis.base.steady import in_steps
from traceq.graph.nesting import nearest, parents
from traceq.intervals import overlap
from traceq.words import layer_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from traceq.analysis.base.steady import SteadySteps
    from traceq.trace import Trace

_PLACE = ("file", "line", "function", "module")
_LOOP = ("file", "line", "function", "path")
_NO_LOOP = ("optimizer", "data")
# A round that takes this many times longer than usual holds something else as well.
_UNUSUAL = 4


def rounds(trace: Trace, steady: SteadySteps, fewest: int) -> pl.DataFrame:
    """Return the rounds of loops: place, ``step``, ``call``, ``start`` and ``end``.

    ``call`` is the one run of the function or module that the loop is in, ``name`` the
    op whose coming back marks the rounds. Where no stacks were recorded, only ops that
    wait for the GPU mark rounds: others come again in every layer.
    """
    marks = _marks(trace, steady, fewest)
    first = (
        marks.sort("ts")
        .group_by("step", "call", maintain_order=True)
        .agg(pl.col("name").first())
    )
    chosen = marks.join(first, on=["step", "call", "name"], nulls_equal=True).sort("ts")
    length = (pl.col("ts").shift(-1) - pl.col("ts")).over("step", "call")
    usual = pl.col("length").median().over("step", "call")
    lengths = chosen.with_columns(length=length).with_columns(usual=usual)
    other = pl.col("length").is_null() | (pl.col("length") > _UNUSUAL * pl.col("usual"))
    return lengths.select(
        *_PLACE,
        "step",
        "call",
        "thread",
        "name",
        start="ts",
        end=pl.col("ts")
        + pl.when(other).then("usual").otherwise("length").cast(pl.Int64),
    ).sort("start")


@dataclass(frozen=True)
class Loops:
    """The loops of a trace."""

    table: pl.DataFrame
    """One row for each place in the program: what a loop there launches and takes."""
    spans: pl.DataFrame
    """When the host was in them, or in their backward: place, ``start``, ``end``."""

    def spans_of(self, row: Mapping[str, Any]) -> pl.DataFrame:
        """Return when the host was in the loop of one row of the table."""
        mine = (pl.col(column).eq_missing(row[column]) for column in _LOOP)
        return self.spans.filter(*mine)


@cached_per_trace
def loops(trace: Trace, steady: SteadySteps, fewest: int) -> Loops:
    """Return the loops of at least so many rounds, by the place they are at.

    Per place: ``rounds``, ``calls`` (of the function), ``kernels``, ``usual`` (the
    median of their times), ``gpu`` (their sum), ``host`` (the time in the loop and its
    backward), ``idle`` (that of the GPU in it), ``waits``, ``names`` (of its ops, in
    order), ``mark``, ``modules``, ``ops``, ``gradients`` (how many weights get theirs
    in its backward).
    """
    module = pl.col("module").cast(pl.String)
    found = (
        rounds(trace, steady, fewest)
        .with_columns(path=layer_names(module))
        .with_row_index("round")
    )
    ops = _in_rounds(trace, found)
    backward = ops.filter(pl.col("forward").is_not_null())
    gradients = _gradients(trace, backward)
    end = (pl.col("ts") + pl.col("dur")).alias("end")
    spans = pl.concat(
        [
            found.select(*_LOOP, "start", "end"),
            backward.select(*_LOOP, end, start="ts"),
            gradients.select(*_LOOP, end, start="ts"),
        ],
        how="diagonal",
    )
    spans = spans.with_columns(
        time=pl.col("end") - pl.col("start"), idle=overlap(spans, idle_gaps(trace))
    )
    table = found.group_by(*_LOOP, maintain_order=True).agg(
        rounds=pl.len(),
        calls=pl.struct("step", "call").n_unique(),
        mark=pl.col("name").cast(pl.String).first(),
        modules=pl.col("module").cast(pl.String).drop_nulls().unique().sort(),
    )
    for more in (
        spans.group_by(*_LOOP).agg(
            host=pl.col("time").sum(), idle=pl.col("idle").sum()
        ),
        _work(trace, ops),
        _names(ops),
        gradients.group_by(*_LOOP).agg(gradients=pl.len()),
    ):
        table = table.join(
            more, on=_LOOP, how="left", nulls_equal=True, maintain_order="left"
        )
    return Loops(table, spans)


def _in_rounds(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost ops that lie in rounds, they or their forward."""
    ops = trace.ops.filter(pl.col("parent").is_null())
    forward = trace.ops.select("ts", "thread").select(
        pl.all().gather(ops["forward"].fill_null(ops["id"]))
    )
    placed = (
        ops.drop("file", "line", "function")
        .with_columns(at=forward["ts"], on=forward["thread"])
        .sort("at")
    )
    return placed.join_asof(
        found.select(*_LOOP, "start", "end", "thread"),
        left_on="at",
        right_on="start",
        by_left="on",
        by_right="thread",
        strategy="backward",
        check_sortedness=False,
    ).filter(pl.col("at") < pl.col("end"))


def _gradients(trace: Trace, backward: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that add to the gradient of a weight right after a loop's ops."""
    roots = trace.ops.filter(pl.col("parent").is_null(), pl.col("phase") == "backward")
    adds = pl.col("name").cast(pl.String).str.ends_with("AccumulateGrad")
    before = roots.select("id", "thread", "ts", "dur", adds=adds).sort("thread", "ts")
    # Each takes the loop, if any, of the last op before it that is not one of these.
    last = pl.when(~pl.col("adds")).then("id").forward_fill().over("thread")
    return (
        before.with_columns(last=last)
        .filter("adds")
        .join(backward.select(*_LOOP, last="id"), on="last")
    )


def _work(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return what the GPU does for each loop, and how often the host waits for it."""
    roots = outermost_ops(trace)
    mine = ops.select(*_LOOP, root="id")
    kernels = trace.kernels.select("dur", root=roots.gather(trace.kernels["op"]))
    waits = trace.runtime.filter(pl.col("call") == "sync")
    waits = waits.select(root=roots.gather(waits["op"]))
    return (
        mine.join(kernels, on="root")
        .group_by(*_LOOP)
        .agg(kernels=pl.len(), usual=pl.col("dur").median(), gpu=pl.col("dur").sum())
        .join(
            mine.join(waits, on="root").group_by(*_LOOP).agg(waits=pl.len()),
            on=_LOOP,
            how="left",
            nulls_equal=True,
        )
        .with_columns(pl.col("waits").fill_null(0))
    )


def _names(ops: pl.DataFrame) -> pl.DataFrame:
    forward = ops.filter(pl.col("forward").is_null()).sort("ts")
    names = forward.group_by(*_LOOP, maintain_order=True).agg(
        names=pl.col("name").cast(pl.String).unique(maintain_order=True)
    )
    ids = ops.group_by(*_LOOP).agg(ops="id")
    return names.join(ids, on=_LOOP, how="left", nulls_equal=True)


def _marks(trace: Trace, steady: SteadySteps, fewest: int) -> pl.DataFrame:
    """Return the ops that one call makes again and again, and as often as most."""
    ops = _launching(trace, steady)
    if not trace.frames.height:
        ops = ops.filter("waits").with_columns(call=pl.lit(None, pl.UInt32))
    else:
        often = pl.len().over("step", *_PLACE, "name") >= fewest
        ops = ops.filter(often)
        ops = ops.with_columns(call=_calls(trace, ops))
    times = pl.len().over("step", "call", "name")
    many = ops.with_columns(times=times).filter(pl.col("times") >= fewest)
    usual = pl.col("times").mode().max().over("step", "call")
    return many.filter(pl.col("times") == usual)


def _launching(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the outermost ops of the forward that start work on the GPU."""
    calls = trace.runtime.filter(pl.col("op").is_not_null())
    roots = outermost_ops(trace)
    used = (
        calls.select(id=roots.gather(calls["op"]), kernels="kernels", call="call")
        .group_by("id")
        .agg(pl.col("kernels").sum(), waits=(pl.col("call") == "sync").any())
        .filter(pl.col("kernels") > 0)
    )
    ops = trace.ops.filter(
        pl.col("parent").is_null(),
        pl.col("forward").is_null(),
        ~pl.col("compiling"),
        ~pl.col("phase").cast(pl.String).is_in((*_NO_LOOP, "backward")),
    ).join(used, on="id", maintain_order="left")
    return in_steps(ops, trace, steady)


def _calls(trace: Trace, ops: pl.DataFrame) -> pl.Series:
    """Return for each op the call of a user's function, or of a module, around it."""
    module = pl.col("name").cast(pl.String).str.starts_with("nn.Module: ")
    end = (pl.col("ts") + pl.col("dur")).alias("end")
    frames = trace.frames.filter(pl.col("user") | module)
    rows = pl.concat(
        [
            frames.select("thread", "ts", end, frame="id", row=pl.lit(None, pl.UInt32)),
            ops.with_row_index("row").select(
                "thread", "ts", end, pl.lit(None, pl.UInt32).alias("frame"), "row"
            ),
        ]
    ).sort(pl.col("thread"), pl.col("ts"), -pl.col("end"), maintain_order=True)
    around = nearest(parents(rows["thread"], rows["end"]), rows["frame"].is_not_null())
    found = rows.with_columns(call=rows["frame"].gather(around)).drop_nulls("row")
    return found.sort("row")["call"]

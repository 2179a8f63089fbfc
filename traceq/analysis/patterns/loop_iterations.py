"""Iterations of Python loops, recognised by ops that repeat.

A loop is found inside one call of one function or module: an op that is called there
many times marks where iterations begin. Everything from one mark to the next, in
whatever the loop calls, is one iteration if most have these ops in this order, and the
backward of its ops belongs to it.

Example: a mixture of 32 experts, whose ``forward`` is called once in each layer::

    for number, expert in enumerate(self.experts):
        rows, slot = torch.where(chosen == number)
        out.index_add_(0, rows, expert(x[rows]) * weights[rows, slot, None])

In one call of ``forward``, ``aten::eq``, ``aten::where``, ``aten::mul`` and
``aten::index_add_`` are called 32 times and ``aten::index`` 64 times. From one
``aten::eq`` to the next the same ops are called each time; from one ``aten::index`` to
the next they alternate. So there are 32 iterations, and the first op that is called 32
times, ``aten::eq``, is the mark. The layers have the same line, so their iterations are
one loop.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.analysis.base.ownership import called_ops, named_like
from traceq.analysis.base.steady import in_steps
from traceq.common.expressions import END, constant, rows_where, text
from traceq.common.words import layer_names
from traceq.graph.nesting import nearest, parents, sums_of

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace

_PLACE = ("file", "line", "function", "module")
LOOP = ("file", "line", "function", "layer")
_FUNCTION = ("file", "line", "function")
_MARK = (*LOOP, "name")
CALL = ("step", "call")
_LINE = (*CALL, "thread")
_TRIED = (*CALL, "times")
_NO_LOOP = ("optimizer", "data", "backward")
# An iteration this many times longer than the median contains something else as well,
# such as the code after the loop. Heuristic threshold.
_UNUSUAL = 4
# An iteration with less than this share of the usual number of ops was left early.
_SHORT = 0.5
# A mark fits as well as the best if it is behind by no more than this. Both are
# heuristic thresholds.
_AS_GOOD = 0.05
# An op is usual in a loop if more than the first fraction of the iterations have it,
# and a branch if at least the second have it; the rest comes after the loop. At least
# the third fraction of an iteration is usual. Heuristic thresholds.
_MOST, _BRANCH, _USUAL = 0.5, 0.25, 0.5
# A function is called in each iteration if it is in this share. Heuristic threshold.
_AGAIN = 0.9


def iterations(trace: Trace, steady: SteadySteps, min_iterations: int) -> pl.DataFrame:
    """Return the iterations of loops: place, ``step``, ``call``, ``start``, ``end``.

    ``layer`` is the module without numbers, ``call`` the call of the function or module
    that the loop is in, ``mark`` the op that begins each iteration. The last iteration
    of a loop is taken to be as long as the median at most: what comes after the loop is
    not in it.
    """
    ops = _launching(trace, steady)
    marks = _marks(trace, ops, min_iterations).sort("ts")
    if not marks.height:
        return marks
    first = marks.group_by(CALL, maintain_order=True).agg(pl.col("name").first())
    begins = marks.join(first, on=[*CALL, "name"], nulls_equal=True).sort("ts")
    begins = _of_first_module(begins).with_columns(layer=layer_names(pl.col("module")))
    begins = _of_long_loops(begins, min_iterations)
    begins = _in_order(begins, ops, _fewest(min_iterations))
    begins = _of_long_loops(begins, min_iterations)
    median = pl.col("length").median().over(CALL)
    longest = median * pl.when("ends").then(_UNUSUAL).otherwise(1)
    usual = pl.col("length") <= longest
    length = pl.when(usual).then("length").otherwise(median).cast(pl.Int64)
    # Of a call that had begun before the recording only the function is known.
    line = pl.col("line").drop_nulls().first().over("file", "function", "name")
    return (
        _in_callers(trace, begins.with_columns(line=pl.col("line").fill_null(line)))
        .select(
            *_PLACE,
            "layer",
            *_LINE,
            mark="name",
            start="ts",
            end=pl.col("ts") + length,
        )
        .sort("start")
    )


def _in_callers(trace: Trace, begins: pl.DataFrame) -> pl.DataFrame:
    """Return marks with the place of the call that the loop is in.

    That is another one than the mark's own where each iteration calls its function
    again: a function that is called less often has the loop itself.
    """
    if not trace.frames.height:
        return begins
    own = trace.frames.filter("own")
    inner = callers.innermost(own, begins.select("thread", "ts"))["id"].alias("inner")
    calls = trace.frames[["own", *_FUNCTION]][begins["call"]].rename("call_{}".format)
    again = pl.col("inner").n_unique().over(CALL) >= _AGAIN * pl.len().over(CALL)
    known = (
        pl.col("call_own").fill_null(value=False) & pl.col("call_file").is_not_null()
    )
    there = (
        pl.when(known & again).then(f"call_{name}").otherwise(name).alias(name)
        for name in _FUNCTION
    )
    return begins.hstack([*calls, inner]).with_columns(there)


def _of_first_module(marks: pl.DataFrame) -> pl.DataFrame:
    """Return the marks of one module where several take turns in each iteration.

    Example: a head that calls two convolutions on each of five feature maps calls
    ``aten::conv2d`` ten times, in five iterations. Experts have one turn each.
    """
    here = pl.col("module")
    first, turns = here.first().over(CALL), pl.len().over(*CALL, "module")
    take_turns = turns.min().over(CALL) > 1
    return marks.filter(~take_turns | here.eq_missing(first))


def _of_long_loops(marks: pl.DataFrame, min_iterations: int) -> pl.DataFrame:
    """Return the marks of loops with this many iterations in one of their calls."""
    return marks.filter(pl.len().over(CALL).max().over(LOOP) >= min_iterations)


def _in_order(marks: pl.DataFrame, ops: pl.DataFrame, fewest: int) -> pl.DataFrame:
    """Return the marks that begin an iteration, with its ``length`` and ``ends``.

    In a loop, most iterations call the same ops in the same order. Code without a loop
    may call one op often, with others between.

    An iteration is a part, from mark to mark, that has the order of most, and the part
    right after one, which may have been left early: if that was left early itself, only
    one that begins as others do. Where a part does not end as others do, the loop ends
    with it. A loop that has another around it is found in several rows of iterations: a
    row of one is no loop, and one row has the ``fewest``.

    Example: ``mul add mul add mul add mul add sin mul exp`` are four iterations.
    """
    length = (pl.col("ts").shift(-1) - pl.col("ts")).over(_LINE)
    row = (~pl.col("ends")).shift(1, fill_value=False).cum_sum().over(_LINE)
    in_row = (*_LINE, "in_row")
    after = (pl.col("usual") & pl.col("whole")).shift(1, fill_value=False)
    after |= pl.col("usual").shift(1, fill_value=False) & pl.col("begins")
    near = pl.col("usual") | after
    since, until = pl.col("usual").cum_sum() > 0, near.cum_sum(reverse=True) > 0
    iterations = pl.col("iteration").sum().over(in_row)
    return (
        _parts(marks, ops)
        .with_columns(length=length, in_row=row)
        .with_columns(iteration=(since & until).over(in_row))
        .filter(
            pl.col("iteration")
            & (iterations > 1)
            & (iterations.max().over(_LINE) >= fewest)
        )
    )


def _parts(marks: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return marks with whether the ops up to the next are ``usual``, and their ends.

    An order is that one op comes right after another. It counts in how many parts of
    all calls it is found, without those that were left early. A part is ``usual`` if
    half of its order is, what comes after the median number of ops aside. It ``begins``
    as most do; it ``ends`` as others do, or early after nothing but what others do.
    """
    ops = ops.sort("thread", "ts").with_row_index("at")
    name = ops["name"].to_physical().cast(pl.Int64)
    order = pl.lit(name * 2**32 + name.shift(-1, fill_value=0))
    at, count, median = pl.col("at"), pl.col("count"), pl.col("median")
    # After the last mark of a call the loop may go on for as many ops as usual.
    last = pl.min_horizontal(median, ops.height - at)
    parts = (
        marks.join(
            ops.select("id", at.cast(pl.Int64)),
            on="id",
            how="left",
            maintain_order="left",
        )
        .with_columns(count=(at.shift(-1) - at).over(_LINE))
        .with_columns(median=count.median().ceil().cast(pl.Int64).over(_MARK))
        .with_columns(count=count.fill_null(last))
        .with_columns(whole=count >= _SHORT * median)
        .with_columns(wholes=pl.col("whole").sum().over(_MARK))
        .with_row_index("part")
    )
    first = pl.col("number") < median
    looked_at = pl.min_horizontal(count - 1, _UNUSUAL * median)
    having = pl.col("part").filter("whole").n_unique()
    usual, branch = pl.col("usual"), pl.col("branch")
    by_part = (
        parts.select(
            *_MARK,
            *("part", "at", "median", "whole", "wholes"),
            # Calls may be nested deeply: of a long part its beginning and its end do.
            number=pl.concat_list(pl.int_ranges(0, looked_at), count - 1),
        )
        .explode("number")
        .with_columns(order=order.gather(at + pl.col("number")))
        .with_columns(share=having.over(*_MARK, "order") / pl.col("wholes"))
        .with_columns(usual=pl.col("share") > _MOST, branch=pl.col("share") >= _BRANCH)
        .group_by("part")
        .agg(
            usual=usual.filter(first).mean() >= _USUAL,
            begins=usual.first(),
            ends=branch.last() | branch.head(pl.len() - 1).all(),
        )
    )
    return parts.join(by_part, on="part", how="left", maintain_order="left")


def _marks(trace: Trace, ops: pl.DataFrame, min_iterations: int) -> pl.DataFrame:
    """Return the ops that one call makes as often as there are iterations.

    Without stacks, where calls are not known, only ops that sync are marks: others come
    again in every layer, and a layer is what is between ops that are not in the loop.
    """
    fewest = _fewest(min_iterations)
    if trace.frames.height:
        often = pl.len().over("step", *_PLACE, "name") >= fewest
        ops = ops.filter(often)
        if not ops.height:
            return ops
        ops = ops.with_columns(call=_calls(trace, ops, fewest))
    else:
        ops = ops.with_columns(call=_layers(ops)).filter("syncs")
    times = pl.len().over(*CALL, "name")
    repeated = ops.with_columns(times=times).filter(pl.col("times") >= fewest)
    if not repeated.height:
        return repeated
    return repeated.join(
        _iteration_counts(repeated), on=[*CALL, "times"], how="semi", nulls_equal=True
    )


def _fewest(min_iterations: int) -> int:
    """Return the minimum number of iterations of one call of a loop.

    Some have fewer than others: an expert that no token chose may be skipped.
    """
    return max(2, min_iterations // 2)


def _layers(ops: pl.DataFrame) -> pl.Series:
    """Return a number for each op that tells the loops of a step apart.

    The op that syncs most often cuts the ops into parts. A part with ops that most
    others do not have is the last of its loop: what follows belongs to the next one.
    """
    sync = ops.filter("syncs")["name"].cast(pl.String).mode().sort().first()
    marks = text("name").eq_missing(pl.lit(sync, pl.String))
    part = marks.cum_sum().over("step")
    line = ops.select("step", "ts", "name").with_row_index("row").sort("ts")
    line = line.with_columns(part=part)
    names = line.select("step", "part", "name").unique()
    parts = names.select("step", "part").unique().sort("step", "part")
    rare = names.group_by("name").agg(pl.len()).filter(pl.col("len") < parts.height / 2)
    last = names.join(rare, on="name").select("step", "part").unique()
    ends = parts.join(last.with_columns(end=1), on=["step", "part"], how="left")
    call = pl.col("end").fill_null(0).cum_sum().shift(1, fill_value=0).over("step")
    calls = ends.sort("step", "part").with_columns(call=call.cast(pl.UInt32))
    called = line.join(calls, on=["step", "part"], how="left", nulls_equal=True)
    return called.sort("row")["call"]


def _iteration_counts(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the number of iterations of each call, as ``times``.

    One op for each count is tried as the mark: from one to the next the same ops must
    be called, each as often as usual. Of marks that fit nearly as well as the best, the
    one that is seen most often counts.
    """
    mark = (
        ops.sort("ts")
        .unique([*CALL, "times"], keep="first", maintain_order=True)
        .select(*CALL, "times", mark="name")
    )
    part = (pl.col("name") == pl.col("mark")).cum_sum().over(*_TRIED)
    parts = (
        ops.select(*CALL, "ts", "name")
        .join(mark, on=CALL, nulls_equal=True)
        .sort("ts")
        .with_columns(part=part)
        # Before the first mark and after the last there are ops outside of the loop.
        .filter(pl.col("part") > 0, pl.col("part") < pl.col("times"))
    )
    best = pl.col("score").max().over(CALL)
    return (
        _scores(parts)
        .filter(pl.col("score") >= best - _AS_GOOD)
        .group_by(CALL)
        .agg(times=pl.col("times").max())
    )


def _scores(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the similarity of the parts into which each mark cuts a call, up to 1.

    For each op that is the share of parts which call it as often as most do. Parts that
    are much shorter than usual are iterations that were left early; they are not looked
    at, but the more of them there are, the less likely is the mark.
    """
    lengths = parts.group_by(*_TRIED, "part").agg(length=pl.len())
    usual = pl.col("length").median().over(_TRIED)
    whole = lengths.with_columns(whole=pl.col("length") >= usual * _SHORT)
    share, number = pl.col("whole").mean(), pl.col("whole").sum()
    whole = whole.with_columns(share=share.over(_TRIED), number=number.over(_TRIED))
    alike = pl.col("weight") * pl.col("same") / pl.col("number")
    return (
        parts.join(whole.filter("whole"), on=[*_TRIED, "part"], nulls_equal=True)
        .group_by(*_TRIED, "name", "part", "share", "number")
        .agg(count=pl.len())
        .group_by(*_TRIED, "name", "share", "number")
        .agg(
            weight=pl.col("count").sum(),
            same=(pl.col("count") == pl.col("count").mode().max()).sum(),
        )
        .group_by(*_TRIED, "share")
        .agg(score=alike.sum() / pl.col("weight").sum())
        .with_columns(score=pl.col("score") * (1 + pl.col("share")) / 2)
    )


def _launching(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the outermost ops of the forward that start work on the GPU."""
    ops, calls = trace.ops, trace.runtime
    root = called_ops(trace)[calls["op"]]
    kernels = sums_of(root, calls["kernels"].cast(pl.Int64), ops.height)
    nowhere = constant(value=False, count=ops.height, dtype=pl.Boolean)
    syncs = nowhere.scatter(
        root.filter(calls["call"] == "sync").drop_nulls(), values=True
    )
    # These are outermost ops, and an op's id is its row.
    rows = rows_where(kernels > 0)
    phase = ops["phase"][rows]
    other = reduce(or_, (phase == name for name in _NO_LOOP))
    rows = rows.filter(
        ops["forward"][rows].is_null() & ~ops["compiling"][rows] & ~other
    )
    columns = ["id", "name", "step", *_PLACE, "thread", "ts", "dur"]
    launching = ops[columns][rows].with_columns(syncs=syncs[rows])
    return in_steps(launching, trace, steady)


def _calls(trace: Trace, ops: pl.DataFrame, fewest: int) -> pl.Series:
    """Return for each op the call of a user's function, or of a module, around it."""
    end = END.alias("end")
    frames = _callers(trace, fewest)
    rows = pl.concat(
        [
            frames.select("thread", "ts", end, frame="id", row=pl.lit(None, pl.UInt32)),
            ops.with_row_index("row").select(
                "thread", "ts", end, pl.lit(None, pl.UInt32).alias("frame"), "row"
            ),
        ]
    ).sort(pl.col("thread"), pl.col("ts"), -pl.col("end"), maintain_order=True)
    around = nearest(parents(rows["thread"], rows["end"]), rows["frame"].is_not_null())
    called = rows.with_columns(call=rows["frame"][around]).drop_nulls("row")
    return called.sort("row")["call"]


def _callers(trace: Trace, fewest: int) -> pl.DataFrame:
    """Return the calls of the user's functions and of modules that may hold a loop.

    A module or function that one call calls this often, such as a cell of an RNN for
    each moment, is what the loop goes over: the loop is in the caller.
    """
    modules = named_like(trace.frames, r"^nn\.Module: ")
    frames = (
        trace.frames[["id", "name", "thread", "ts", "dur"]]
        .with_columns(module=modules)
        .filter(trace.frames["own"] | modules)
        .sort(pl.col("thread"), pl.col("ts"), -END, maintain_order=True)
    )
    around = parents(frames["thread"], frames.select(END).to_series())
    repeated = pl.len().over("around", "name") >= fewest
    called = pl.col("around").is_not_null()
    return frames.with_columns(around=around).filter(~(repeated & called))

"""Handwritten attention: matmul, softmax, matmul.

It is recognised by shapes and order: of two batched matmuls on one thread, in a row or
with those of a bias between them, the first computes scores, an op in between turns
them into weights, and the second applies these. What is done to the scores in between,
such as scales, masks, casts and dropout, belongs to it. What else is computed there, as
a mask or a bias, stays.

Autocast calls an op that it casts for again, inside of itself, and so do the transforms
of torch.func, which add dims: of ops inside each other the innermost counts.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import (
    NOTHING,
    at_owner,
    by_place,
    during,
    has_named,
    host_totals,
    host_work,
    inside,
    named,
    nobody,
    outermost_ops,
    owned,
    plain,
)
from traceq.analysis.patterns.attention import SDPA
from traceq.common.expressions import END, known, nth, rows_where
from traceq.graph.nesting import INDEX, nearest, nearest_of, upwards

if TYPE_CHECKING:
    from traceq.model.trace import Trace

# Index of the first of the two matrices among a batched matmul's inputs.
_MATMULS = {"aten::bmm": 0, "aten::baddbmm": 1}
_SOFTMAX = "aten::_softmax"
# A softmax may itself be written by hand: the exponentials, divided by their sum.
_EXPONENTIAL = "aten::exp"
_WEIGHING = (_SOFTMAX, _EXPONENTIAL)
_SUM = ("aten::sum",)
# The logarithms of weights, or what is subtracted for them: no division follows.
_LOGARITHMS = ("aten::_log_softmax", "aten::logsumexp")
_DIVIDE = ("aten::div", "aten::div_", "aten::mul", "aten::mul_")
_LARGEST = ("aten::max", "aten::amax")
_OF_SOFTMAX = (_EXPONENTIAL, *_SUM, *_DIVIDE, *_LOGARITHMS, *_LARGEST)
_AROUND_MATMUL = ("aten::matmul", "aten::einsum")
# Batch and heads, rows, columns.
_BATCHED = 3
# Matmuls between that of the scores and the softmax, which compute a bias: two, one for
# each axis of an image.
_SKIPPED = 2
# Inputs of a softmax and of the matmuls around it, and the ops of the latter.
_GIVEN = ("inputs", "inputs_before", "inputs_after", "plain_before", "plain_after")
_NOTHING = (None, None)
_SHAPES = {
    "scores": pl.List(pl.Int64()),
    "type": pl.String(),
    **{role: pl.List(pl.Int64()) for role in ("query", "key", "value")},
}


class _Matrices(NamedTuple):
    """The operands of a batched matmul."""

    left: list[int]
    right: list[int]
    type: str | None


def writes_attention(trace: Trace) -> bool:
    """Return whether a program has handwritten attention, in forward or backward."""
    there = (has_named(trace.ops, names) for names in (_MATMULS, _WEIGHING))
    return all(there) and _spans(trace).height > 0


def handwritten_attention(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return handwritten attention, one row for the same shapes at the same place.

    A row has ``scores``, the shape of the softmax's input, ``type``, the shapes of
    ``query``, ``key`` and ``value`` as [1, batch and heads, sequence, head dim], what
    ``by_place`` and ``host_totals`` add, whether there is a ``backward``, and the ops
    of the first call in their order: names as ``steps``, shapes of their inputs as
    ``given``. ``first`` and ``last`` are the matmuls of one call, ``weighs`` is what
    is between them.
    """
    spans = _spans(trace)
    parts = _parts(trace, spans)
    owners = parts["owner"]
    # Kernels have dozens of columns: these alone are asked for.
    ran = owned(trace, kernels[["id", "op", "ts", "dur"]], owners)
    calls = (
        spans.drop("thread", "start", "end", "exponential")
        .join(host_work(trace, owners).drop("start", "end"), on="owner")
        .join(_runs(trace, parts), on="owner")
    )
    first = pl.col("owner").is_first_distinct()
    totals = host_totals() | {"spans": pl.col("went").filter(first).explode()}
    rows = by_place(
        at_owner(trace, ran).join(calls, on="owner"),
        ("scores", "type", "query", "key", "value"),
        **totals,
        backward=pl.col("back").any(),
        first=pl.col("owner").min(),
        last=pl.col("last").first(),
        weighs=pl.col("weighs").first(),
    )
    steps = _steps(trace, owners, rows["first"])
    return rows.join(steps, on="first", how="left", maintain_order="left")


def within_handwritten(trace: Trace, kernels: pl.DataFrame) -> pl.Series:
    """Return the ids of kernels launched between the two matmuls, in both passes."""
    spans = _spans(trace).select("owner", "thread", "start", "end")
    return owned(trace, kernels[["id", "op"]], during(trace, spans))["id"]


def handwritten_softmaxes(trace: Trace, kernels: pl.DataFrame) -> pl.Series:
    """Return the ids of kernels of a softmax written by hand, in both passes.

    It begins with what makes the exponentials small, the largest score as a rule, and
    ends with the division by their sum.
    """
    spans = _spans(trace)
    by_hand = spans.filter("exponential") if spans.height else spans
    if not by_hand.height:
        return kernels["id"].clear()
    ops = trace.ops
    owners = during(trace, by_hand.select("owner", "thread", "start", "end"))
    rows = rows_where(named(ops, _OF_SOFTMAX) & owners.is_not_null())
    dims = trace.inputs["dims"][ops["inputs"][rows]]
    divides = named(ops, _DIVIDE)[rows]
    parts = (
        ops[["ts", "dur"]][rows]
        .with_columns(owner=owners[rows], divides=divides, dims=dims)
        .with_columns(first=nth("dims", 0), second=nth("dims", 1))
        .join(by_hand.select("owner", "thread", "scores"), on="owner")
        .filter(
            pl.col("first") == pl.col("scores"),
            # By the sum of each row, not by a scale or a mask.
            ~pl.col("divides") | (pl.col("second").list.last() == 1),
        )
        .group_by("owner", "thread")
        # What begins as the division ends is not of it.
        .agg(start=pl.col("ts").min(), end=END.max() - 1)
    )
    return owned(trace, kernels[["id", "op"]], during(trace, parts))["id"]


def _parts(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """Return for each op the ``owner`` that it is a part of, and the ``run`` of parts.

    A part begins with the outermost op between the matmuls: one of the two, or one that
    takes something as large as the scores, or whose inputs are unknown. Runs are
    interrupted by what is no part.
    """
    ops = trace.ops
    owners = during(trace, spans.select("owner", "thread", "start", "end"))
    rows = rows_where(owners.is_not_null())
    outermost = rows.filter(owners[ops["parent"][rows]].is_null())
    chosen = ops[["id", "ts", "inputs"]][outermost].with_columns(
        owner=owners[outermost]
    )
    chosen = chosen.join(spans.select("owner", "scores"), on="owner")
    matmul = pl.col("id").is_in(pl.concat([spans["owner"], spans["last"]]).implode())
    parts = (
        chosen.join(_of_scores(trace, chosen), on=["inputs", "scores"], how="left")
        .sort("owner", "ts")
        .with_columns(part=matmul | pl.col("of_scores").fill_null(value=True))
        .with_columns(run=(~pl.col("part")).cum_sum().cast(INDEX))
        .filter("part")
    )
    top = nearest_of(upwards(ops["parent"]), parts["id"])
    nothing = nobody(trace)
    return pl.DataFrame(
        {
            item: nothing.scatter(parts["id"], parts[item])[top]
            for item in ("owner", "run")
        }
    )


def _of_scores(trace: Trace, chosen: pl.DataFrame) -> pl.DataFrame:
    """Return whether any of the inputs is as large as the scores."""
    distinct = chosen[["inputs", "scores"]].drop_nulls().unique(maintain_order=True)
    dims = trace.inputs["dims"][distinct["inputs"]].to_list()
    fits = [
        any(
            None not in shape and prod(shape) == prod(scores)
            for shape in shapes or ()
            if shape
        )
        for shapes, scores in zip(dims, distinct["scores"].to_list(), strict=True)
    ]
    return distinct.with_columns(of_scores=pl.Series(fits, dtype=pl.Boolean))


def _runs(trace: Trace, parts: pl.DataFrame) -> pl.DataFrame:
    """Return when the host was in the parts of each owner, as a list ``went``."""
    rows = rows_where(parts["owner"].is_not_null())
    return (
        trace.ops[["ts", "dur"]][rows]
        .hstack(parts[rows])
        .group_by("owner", "run")
        .agg(start=pl.col("ts").min(), end=END.max())
        .sort("owner", "start")
        .group_by("owner", maintain_order=True)
        .agg(went=pl.struct("start", "end"))
    )


def _steps(trace: Trace, owners: pl.Series, first: pl.Series) -> pl.DataFrame:
    """Return the outermost ops of the first calls, their names and shapes as lists."""
    among = known(owners.is_in(first.implode()))
    rows = rows_where(among)
    rows = rows.filter(~known(among[trace.ops["parent"][rows]]))
    ops = trace.ops[["name", "inputs", "ts"]][rows]
    called = pl.DataFrame(
        {
            "first": owners[rows],
            "ts": ops["ts"],
            "steps": plain(trace.ops, ops["name"]),
            "given": trace.inputs["dims"][ops["inputs"]],
        }
    )
    return called.sort("ts").group_by("first").agg("steps", "given")


@cached_per_trace
def _spans(trace: Trace) -> pl.DataFrame:
    """Return attention by its first matmul, the ``owner``, from start to end."""
    chosen = _innermost(trace)
    chosen = chosen.with_columns(matmul=pl.col("plain").is_in(list(_MATMULS)))
    at = pl.when("matmul").then("at")
    near = chosen.with_row_index("at").select(
        before=at.forward_fill().over("thread"),
        after=at.backward_fill().over("thread"),
        previous=at.shift(1).forward_fill().over("thread"),
    )
    between = pl.concat(
        _around(chosen, near, skipped) for skipped in range(_SKIPPED + 1)
    )
    fitting = _fitting(trace, between) if between.height else NOTHING
    if not fitting.height:
        return NOTHING
    nearest_first = fitting.sort("skipped", maintain_order=True)
    fitting = nearest_first.unique("id", keep="first", maintain_order=True)
    return _softmaxes(trace, _with_times(trace, fitting.sort("thread", "ts")))


def _around(chosen: pl.DataFrame, near: pl.DataFrame, skipped: int) -> pl.DataFrame:
    """Return what may weigh with the matmuls around it, less ``skipped`` before."""
    before = near["before"]
    for _ in range(skipped):
        before = near["previous"][before]
    rows = chosen[["id", "plain", "inputs"]]
    sides = {"before": before, "after": near["after"]}
    columns = (
        rows[side].select(pl.all().name.suffix(f"_{name}"))
        for name, side in sides.items()
    )
    return (
        pl.concat([chosen, *columns], how="horizontal")
        .with_columns(skipped=pl.lit(skipped))
        .filter(~pl.col("matmul"), *(side.is_not_null() for side in sides.values()))
    )


def _innermost(trace: Trace) -> pl.DataFrame:
    """Return the matmuls and what may weigh, in order, without those around others."""
    ops = trace.ops
    rows = rows_where(named(ops, [*_MATMULS, *_WEIGHING]) & ~ops["compiling"])
    around = inside(trace, rows)[ops["parent"][rows]].drop_nulls()
    innermost = ops[["id", "name", "thread", "ts", "inputs"]][rows]
    innermost = innermost.filter(~innermost["id"].is_in(around.implode()))
    return innermost.with_columns(plain(ops, innermost["name"])).sort("thread", "ts")


def _fitting(trace: Trace, between: pl.DataFrame) -> pl.DataFrame:
    """Return softmaxes whose scores one matmul makes, and the next one uses.

    Added are _SHAPES, which are told once for the same inputs.
    """
    distinct = between.select(_GIVEN).unique(maintain_order=True)
    input_rows = pl.concat(distinct[name] for name in _GIVEN[:3]).drop_nulls().unique()
    arguments = trace.inputs[["dims", "types"]][input_rows].rows()
    inputs = dict(zip(input_rows.to_list(), arguments, strict=True))
    shape_rows = []
    for softmax, before, after, first, last in distinct.iter_rows():
        dims, _ = inputs.get(softmax, _NOTHING)
        scores = dims[0] if dims else None
        makes = _matrices(_MATMULS[first], *inputs.get(before, _NOTHING))
        uses = _matrices(_MATMULS[last], *inputs.get(after, _NOTHING))
        fits = _shapes(scores, makes, uses) if scores and makes and uses else None
        shape_rows.append(fits or (None,) * len(_SHAPES))
    shapes = pl.DataFrame(shape_rows, schema=_SHAPES, orient="row")
    return between.join(
        pl.concat([distinct, shapes], how="horizontal").drop_nulls("scores"),
        on=_GIVEN,
        nulls_equal=True,
        maintain_order="left",
    )


def _matrices(
    at: int, dims: list[list[int]] | None, types: list[str] | None
) -> _Matrices | None:
    """Return the two matrices of a matmul, if they are batches of them."""
    pair = (dims or [])[at : at + 2]
    if len(pair) < 2 or any(len(group or ()) < _BATCHED for group in pair):  # noqa: PLR2004
        return None
    return _Matrices(pair[0], pair[1], types[at] if types and at < len(types) else None)


def _shapes(
    scores: list[int], makes: _Matrices, uses: _Matrices
) -> tuple[object, ...] | None:
    """Return the shapes of attention, from the matmuls around a softmax, if they fit.

    einsum multiplies in the order in which it is given its operands: the scores, and
    what is multiplied by them, may be transposed.
    """
    batch, _, width = makes.left[:3]
    # Unknown sizes do not fit the op's schema.
    if None in (*scores, batch) or len(scores) < _BATCHED:
        return None
    if min(scores) <= 0 or batch <= 0:
        return None
    keys, rows = scores[-1], prod(scores[:-1])
    queries = rows // batch
    made = (makes.left[:3], makes.right[:3])
    straight = ([batch, queries, width], [batch, width, keys])
    turned = ([batch, keys, width], [batch, width, queries])
    used = uses.left[:3] == [batch, queries, keys]
    used_turned = uses.right[:3] == [batch, keys, queries]
    if batch * queries != rows or made not in (straight, turned):
        return None
    if not (used or used_turned):
        return None
    return (
        scores,
        makes.type,
        [1, batch, queries, width],
        [1, batch, keys, width],
        [1, batch, keys, uses.right[2] if used else uses.left[1]],
    )


def _softmaxes(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans around a softmax, written by hand or not, each once.

    Where it is, the exponentials of the scores are added up and divided by the sum, or
    what they are of are logarithms already.
    """
    ops = trace.ops
    spans = spans.sort("owner", "exponential", "at").unique(
        "owner", keep="first", maintain_order=True
    )
    by_hand = spans.filter(pl.col("exponential"))
    if not by_hand.height:
        return spans.drop("at")
    owners = during(trace, by_hand.select("owner", "thread", "start", "end"))
    since = pl.col("ts") > pl.col("at")
    among = ops.select("inputs", "ts", owner=owners).with_columns(
        sums=named(ops, _SUM),
        divides=named(ops, _DIVIDE),
        logarithms=named(ops, _LOGARITHMS),
    )
    parts = pl.col("sums", "divides", "logarithms")
    whole = (
        among.filter(pl.col("owner").is_not_null(), pl.any_horizontal(parts))
        .join(trace.inputs.select("dims", inputs="id"), on="inputs")
        .join(by_hand.select("owner", "scores", "at"), on="owner")
        .filter(
            pl.col("dims").list.first() == pl.col("scores"),
            since | pl.col("logarithms"),
        )
        .group_by("owner")
        .agg(parts.any())
        .filter((pl.col("sums") & pl.col("divides")) | pl.col("logarithms"))
    )
    known_ones = pl.col("owner").is_in(whole["owner"].implode())
    return spans.filter(~pl.col("exponential") | known_ones).drop("at")


def _with_times(trace: Trace, softmaxes: pl.DataFrame) -> pl.DataFrame:
    ops = trace.ops
    in_matmul = nearest(ops["parent"], named(ops, _AROUND_MATMUL))
    in_sdpa = outermost_ops(trace, (SDPA,))

    def around(ids: pl.Series) -> pl.Series:
        outer = in_matmul[ids]
        return outer.zip_with(outer.is_not_null(), ids)

    first, last = around(softmaxes["id_before"]), around(softmaxes["id_after"])

    return (
        softmaxes.with_columns(
            owner=first,
            last=last,
            start=ops["ts"][first],
            end=ops["ts"][last] + ops["dur"][last],
        )
        .filter(in_sdpa[softmaxes["id"]].is_null())
        .select(
            "thread",
            "start",
            "end",
            "scores",
            "owner",
            "last",
            pl.col("id").alias("weighs"),
            *("type", "query", "key", "value"),
            at="ts",
            exponential=pl.col("plain") == _EXPONENTIAL,
        )
    )

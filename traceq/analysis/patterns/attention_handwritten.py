"""Attention that a program writes itself: matmul, softmax, matmul.

Seen by shapes and order: of two batched matmuls in a row on one thread the first makes
scores, an op in between turns them into weights, and the second uses these. Whatever
else is between the two, as scales, masks, casts and dropout, belongs to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import (
    at_owner,
    by_place,
    during,
    has_named,
    host_totals,
    host_work,
    named,
    owned,
    plain_names,
)
from traceq.analysis.patterns.attention import SDPA
from traceq.expressions import known
from traceq.graph.nesting import nearest

if TYPE_CHECKING:
    from traceq.trace import Trace

# Which input of a batched matmul is the first of its two matrices.
_MATMULS = {"aten::bmm": 0, "aten::baddbmm": 1}
_SOFTMAX = "aten::_softmax"
# A softmax may itself be written by hand: the exponentials, divided by their sum.
_EXPONENTIAL = "aten::exp"
_WEIGHING = (_SOFTMAX, _EXPONENTIAL)
_SUM = ("aten::sum",)
_DIVIDE = ("aten::div", "aten::div_", "aten::mul", "aten::mul_")
_AROUND_MATMUL = ("aten::matmul", "aten::einsum")


def writes_attention(trace: Trace) -> bool:
    """Return whether a program writes attention itself, forward or not."""
    there = (has_named(trace.ops, names) for names in (_MATMULS, _WEIGHING))
    return all(there) and _spans(trace).height > 0


def handwritten_attention(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return attention written by hand, one row for the same shapes at the same place.

    A row has ``scores``, the shape of the softmax's input, ``type``, the shapes of
    ``query``, ``key`` and ``value`` as [1, batch and heads, sequence, head dim], what
    ``by_place`` and ``host_totals`` add, whether there is a ``backward``, and the ops
    of the first call in their order: names as ``steps``, shapes of their inputs as
    ``given``.
    """
    spans = _spans(trace)
    owners = during(trace, spans.select("owner", "thread", "start", "end"))
    ran = owned(trace, kernels, owners)
    found = spans.drop("thread", "start", "end").join(
        host_work(trace, owners), on="owner"
    )
    rows = by_place(
        at_owner(trace, ran).join(found, on="owner"),
        ("scores", "type", "query", "key", "value"),
        **host_totals(),
        backward=pl.col("back").any(),
        first=pl.col("owner").min(),
    )
    steps = _steps(trace, owners, rows["first"])
    return rows.join(steps, on="first", how="left", maintain_order="left")


def _steps(trace: Trace, owners: pl.Series, first: pl.Series) -> pl.DataFrame:
    """Return the outermost ops of the first calls, their names and shapes as lists."""
    among = known(owners.is_in(first.implode()))
    nested = known(among[trace.ops["parent"]])
    return (
        trace.ops.with_columns(first=owners)
        .filter(among & ~nested)
        .join(plain_names(trace.ops), on="name")
        .join(trace.inputs.select("dims", inputs="id"), on="inputs", how="left")
        .sort("ts")
        .group_by("first")
        .agg(steps="plain", given="dims")
    )


@cached_per_trace
def _spans(trace: Trace) -> pl.DataFrame:
    """Return attention by its first matmul, the ``owner``, from start to end."""
    ops = trace.ops
    wanted = named(ops, [*_MATMULS, *_WEIGHING]) & ~ops["compiling"]
    found = (
        ops[["id", "name", "thread", "ts", "inputs"]]
        .filter(wanted)
        .join(plain_names(ops), on="name", maintain_order="left")
        .sort("thread", "ts")
        .with_columns(matmul=pl.col("plain").is_in(list(_MATMULS)))
    )
    thread, kept = pl.col("thread"), pl.col("id", "plain", "inputs", "matmul")
    between = found.with_columns(
        kept.shift(1).name.suffix("_before"), kept.shift(-1).name.suffix("_after")
    ).filter(
        ~pl.col("matmul"),
        "matmul_before",
        "matmul_after",
        thread == thread.shift(1),
        thread == thread.shift(-1),
    )
    shapes = trace.inputs.select("dims", inputs="id")
    scores = between.join(shapes, on="inputs", how="left", maintain_order="left")
    return _softmaxes(
        trace,
        _with_times(
            trace,
            _fitting(
                scores.with_columns(
                    pl.col("dims").list.first().alias("scores"),
                    *_matrices(trace, between, "before"),
                    *_matrices(trace, between, "after"),
                )
            ),
        ),
    )


def _matrices(trace: Trace, between: pl.DataFrame, side: str) -> list[pl.Series]:
    """Return the two matrices of the matmul on a side, and their dtype."""
    at = pl.col(f"plain_{side}").replace_strict(_MATMULS, default=0)
    return (
        between.join(
            trace.inputs.select("dims", "types", given="id"),
            left_on=f"inputs_{side}",
            right_on="given",
            how="left",
            maintain_order="left",
        )
        .select(
            pl.col("dims").list.get(at, null_on_oob=True).alias(f"left_{side}"),
            pl.col("dims").list.get(at + 1, null_on_oob=True).alias(f"right_{side}"),
            pl.col("types").list.get(at, null_on_oob=True).alias(f"type_{side}"),
        )
        .get_columns()
    )


def _fitting(found: pl.DataFrame) -> pl.DataFrame:
    """Return softmaxes whose scores one matmul makes, and the next one uses.

    einsum multiplies in the order in which it is given its operands: the scores, and
    what is multiplied by them, may be transposed. Added are ``batch`` (and heads),
    ``queries``, ``keys``, ``width`` (of a head) and ``value_width``.
    """
    scores = pl.col("scores")
    rows = scores.list.eval(pl.element().product()).list.first() // scores.list.last()

    def size(name: str, index: int) -> pl.Expr:
        return pl.col(name).list.get(index, null_on_oob=True)

    found = found.filter(
        scores.list.len() >= 3,  # noqa: PLR2004 - batches of matrices
        scores.list.eval(pl.element().min()).list.first() > 0,
    ).with_columns(
        batch=size("left_before", 0),
        keys=scores.list.last(),
        queries=rows // size("left_before", 0),
        width=size("left_before", 2),
    )
    batch, queries, keys = pl.col("batch"), pl.col("queries"), pl.col("keys")

    def shaped(name: str, *sizes: pl.Expr) -> pl.Expr:
        return pl.all_horizontal(
            size(name, index) == one for index, one in enumerate((batch, *sizes))
        )

    width = pl.col("width")
    made = shaped("left_before", queries, width) & shaped("right_before", width, keys)
    turned = shaped("left_before", keys, width) & shaped("right_before", width, queries)
    used = shaped("left_after", queries, keys)
    used_turned = shaped("right_after", keys, queries)
    return found.filter(
        batch * queries == rows, known(made | turned), known(used | used_turned)
    ).with_columns(
        value_width=pl.when(known(used))
        .then(size("right_after", 2))
        .otherwise(size("left_after", 1))
    )


def _softmaxes(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans around a softmax, written by hand or not.

    Where it is, the exponentials of the scores are added up and divided by the sum.
    """
    ops = trace.ops
    by_hand = spans.filter(pl.col("exponential"))
    if not by_hand.height:
        return spans.drop("exponential", "at")
    owners = during(trace, by_hand.select("owner", "thread", start="at", end="end"))
    among = ops.select("inputs", owner=owners).with_columns(
        sums=named(ops, _SUM), divides=named(ops, _DIVIDE)
    )
    whole = (
        among.filter(pl.col("owner").is_not_null(), pl.col("sums") | pl.col("divides"))
        .join(trace.inputs.select("dims", inputs="id"), on="inputs")
        .join(by_hand.select("owner", "scores"), on="owner")
        .filter(pl.col("dims").list.first() == pl.col("scores"))
        .group_by("owner")
        .agg(pl.col("sums", "divides").any())
        .filter("sums", "divides")
    )
    known_ones = pl.col("owner").is_in(whole["owner"].implode())
    return spans.filter(~pl.col("exponential") | known_ones).drop("exponential", "at")


def _with_times(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    ops = trace.ops
    in_matmul = nearest(ops["parent"], named(ops, _AROUND_MATMUL))
    in_sdpa = nearest(ops["parent"], named(ops, [SDPA]))

    def around(ids: pl.Series) -> pl.Series:
        outer = in_matmul[ids]
        return outer.zip_with(outer.is_not_null(), ids)

    first, last = around(found["id_before"]), around(found["id_after"])

    def shaped(sequence: str, width: str) -> pl.Expr:
        # As long as the others: older Polars do not stretch a literal to no rows.
        one = pl.repeat(1, pl.len(), dtype=pl.Int64)
        return pl.concat_list(one, "batch", sequence, width)

    return (
        found.with_columns(
            owner=first,
            start=ops["ts"][first],
            end=(ops["ts"] + ops["dur"])[last],
        )
        .filter(in_sdpa[found["id"]].is_null())
        .select(
            "thread",
            "start",
            "end",
            "scores",
            "owner",
            at="ts",
            exponential=pl.col("plain") == _EXPONENTIAL,
            type="type_before",
            query=shaped("queries", "width"),
            key=shaped("keys", "width"),
            value=shaped("keys", "value_width"),
        )
    )

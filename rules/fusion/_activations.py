"""Activations that are written op by op, recognised by the order of their ops."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions, ownership
from traceq.linter import (
    END,
    NOTHING,
    SIZES,
    has_named,
    named,
    nth,
    roofline_ns,
    text,
)
from traceq.model import dtypes

if TYPE_CHECKING:
    from traceq.linter import Gpu, Row, Trace, View

GELU_TANH, GELU, SILU = 'F.gelu(x, approximate="tanh")', "F.gelu(x)", "F.silu(x)"
# The op that makes an activation what it is.
_ROOTS = ("aten::tanh", "aten::erf", "aten::sigmoid")
# The order of ops, a letter each: s and d multiply and divide by a number, m and a
# multiply and add two tensors, b adds a number, p is the third power.
_ORDERS = {
    # 0.5 * x * (1 + tanh(c * (x + 0.044715 * x**3))), with the half before or after;
    # and the same as 0.5 * x * (1 + tanh(c * x * (1 + 0.044715 * x * x))).
    GELU_TANH: r"s(?:ps|smm|mms)astbm|(?:ps|smm)astb(?:sm|ms)|s(?:ss|s)mbmtbm",
    # The exact one: half of x, times 1 plus erf of x by the root of 2.
    GELU: r"[ds]{2}ebm|[ds]eb(?:sm|ms)",
    SILU: r"gm",
}
_LETTERS = {
    ("mul", "number"): "s",
    ("mul", "tensor"): "m",
    ("div", "number"): "d",
    ("add", "number"): "b",
    ("add", "tensor"): "a",
}
_ALONE = {"tanh": "t", "erf": "e", "sigmoid": "g"}
_CUBE = r"^3\.?0*$"
# A cast by autocast lies between ops of one activation.
_BETWEEN = ("aten::to", "aten::_to_copy")
# The number by which the approximation with tanh is known.
_CONSTANT = "0.0447"
# The product of a value and its own sigmoid: of another value's it is a gate.
OWN_SIGMOID = re.compile(
    r"(?<![\w.])([\w.]+)\s*\*\s*(?:(?:\w+\.)*sigmoid\(\1\)|\1\.sigmoid\(\))"
    r"|\bsigmoid\(([\w.]+)\)\s*\*\s*\2(?![\w.(])"
    r"|(?<![\w.])([\w.]+)\.sigmoid\(\)\s*\*\s*\3(?![\w.(])"
)
# Reading and writing it all, and the backward: gradient, input, result.
_PASSES = {False: 2, True: 5}


def handwritten_activations(view: View) -> pl.DataFrame:
    """Return activations written op by op, grouped by place, call and input.

    A row has ``call``, the one of torch that does the same, ``dims`` and ``type`` of
    the input, ``steps``, the names of the ops, ``backward``, whether there is one, and
    what ``by_place`` and ``host_totals`` add.
    """
    trace = view.trace
    if not has_named(trace.ops, _ROOTS):
        return NOTHING
    found = _found(view)
    if not found.height:
        return NOTHING
    owners = ownership.during(trace, found.select("owner", "thread", "start", "end"))
    host = found.drop("thread", "start", "end").join(
        ownership.host_work(trace, owners), on="owner"
    )
    kernels = view.kernels[["id", "op", "ts", "dur"]]
    ran = ownership.owned(trace, kernels, owners).join(host, on="owner")
    # One whose forward is not in the steps is cut off.
    ran = ran.filter((~pl.col("back")).any().over("owner"))
    return ownership.by_place(
        ownership.at_owner(trace, ran),
        ("call", "dims", "type", "steps", "shown"),
        backward=pl.col("back").any(),
        **ownership.host_totals(),
    )


def fused_share(row: Row, gpu: Gpu, view: View) -> float:
    """Return the share of a row's GPU time that one kernel for each pass saves."""
    size = prod(row["dims"]) * SIZES.get(row["type"], SIZES[dtypes.BFLOAT16])
    one = roofline_ns(
        gpu,
        assumptions.FUSED_EFFICIENCY,
        moved=float(size * _PASSES[row["backward"]]),
        kernels=1 + row["backward"],
    )
    return view.saved_share(
        row["gpu_ns"], None if one is None else one * int(row["calls"])
    )


def _found(view: View) -> pl.DataFrame:
    """Return each activation by its root, the ``owner``, with ``start`` and ``end``."""
    line = _line(view)
    if not line.height:
        return NOTHING
    letters = "".join(line["letter"])
    matches = [
        (call, match.start(), match.end() - 1)
        for call, order in _ORDERS.items()
        for match in re.finditer(order, letters)
    ]
    if not matches:
        return NOTHING
    spans = pl.DataFrame(matches, schema=["call", "first", "last"], orient="row")
    spans = spans.with_columns(row=pl.int_ranges("first", pl.col("last") + 1))
    rows = spans.with_row_index("match").explode("row")
    root = pl.col("letter").is_in([*_ALONE.values()])
    return (
        rows.hstack(line[rows["row"]])
        .group_by("match", maintain_order=True)
        .agg(
            pl.col("call", "thread").first(),
            pl.col("type").first(),
            dims=pl.col("shape").first(),
            alike=(pl.col("shape") == pl.col("shape").first()).all()
            & (pl.col("thread") == pl.col("thread").first()).all(),
            start=pl.col("ts").min(),
            end=END.max(),
            owner=pl.col("id").filter(root).first(),
            steps=text("name").str.strip_prefix("aten::"),
            file=text("file").drop_nulls().first(),
            lines=pl.col("call_line").drop_nulls().unique(),
        )
        .filter("alike")
        .filter(_are_meant(view.trace))
        .with_columns(shown=_has_source(view.trace))
        .drop("match", "alike", "file", "lines")
    )


def _are_meant(trace: Trace) -> pl.Expr:
    """Return whether the source, where it is there, has what the order of ops has not.

    That is the number of the approximation; and of a product that it is of a value and
    its own sigmoid, which nothing but the source tells.
    """
    sources = trace.rank.sources if trace.rank else {}
    files = {file: source.splitlines() for file, source in sources.items()}

    def meant(row: Row) -> bool:
        lines = files.get(row["file"] or "")
        if row["call"] == SILU:
            return any(
                OWN_SIGMOID.search(lines[at - 1])
                for at in row["lines"]
                if lines and 0 < at <= len(lines)
            )
        known = row["call"] != GELU_TANH or not lines
        return known or any(_CONSTANT in line for line in lines or ())

    return pl.struct("call", "file", "lines").map_elements(
        meant, return_dtype=pl.Boolean
    )


def _has_source(trace: Trace) -> pl.Expr:
    sources = trace.rank.sources if trace.rank else {}
    return pl.col("file").cast(pl.String).is_in([*sources]).fill_null(value=False)


def _line(view: View) -> pl.DataFrame:
    """Return the ops that the program calls in the forward, in order, with a letter."""
    trace = view.trace
    called = view.called_ops[view.ops["id"]] == view.ops["id"]
    ops = view.ops.filter(called & view.ops["phase"].ne_missing("backward"))
    columns = ["id", "name", "thread", "ts", "dur", "inputs", "file", "call_line"]
    ops = ops[columns].filter(~named(ops, _BETWEEN)).sort("thread", "ts")
    inputs = trace.inputs[["dims", "types", "values"]][ops["inputs"]]
    first, second = (inputs.select(nth("dims", at)).to_series() for at in (0, 1))
    plain = ops["name"].cast(pl.String).str.strip_prefix("aten::").str.strip_suffix("_")
    kind = (
        pl.when(second.list.len() == 0)
        .then(pl.lit("number"))
        .when(first == second)
        .then(pl.lit("tensor"))
    )
    value = inputs["values"].list.get(1, null_on_oob=True).str.contains(_CUBE)
    letter = pl.lit(".")
    for (name, of), mark in _LETTERS.items():
        is_it = (plain == name) & (pl.col("kind") == of)
        letter = pl.when(is_it).then(pl.lit(mark)).otherwise(letter)
    for name, mark in _ALONE.items():
        letter = pl.when(plain == name).then(pl.lit(mark)).otherwise(letter)
    letter = pl.when((plain == "pow") & value).then(pl.lit("p")).otherwise(letter)
    return (
        ops.with_columns(shape=first, kind=kind)
        .with_columns(inputs.select(type=nth("types", 0)).to_series())
        .with_columns(letter=letter.fill_null("."))
    )

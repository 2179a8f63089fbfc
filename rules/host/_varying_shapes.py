"""Shapes that vary from step to step: what they cost, and what to pad."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.linter import (
    Fix,
    View,
)

from ._shared import own_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

MOST_SIZES = 4
# This many sizes in a few steps are not those of a first or last batch. Heuristic
# threshold.
_MANY_SIZES = 3


class Varying(NamedTuple):
    """Variation of the shapes of an op."""

    text: str
    sizes: tuple[int, ...]
    dims: int
    per_step: float
    """Distinct sizes per step."""
    in_step: bool = False
    """True if they vary from iteration to iteration within a step."""


_NOTHING = Varying("its shapes were not seen before", (), 1, 0)


def is_regular(view: View, row: Mapping[str, Any]) -> bool:
    """Return whether it comes back from step to step."""
    return bool(row["steps"] > 1 and 2 * row["steps"] >= view.steps)


def does_vary(view: View, varying: Varying) -> bool:
    """Return whether sizes vary from step to step, so that any may be a new one.

    Where a step has several iterations, as a generation does, they count as steps.
    """
    return varying.in_step or len(varying.sizes) >= max(_MANY_SIZES, view.steps / 2)


def slow_iterations(calls: pl.DataFrame) -> tuple[int, int]:
    """Return in how many iterations new shapes are slow, and how many there are."""
    expression = pl.struct("step", "iteration")
    slow = expression.filter("slow").n_unique()
    return calls.select(slow.alias("slow"), expression.n_unique().alias("every")).row(0)


def fix(view: View, row: Mapping[str, Any], calls: pl.DataFrame) -> Fix:
    """Return that these calls take what one on a known shape does.

    Both as estimated without the profiler, which slows a call down but no search. Not
    removed is the loading of kernels' code that passes by itself.
    """
    spans = own_time(view, row["ids"])
    repeated = own_time(view, calls.filter(~pl.col("slow"))["op"])
    took, usual = (float(table["estimated"].sum()) for table in (spans, repeated))
    slowed = usual / max(1, int(repeated["recorded"].sum())) if repeated.height else 1.0
    left = len(row["ids"]) * row["usual"] * slowed + row["passing"]
    return Fix(spans=spans, host_share=max(0.0, 1 - left / took) if took else 1.0)


def varying_sizes(view: View, calls: pl.DataFrame) -> Varying:
    """Return which dimensions differ between the steps, and the sizes they take.

    The n-th call of an op in a step is the same layer in all of them, so a dimension
    that differs there varies. Of forward and backward the forward is looked at, whose
    shapes are the program's.
    """
    forward = calls.filter(pl.col("phase") != "backward")
    calls = forward if forward["slow"].any() else calls
    name = calls.filter("slow")["name"].mode().sort()[0]
    calls = calls.filter(pl.col("name") == name)
    varying = _varying(name, _sizes(view, calls, "step"))
    if len(varying.sizes) > 1:
        return varying
    # Within a step, where it has several iterations.
    slow, every = slow_iterations(calls)
    if slow < _MANY_SIZES or 2 * slow < every:
        return _NOTHING
    within = _varying(name, _sizes(view, calls, "step", "iteration"))
    many = len(within.sizes) >= _MANY_SIZES
    return within._replace(in_step=True) if many else _NOTHING


def _varying(name: str, sizes: pl.DataFrame) -> Varying:
    distinct_sizes = sizes.group_by("input", "dim", "nth").agg(
        distinct=pl.col("size").n_unique()
    )
    if "convolution" in name:
        # Those of the images: what later layers make of them is not the program's.
        first = distinct_sizes.filter(pl.col("distinct") > 1)["nth"].min()
        distinct_sizes = distinct_sizes.filter(pl.col("nth") == first)
        sizes = sizes.filter(pl.col("nth") == first)
    varies = (
        distinct_sizes.group_by("input", "dim")
        .agg(share=(pl.col("distinct") > 1).mean())
        .filter(pl.col("share") > 1 / 2)
        .sort("input", "dim")
    )
    if not varies.height:
        return _NOTHING
    # Of several inputs the one with most sizes: in a decode queries are of one length.
    every = (
        (at, dims, _with_most_sizes(sizes.filter(pl.col("input") == at), dims))
        for at, dims in varies.group_by("input", maintain_order=True)
        .agg("dim")
        .iter_rows()
    )
    at, dims, seen = max(every, key=lambda one: one[2]["size"].n_unique())
    distinct = tuple(seen["size"].unique().sort())
    many = len(dims) > 1
    which = f"dimension{'s' if many else ''} {' and '.join(map(str, dims))}"
    per_step = seen.group_by("step").agg(pl.col("size").n_unique())["size"]
    return Varying(
        f"{which} of input {at} of {name} {'vary' if many else 'varies'}",
        distinct,
        len(dims),
        float(per_step.sum()) / len(per_step),
    )


def _sizes(view: View, calls: pl.DataFrame, *turn: str) -> pl.DataFrame:
    """Return every size of every input: ``input``, ``dim``, ``nth`` call of a turn."""
    return (
        view.with_inputs(calls.select("id", "inputs", *turn))
        .select("id", "step", "dims", nth=pl.int_range(pl.len()).over(turn))
        .explode("dims")
        .with_columns(input=pl.int_range(pl.len()).over("id"))
        .rename({"dims": "size"})
        .explode("size")
        .drop_nulls("size")
        .with_columns(dim=pl.int_range(pl.len()).over("id", "input"))
    )


def _with_most_sizes(sizes: pl.DataFrame, dims: Sequence[int]) -> pl.DataFrame:
    """Return the sizes of varying dimensions, of calls that are alike otherwise."""
    varies = pl.col("dim").is_in(dims)
    calls = sizes.group_by("id", maintain_order=True).agg(
        rest=pl.col("size").filter(~varies).cast(pl.String).str.join(","),
        size=pl.col("size").filter(varies),
    )
    alike = calls.group_by("rest", maintain_order=True).agg(
        "id", count=pl.col("size").explode().n_unique()
    )
    # The first of those with as many.
    most = alike.filter(pl.col("count") == pl.col("count").max())["id"][0]
    return sizes.filter(varies, pl.col("id").is_in(most.implode()))

"""Optimizers by the weights that they update, as the shapes in their steps tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.linter import END, named_like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.linter import View

_STEP = r"^Optimizer\.step#"
# A shape of two dimensions or more: many models have biases of one size.
_WEIGHT = r"\[\d+(?:,\d+)+\]"
# Steps that have this share of the shorter list of shapes in common may update the same
# weights. Heuristic threshold.
_SHARED = 0.5
# More kinds of steps are those of parameters that come and go.
_MOST_OWNERS = 16


class Updates(NamedTuple):
    """The steps of several optimizers, none of which updates what another does."""

    steps: pl.DataFrame
    """Each step, in order: ``start``, ``end`` and its ``owner``, a number."""
    shapes: pl.DataFrame
    """``shape``, as text, and the ``owner`` that alone updates weights of it."""


def weight_shapes(view: View, ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``id`` of ops and ``shape`` of each weight-like tensor that they take."""
    known = ops.filter(pl.col("inputs").is_not_null())
    rows = known["inputs"].unique()
    shapes = pl.DataFrame(
        {
            "inputs": rows,
            "shape": view.trace.inputs["dims_text"][rows].str.extract_all(_WEIGHT),
        }
    ).explode("shape", empty_as_null=False)
    return known.select("id", "inputs").join(shapes, on="inputs").select("id", "shape")


def updates(view: View) -> Updates | None:
    """Return the steps by optimizer; none unless several have weights of their own."""
    regions = view.trace.annotations
    regions = regions.filter(named_like(regions, _STEP) & ~regions["on_gpu"])
    steps = regions.select("thread", start="ts", end=END).sort("start")
    ops = view.trace.ops
    updating = ops.filter(ops["phase"] == "optimizer")
    if steps.height < 2 or not updating.height:  # noqa: PLR2004 - of two optimizers
        return None
    step = steps["start"].search_sorted(updating["ts"], side="right").cast(pl.Int64) - 1
    taken = (
        updating.select("id", step=step)
        .filter(pl.col("step") >= 0)
        .join(weight_shapes(view, updating), on="id")
        .select("step", "shape")
        .unique()
    )
    kinds = taken.sort("step", "shape").group_by("step").agg("shape")
    distinct = kinds["shape"].unique(maintain_order=True).to_list()
    if not 1 < len(distinct) <= _MOST_OWNERS:
        return None
    owners = _owners([frozenset(shapes) for shapes in distinct])
    if max(owners) == 0:
        return None
    numbered = pl.DataFrame({"shape": distinct, "owner": owners})
    owner = kinds.join(numbered, on="shape").select("step", "owner")
    shapes = numbered.explode("shape").unique()
    alone = shapes.filter(pl.len().over("shape") == 1)
    steps = steps.with_row_index("step").with_columns(pl.col("step").cast(pl.Int64))
    steps = steps.join(owner, on="step", how="left", maintain_order="left")
    return Updates(steps.select("start", "end", "owner"), alone)


def _owners(kinds: Sequence[frozenset[str]]) -> list[int]:
    """Return a number for each set of shapes, the same for those that may share."""
    owners = [*range(len(kinds))]
    for at, shapes in enumerate(kinds):
        for other in range(at):
            both = len(shapes & kinds[other])
            if both >= _SHARED * min(len(shapes), len(kinds[other])):
                first, last = sorted((owners[at], owners[other]))
                owners = [first if owner == last else owner for owner in owners]
    dense = {owner: number for number, owner in enumerate(dict.fromkeys(owners))}
    return [dense[owner] for owner in owners]

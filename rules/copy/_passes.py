"""Casts of weights by the forward that they are for, as gradients tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import asof, first_sizes, named_like

if TYPE_CHECKING:
    from traceq.linter import View

EACH_WEIGHT = ("module", "dims")
"""Columns that tell weights apart, but for several of one shape in a module."""
# A smaller share of casts repeats no weights: sizes of activations are the same.
# Heuristic threshold.
_MANY = 0.25
_ACCUMULATING = r"^torch::autograd::AccumulateGrad$"


def more_of_a_shape(view: View, casts: pl.DataFrame) -> int:
    """Return how many weights modules have beyond one of each shape.

    They have several where as many gradients of that size are added up.
    """
    rows = _in_passes(view, casts)
    if not rows.height:
        return 0
    several = (
        rows.filter(pl.col("distinct").all().over(EACH_WEIGHT))
        .group_by(*EACH_WEIGHT, "before")
        .agg(casts=pl.len())
        .group_by(EACH_WEIGHT)
        .agg(pl.col("casts").max() - 1)
    )
    return int(several["casts"].sum())


def within_passes(view: View, casts: pl.DataFrame) -> float | None:
    """Return the share of casts beyond one for each gradient, in a forward.

    None where that is not known, or where most weights are cast in several forwards of
    a step, as for micro-batches. A few casts beyond are of activations of that size.
    """
    rows = _in_passes(view, casts)
    if not rows.height:
        return None
    passes = rows.group_by("numel").agg(pl.col("before").n_unique(), casts=pl.len())
    several = passes.filter(pl.col("before") > view.steps)["casts"].sum()
    if 2 * several > rows.height:
        return None
    beyond = rows.group_by("numel", "before").agg(pl.col("beyond").first())
    share = max(0, int(beyond["beyond"].clip(0).sum())) / casts.height
    return share if share >= _MANY else 0.0


def _in_passes(view: View, casts: pl.DataFrame) -> pl.DataFrame:
    """Return casts with how many gradients of their size were added up ``before``.

    They are of ``distinct`` weights where as many are added up before the next
    casts. There are none where no gradient of that size is recorded.
    """
    sizes = first_sizes(view.trace)
    ops = view.ops.filter(named_like(view.ops, _ACCUMULATING))
    added = (
        pl.DataFrame({"added": ops["ts"], "numel": sizes[ops["inputs"]]})
        .drop_nulls()
        .with_columns(pl.col("numel").cast(casts.schema["numel"]))
        .sort("added")
        .with_columns(before=pl.int_range(1, pl.len() + 1).over("numel"))
    )
    totals = added.group_by("numel").agg(total=pl.len())
    asked = view.trace.ops["ts"][casts["request"]].alias("asked")
    ran = casts.drop("before", strict=False).with_columns(asked)
    ran = ran.join(totals, on="numel")
    if not ran.height:
        return ran
    rows = asof(ran, added, "asked", "added", by="numel").with_columns(
        pl.col("before").fill_null(0)
    )
    passes = (
        rows.group_by("numel", "before", "total")
        .len()
        .sort("before")
        .with_columns(next=pl.col("before").shift(-1).over("numel"))
        .with_columns(
            beyond=pl.col("len").cast(pl.Int64)
            - (pl.coalesce("next", "total") - pl.col("before"))
        )
        .with_columns(distinct=pl.col("beyond") <= 0)
    )
    return rows.join(
        passes.select("numel", "before", "beyond", "distinct"), on=["numel", "before"]
    )

"""Gradients of one model in the backward of another, cleared before they are read.

A backward that goes through a model to what made its input also computes the gradients
of its weights. Whether they are read is told by what comes next for that model: its
optimizer's step, or a gradient that is written afresh, as the one before was cleared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import asof, cached_per_trace, fill_false, named, named_like, text

from ._updates import updates, weight_shapes

if TYPE_CHECKING:
    from traceq.linter import Trace, View

    from ._updates import Updates

_GRADIENT = r"^torch::autograd::AccumulateGrad\b"
_ADDS = ("aten::add_", "aten::add")
_CLEARS = ("aten::zero_", "aten::_foreach_zero_", "aten::fill_")
# Operators of gradients between backward and step: norms, copies, sums.
_READS = (
    r"^aten::(_foreach_[a-y]\w+|_amp_\w+|norm|linalg_vector_norm|clone|copy_|cat"
    r"|stack|abs|(mul|add|sub|div|lerp)_?|dot|sum|mean|flatten|isfinite|isnan|isinf)\b"
)
_NODE = r"^autograd::engine::evaluate_function: "
_HEAVY = r"(Convolution|Conv\w*|Addmm|Mm|Linear|Bmm|Baddbmm|Embedding)\w*Backward"
# Between the node of a layer and its gradient: a transpose, a weight norm.
_PASSES = (
    r"AccumulateGrad|^(T|Transpose|Permute|View|UnsafeView|Reshape|Clone|WeightNorm\w*)"
    r"Backward"
)
_MOST = 0.8


def discarded(view: View) -> pl.DataFrame:
    """Return gradients that are cleared unread: ``id``, ``node``, ``model``, ``by``.

    ``model`` is the optimizer that the weights have, ``by`` the one whose step comes
    first; ``name`` and ``trains`` are the modules of both, as far as they are known;
    ``layer`` is the node of the layer. Of a pair that is read at all, there is none.
    """
    steps = updates(view)
    if steps is None:
        return pl.DataFrame()
    gradients = _gradients(view, steps)
    others = gradients.filter(pl.col("model") != pl.col("by"))
    if not others.height:
        return others
    fates = _fates(view, gradients, steps)
    # Of the last one it is not known yet.
    wasted = fates.group_by("model", "by").agg(
        cleared=pl.col("cleared").any(), read=(~pl.col("cleared")).any()
    )
    pairs = wasted.filter(fill_false(pl.col("cleared")), ~fill_false(pl.col("read")))
    names = _names(view, gradients)
    return (
        others.join(pairs.select("model", "by"), on=["model", "by"], how="semi")
        .join(names, on="model", how="left")
        .join(names.select(by="model", trains="name"), on="by", how="left")
        .sort("ts")
    )


def _names(view: View, gradients: pl.DataFrame) -> pl.DataFrame:
    """Return the class of the outermost module that most layers of a model are in."""
    modules = view.trace.ops["module"][gradients["layer"]].cast(pl.String)
    outermost = modules.str.extract(r"^([^/]+?)(?:_\d+)?(?:/|$)")
    return (
        gradients.select("model", name=outermost)
        .drop_nulls()
        .group_by("model", "name")
        .len()
        .sort("len", "name", descending=[True, False])
        .unique("model", keep="first", maintain_order=True)
        .select("model", "name")
    )


def _gradients(view: View, steps: Updates) -> pl.DataFrame:
    """Return the gradients of weights that one optimizer has, in order."""
    ops = view.trace.ops
    accumulating = ops.filter(named_like(ops, _GRADIENT))
    shapes = weight_shapes(view, accumulating).unique("id")
    adding = ops["parent"].filter(named(ops, _ADDS)).drop_nulls().unique()
    begun = steps.steps["end"]
    rows = (
        accumulating.select("id", "ts", "thread")
        .join(shapes, on="id")
        .join(steps.shapes.rename({"owner": "model"}), on="shape")
        .sort("ts")
    )
    # The step that comes next, a closure's own included.
    segment = begun.search_sorted(rows["ts"], side="right")
    by = steps.steps["owner"][segment.clip(0, steps.steps.height - 1)]
    rows = rows.with_columns(
        segment=segment.cast(pl.Int64),
        by=pl.when(segment < steps.steps.height).then(by),
        adds=pl.col("id").is_in(adding.implode()),
        node=view.outermost_ops[rows["id"]],
    )
    return rows.drop_nulls("by").join(
        layers(view.trace).drop("name"), on="node", how="left", maintain_order="left"
    )


@cached_per_trace
def layers(trace: Trace) -> pl.DataFrame:
    """Return each ``node`` of a backward, its ``name``, and the node of its ``layer``.

    That is the one before it which computes gradients of weights, where nothing but
    what passes them on is between.
    """
    ops = trace.ops
    nodes = ops.filter(named_like(ops, rf"{_NODE}|{_GRADIENT}")).sort("thread", "ts")
    nodes = nodes.with_columns(
        text("name").str.strip_prefix("autograd::engine::evaluate_function: ")
    )
    name = pl.col("name").str
    last = pl.when(~name.contains(_PASSES)).then("id").forward_fill().over("thread")
    heavy = nodes.filter(name.contains(rf"^{_HEAVY}"))["id"]
    return nodes.with_columns(layer=last).select(
        "name",
        node="id",
        layer=pl.when(pl.col("layer").is_in(heavy.implode())).then("layer"),
    )


def _fates(view: View, gradients: pl.DataFrame, steps: Updates) -> pl.DataFrame:
    """Return for each segment of one model's gradients whether they are ``cleared``.

    False if a step of the model reads them; null where the recording ends before.
    """
    by_segment = gradients.group_by("model", "by", "segment").agg(
        first=pl.col("ts").min(),
        last=pl.col("ts").max(),
        fresh=(~pl.col("adds")).mean(),
        weights=pl.col("shape").n_unique(),
        unadded=pl.col("shape").filter(~pl.col("adds")).n_unique(),
    )
    own = steps.steps.with_row_index("at").select(
        pl.col("at").cast(pl.Int64), model="owner", read_at="start"
    )
    later = by_segment.select(
        "model",
        next_segment="segment",
        next_first="first",
        afresh=pl.col("unadded") >= _MOST * pl.col("weights"),
    )
    rows = by_segment.filter(pl.col("model") != pl.col("by")).sort("segment")
    # Gradients of a model that are of a later segment than these.
    rows = asof(rows, own, "segment", "at", by="model", strategy="forward")
    rows = asof(
        rows.with_columns(after=pl.col("segment") + 1),
        later,
        "after",
        "next_segment",
        by="model",
        strategy="forward",
    )
    # The next gradients come before the step that would read these, or with it.
    before = pl.col("next_first") < pl.col("read_at")
    until = pl.min_horizontal("read_at", "next_first")
    rows = rows.with_columns(until=until, filled=_filled(view, rows, steps, until))
    return rows.with_columns(
        cleared=pl.when(pl.col("filled") | (before & pl.col("afresh")))
        .then(True)  # noqa: FBT003 - a value
        .when(pl.col("read_at").is_not_null())
        .then(False)  # noqa: FBT003 - as above
    )


def _filled(
    view: View, rows: pl.DataFrame, steps: Updates, until: pl.Expr
) -> pl.Series:
    """Return after which segments the model's gradients are filled with zeros."""
    ops = view.trace.ops
    clearing = ops.filter(named(ops, _CLEARS) & fill_false(ops["phase"] != "backward"))
    filled = (
        weight_shapes(view, clearing)
        .join(ops[["id", "ts"]], on="id")
        .join(steps.shapes.rename({"owner": "model"}), on="shape")
        .select("model", "shape", "ts")
    )
    sizes = steps.shapes.group_by(model="owner").agg(all_shapes=pl.len())
    inside = (
        rows.with_columns(until=until)
        .with_row_index("row")
        .join(filled, on="model")
        .filter(pl.col("ts").is_between(pl.col("last"), pl.col("until")))
        .group_by("row", "model")
        .agg(shapes=pl.col("shape").n_unique())
        .join(sizes, on="model")
        .filter(pl.col("shapes") >= _MOST * pl.col("all_shapes"))
    )
    return pl.int_range(rows.height, dtype=pl.UInt32, eager=True).is_in(
        inside["row"].implode()
    )


def readers(view: View, wasted: pl.DataFrame) -> pl.DataFrame:
    """Return operators that may read the gradients: outside of passes and updates."""
    ops = view.trace.ops
    outside = (
        fill_false(ops["phase"] != "backward")
        & fill_false(ops["phase"] != "optimizer")
        & ops["module"].is_null()
        & ops["parent"].is_null()
    )
    reading = ops.filter(outside & named_like(ops, _READS))
    taken = weight_shapes(view, reading).filter(
        pl.col("shape").is_in(wasted["shape"].unique().implode())
    )
    begun, ended = wasted["ts"].min(), wasted["ts"].max()
    return reading.filter(
        pl.col("id").is_in(taken["id"].implode()), pl.col("ts") >= begun
    ).with_columns(late=pl.col("ts") > ended)

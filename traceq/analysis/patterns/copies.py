"""What the GPU copies, and why: casts, layouts, transfers, by whom they are asked for.

An op such as ``aten::contiguous`` calls ``aten::clone``, which calls ``aten::copy_``.
The outermost of these is the request, and the op around it, if any, the caller: none
means that the program itself asks for the copy. A copy of the backward pass points to
the request of the forward pass that it undoes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import named
from traceq.graph.nesting import nearest
from traceq.model.dtypes import FLOAT32, FLOATING, HALF
from traceq.model.names import PAGEABLE, TRANSFER

if TYPE_CHECKING:
    from traceq.trace import Trace

_COPYING = (
    "aten::copy_",
    "aten::_to_copy",
    "aten::to",
    "aten::type_as",
    "aten::clone",
    "aten::contiguous",
    "aten::reshape",
    "aten::flatten",
    "aten::cat",
    "aten::concat",
    "aten::stack",
)
_CASTING = ("aten::to", "aten::type_as", "aten::_to_copy")
_JOINING = ("aten::cat", "aten::concat", "aten::stack")
# Ops whose second and third inputs are weights, and those that end in a loss.
_WEIGHTED = r"^aten::(linear|conv\w*)$"
_LOSS = r"^aten::(cross_entropy_loss|nll_loss\w*|log_softmax)$"
_OVERLOAD = r"\.\w+$"

_CONV_LAYOUT = r"(?i)nchwToNhwc|nhwcToNchw|nhwcToFolded|batched_transpose"
PARTS = (
    "optimizer",
    "pageable",
    "transfer",
    "conv layout",
    "weights",
    "loss",
    "cast",
    "autocast",
    "backward",
    "join",
    "layout",
    "inside",
    "other",
)


def copies(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels that copy, each with the part of all copies it belongs to.

    Added are ``request`` and ``origin`` (ids of ops: who asks for it, and for a copy of
    the backward pass who did in the forward pass), ``asked`` and ``caller`` (names),
    ``dims``, ``numel``, ``dst`` and ``src`` (types), ``dst_strides``,
    ``src_strides``, ``cast``, ``own`` (the program itself asks), ``order`` (which piece
    of work on its stream it is) and ``part``:

    - optimizer: in the optimizer's step;
    - pageable, transfer: between host and GPU;
    - conv layout: by cuDNN or MIOpen around a convolution;
    - weights: autocast casts a weight, or its gradient back;
    - loss: a cast of what goes into the loss, or back;
    - cast, autocast: other casts, by the program or by ops under autocast, and back;
    - backward: other copies of the backward pass;
    - join, layout, inside: cat and stack; other copies that the program, or an op
      inside of what it calls, asks for;
    - other: no op is known.
    """
    ordered = kernels.sort("device", "stream", "ts", maintain_order=True).with_columns(
        order=pl.int_range(pl.len()).over("device", "stream")
    )
    moved = _with_requests(trace, ordered.filter(pl.col("kind") == "copy"))
    moved = _with_inputs(trace, moved)
    weights = moved.filter(_is_weight())["request"].implode()
    losses = _loss_widths(trace)
    name = pl.col("name").cast(pl.String)
    source = pl.coalesce("origin", "request")
    to_loss = pl.col("caller").str.contains(_LOSS) | (
        (pl.col("src").is_in(HALF) & (pl.col("dst") == FLOAT32) & pl.col("own"))
        & pl.col("dims").list.last().is_in(losses)
    )
    lossy = moved.filter(pl.col("cast") & to_loss)["request"].implode()
    own = moved.filter("own")["request"].implode()
    is_backward = pl.col("phase") == "backward"
    part = (
        pl.when(pl.col("phase") == "optimizer")
        .then(pl.lit("optimizer"))
        .when(name.str.contains(PAGEABLE))
        .then(pl.lit("pageable"))
        .when(name.str.contains(TRANSFER))
        .then(pl.lit("transfer"))
        .when(name.str.contains(_CONV_LAYOUT))
        .then(pl.lit("conv layout"))
        .when(pl.col("cast") & source.is_in(weights))
        .then(pl.lit("weights"))
        .when(pl.col("cast") & source.is_in(lossy))
        .then(pl.lit("loss"))
        .when(pl.col("cast") & source.is_in(own))
        .then(pl.lit("cast"))
        .when(pl.col("cast") & (~is_backward | pl.col("origin").is_not_null()))
        .then(pl.lit("autocast"))
        .when(is_backward)
        .then(pl.lit("backward"))
        .when(pl.col("op").is_null())
        .then(pl.lit("other"))
        .when(pl.col("asked").is_in(_JOINING))
        .then(pl.lit("join"))
        .when(pl.col("own"))
        .then(pl.lit("layout"))
        .otherwise(pl.lit("inside"))
    )
    return moved.with_columns(part=part.cast(pl.Enum(PARTS))).sort("id")


def _with_requests(trace: Trace, moved: pl.DataFrame) -> pl.DataFrame:
    ops = trace.ops
    copying = named(ops, _COPYING)
    inner = copying.gather(ops["parent"]).fill_null(value=False)
    requests = nearest(ops["parent"], copying & ~inner)
    callers = nearest(ops["parent"], ~copying)
    op = moved["op"]
    forward = ops["forward"].gather(op)
    request = _only(requests.gather(op), copying.gather(op))
    around = callers.gather(op)
    return moved.with_columns(
        request=request,
        origin=_only(requests.gather(forward), copying.gather(forward)),
        around=around,
        asked=_plain(ops["name"].gather(request)),
        caller=_plain(ops["name"].gather(around)),
        own=request.is_not_null()
        & around.is_null()
        & (moved["phase"] != "backward").fill_null(value=True),
    )


def _plain(names: pl.Series) -> pl.Series:
    """Return names of ops without their overload."""
    return names.cast(pl.String).str.replace(_OVERLOAD, "")


def _only(values: pl.Series, keep: pl.Series) -> pl.Series:
    nothing = pl.Series([None], dtype=values.dtype)
    return values.zip_with(keep.fill_null(value=False), nothing)


def _with_inputs(trace: Trace, moved: pl.DataFrame) -> pl.DataFrame:
    known = trace.inputs.select(
        "id",
        dims=nth("dims", 0),
        second=nth("dims", 1),
        third=nth("dims", 2),
        dst=nth("types", 0),
        src=nth("types", 1),
        dst_strides=nth("strides", 0),
        src_strides=nth("strides", 1),
        numel=elements(),
    )
    inputs = trace.ops["inputs"]
    own = known.drop("second", "third").rename({"id": "inputs"})
    around = known.select("second", "third", inputs_around="id")
    is_copy = named(trace.ops, ["aten::copy_"]).gather(moved["op"])
    found = (
        moved.with_columns(
            inputs=inputs.gather(moved["op"]),
            inputs_around=inputs.gather(moved["around"]),
        )
        .join(own, on="inputs", how="left", maintain_order="left")
        .join(around, on="inputs_around", how="left", maintain_order="left")
    )
    typed = pl.col("src").is_in(FLOATING) & pl.col("dst").is_in(FLOATING)
    # Without types, what remains is that a cast is computed and a plain copy is not.
    untyped = pl.col("asked").is_in(_CASTING) & (pl.col("activity") == "kernel")
    return found.with_columns(
        cast=pl.when(pl.col("src").is_null())
        .then(untyped)
        .otherwise(typed & (pl.col("src") != pl.col("dst")) & is_copy)
        .fill_null(value=False)
    )


def nth(column: str, at: int) -> pl.Expr:
    """Return one of the inputs' dims, types, strides or values."""
    return pl.col(column).list.get(at, null_on_oob=True)


def elements() -> pl.Expr:
    """Return how many elements the first input has."""
    return nth("dims", 0).list.eval(pl.element().product()).list.first()


def _is_weight() -> pl.Expr:
    return (
        pl.col("cast")
        & (pl.col("src") == FLOAT32)
        & pl.col("dst").is_in(HALF)
        & pl.col("caller").str.contains(_WEIGHTED)
        & ((pl.col("dims") == pl.col("second")) | (pl.col("dims") == pl.col("third")))
    )


def _loss_widths(trace: Trace) -> pl.Series:
    """Return the last sizes of what goes into losses, as the size of a vocabulary."""
    losses = trace.ops.filter(
        named(trace.ops, ["aten::cross_entropy_loss", "aten::nll_loss_nd"])
    )
    wide = losses.select(id="inputs").unique().join(trace.inputs, on="id")
    return wide.select(nth("dims", 0).list.last()).to_series().drop_nulls().implode()

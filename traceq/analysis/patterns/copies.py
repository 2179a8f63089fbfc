"""Copies on the GPU by cause: casts, layouts, transfers, and the ops that request them.

An op such as ``aten::contiguous`` calls ``aten::clone``, which calls ``aten::copy_``.
The outermost of these is the request. The op around the request, if any, is the caller;
without one, the program itself asks for the copy. A copy in the backward pass points to
the request in the forward pass that it undoes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import (
    FUNCTION,
    inside,
    named,
    named_like,
    outermost_ops,
    plain,
)
from traceq.analysis.base.sizes import first_sizes
from traceq.analysis.patterns import compilation
from traceq.analysis.patterns.host_collectives import launched_for_collective
from traceq.analysis.patterns.weights_stored import dequantizes_weight
from traceq.common.expressions import ascii_only, known, nth, rows_where
from traceq.graph.nesting import INDEX, nearest
from traceq.model.dtypes import FLOAT32, FLOATING, HALF
from traceq.model.names import PAGEABLE, TRANSFER

if TYPE_CHECKING:
    from traceq.model.trace import Trace

COPYING = (
    "aten::copy_",
    "aten::_to_copy",
    "aten::to",
    "aten::type_as",
    "aten::clone",
    "aten::contiguous",
    "aten::reshape",
    "aten::flatten",
)
"""Ops that copy one tensor, or do so for some inputs."""
_CASTING = ("aten::to", "aten::type_as", "aten::_to_copy")
_JOINING = ("aten::cat", "aten::concat", "aten::stack")
_COPYING = (*COPYING, *_JOINING)
# Nodes of autograd: a cast, what gives a weight its gradient, and what between the two
# only views it. All others compute.
_UNCASTING = r"^ToCopyBackward\d*$"
_ACCUMULATING = r"^torch::autograd::AccumulateGrad$"
_ACCUMULATED = r"^autograd::engine::evaluate_function: torch::autograd::AccumulateGrad$"
_VIEWING = (
    r"\b((Reshape|Unsafe)?(Alias|View)|T|Transpose|Permute|Squeeze|Unsqueeze|Expand"
    r"|AsStrided|Unflatten|ToCopy)Backward\d*$"
)
# Ops whose second and third inputs are weights, and those that compute a loss.
_WEIGHTED = r"^aten::(linear|conv\w*)$"
_LOSS = r"^aten::(cross_entropy_loss|nll_loss\w*|log_softmax)$"
# Columns of copies that are needed only until their part is known.
_REASONS = (
    *("of_weight", "of_loss", "of_program", "of_collective"),
    *("is_pageable", "is_transfer", "for_convolution", "dequantizes"),
)
_CONV_LAYOUT = r"(?i)nchwToNhwc|nhwcToNchw|nhwcToFolded|batched_transpose"


class Part(NamedTuple):
    """One of the parts into which all copies are divided."""

    name: str
    """As in the column ``part``."""
    holds: pl.Expr
    """Filter of its copies, among those that no earlier part has taken."""
    noun: str
    """Name of its copies in a report."""


_IN_BACKWARD = pl.col("phase") == "backward"

PARTS = (
    Part("optimizer", pl.col("phase") == "optimizer", "the optimizer"),
    Part(
        "collective",
        pl.col("of_collective"),
        "copies for collectives through the host",
    ),
    Part("pageable", pl.col("is_pageable"), "pageable transfers"),
    Part(
        "transfer",
        pl.col("is_transfer"),
        "transfers between host and GPU",
    ),
    Part(
        "conv layout",
        pl.col("for_convolution"),
        "layout changes around convolutions",
    ),
    Part(
        "weights",
        pl.col("cast") & pl.col("of_weight"),
        "casts of weights and their gradients by autocast",
    ),
    Part("loss", pl.col("cast") & pl.col("of_loss"), "casts for the loss"),
    Part(
        "dequantized",
        pl.col("dequantizes"),
        "casts of weights that are stored in 8 bits",
    ),
    Part("cast", pl.col("cast") & pl.col("of_program"), "casts in the program"),
    Part(
        "autocast",
        pl.col("cast") & (~_IN_BACKWARD | pl.col("origin").is_not_null()),
        "casts inside other ops",
    ),
    Part("backward", _IN_BACKWARD, "the backward of views, slices and joins"),
    Part("join", pl.col("asked").is_in(_JOINING), "cat and stack"),
    Part("layout", pl.col("own"), "contiguous, clone and reshape"),
    Part("inside", pl.col("op").is_not_null(), "copies inside other ops"),
    Part("other", pl.lit(value=True), "copies without a known op"),
)
"""The parts in order: a copy belongs to the first one that holds.

The order is part of the meaning. Whatever the optimizer copies is the optimizer's, cast
or not; a cast of logits that feed a loss would otherwise be one of the program's own; a
copy in the backward pass that undoes a cast belongs to that cast, and only the others
are ``backward``. An example of each:

- optimizer: ``exp_avg.copy_(state)`` within ``Optimizer.step``;
- collective: the gradients that gloo copies to the host and back;
- pageable: ``batch.to("cuda")`` of a batch that is not pinned;
- transfer: the same from pinned memory, or ``loss.cpu()``;
- conv layout: cuDNN's ``nchwToNhwcKernel`` before a convolution;
- weights: autocast's cast of a float32 weight inside ``aten::linear``, and the cast of
  its gradient back to float32;
- loss: ``logits.float()`` before ``cross_entropy``, or the cast inside it;
- dequantized: ``F.linear(x, self.int8_weight.half() * self.scale)``;
- cast: ``x.float()`` in a module's forward, and its backward, or ``mask.long()``;
- autocast: autocast's cast of an activation inside ``aten::linear``, or that of
  ``softmax(x, dtype=torch.float32)`` and of the sum of a mask;
- backward: the joined gradient of ``qkv.chunk(3)``;
- join: ``torch.cat([k_cache, k])``;
- layout: ``x.transpose(1, 2).contiguous()``;
- inside: the copy of a non-contiguous input inside ``aten::matmul``;
- other: a copy kernel in a trace that has no operators.
"""


@cached_per_trace
def copies(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels that copy, each with its ``part``, one of PARTS.

    Also added are ``request`` and ``origin`` (ids of ops: the one that asks for the
    copy, and for a copy in the backward pass the one that did in the forward pass),
    ``host`` (the op whose host time goes with the copy: the request, or autograd's node
    that undoes it), ``asked`` and ``caller`` (names), ``dims``, ``numel``, ``dst`` and
    ``src`` (dtypes), ``dst_strides``, ``src_strides``, ``cast``, ``own`` (the program
    itself asks) and ``viewed`` (what is cast is a view of a weight).
    """
    moved = _with_requests(trace, kernels.filter(kernels["kind"] == "copy"))
    moved = _with_reasons(trace, _with_inputs(trace, moved))
    part = pl.coalesce(pl.when(row.holds).then(pl.lit(row.name)) for row in PARTS)
    parts = moved.select(part=part.cast(pl.Enum([row.name for row in PARTS])))
    rows = moved.drop(_REASONS).hstack(parts)
    return rows if rows["id"].is_sorted() else rows.sort("id")


def _with_requests(trace: Trace, moved: pl.DataFrame) -> pl.DataFrame:
    ops = trace.ops
    copying = named(ops, _COPYING)
    requests = _requests(trace)
    functions = named_like(ops, FUNCTION) & known(ops["phase"] == "forward")
    of_program = functions & ~named(ops, [compilation.CALL])
    callers = nearest(ops["parent"], ~(copying | of_program))
    op = moved["op"]
    forward = ops["forward"][op]
    request = _only(requests[op], copying[op])
    around = callers[op]
    origin = _only(requests[forward], copying[forward])
    return moved.with_columns(
        request=request,
        origin=origin,
        host=outermost_ops(trace)[op].zip_with(origin.is_not_null(), request),
        around=around,
        asked=plain(ops, ops["name"][request]),
        caller=plain(ops, ops["name"][around]),
        own=request.is_not_null()
        & around.is_null()
        & (moved["phase"] != "backward").fill_null(value=True),
    )


@cached_per_trace
def _requests(trace: Trace) -> pl.Series:
    """Return for each op the outermost of the copying ops around it, or itself."""
    copying = named(trace.ops, _COPYING)
    rows = rows_where(copying)
    nested = known(copying[trace.ops["parent"][rows]])
    return inside(trace, rows.filter(~nested))


def _only(values: pl.Series, keep: pl.Series) -> pl.Series:
    nothing = pl.Series([None], dtype=values.dtype)
    return values.zip_with(known(keep), nothing)


def _with_inputs(trace: Trace, moved: pl.DataFrame) -> pl.DataFrame:
    inputs = trace.ops["inputs"]
    own, around = inputs[moved["op"]], inputs[moved["around"]]
    is_copy = named(trace.ops, ["aten::copy_"])[moved["op"]]
    described = moved.with_columns(
        own.alias("inputs"),
        first_sizes(trace)[own].alias("numel"),
        around.alias("inputs_around"),
        *trace.inputs[["dims", "types", "strides"]][own]
        .select(
            dims=nth("dims", 0),
            dst=nth("types", 0),
            src=nth("types", 1),
            dst_strides=nth("strides", 0),
            src_strides=nth("strides", 1),
        )
        .get_columns(),
        *trace.inputs[["dims"]][around]
        .select(second=nth("dims", 1), third=nth("dims", 2))
        .get_columns(),
    )
    # Without dtypes, all there is to go by: a cast is a kernel, a plain copy a memcpy.
    untyped = pl.col("asked").is_in(_CASTING) & (pl.col("activity") == "kernel")
    return described.with_columns(
        cast=known(
            pl.when(pl.col("src").is_null())
            .then(untyped)
            .otherwise((pl.col("src") != pl.col("dst")) & is_copy)
        )
    )


def _with_reasons(trace: Trace, moved: pl.DataFrame) -> pl.DataFrame:
    """Add whether the request is of a weight, of the loss, or of the program itself.

    A copy in the backward pass has the reason of the request that it undoes.
    """
    request = pl.coalesce("origin", "request")
    weights = _weight_casts(trace)
    viewed = weights.filter("viewed")["request"]
    reasons = {
        "of_weight": _casts_weight(weights["request"]),
        "of_loss": pl.col("cast") & _feeds_loss(trace),
        "of_program": pl.col("own"),
    }
    # A kernel's id is its row: the names of all are known already.
    transfer, pageable, layout = (
        named_like(trace.kernels, names)[moved["id"]]
        for names in (TRANSFER, PAGEABLE, _CONV_LAYOUT)
    )
    chosen = moved.select(**reasons)
    return moved.with_columns(
        *(
            request.is_in(moved["request"].filter(chosen[column]).implode()).alias(
                column
            )
            for column in reasons
        ),
        dequantizes=dequantizes_weight(trace, moved),
        of_collective=transfer & launched_for_collective(trace, moved),
        is_transfer=transfer,
        is_pageable=pageable,
        for_convolution=layout,
        viewed=known(request.is_in(viewed.implode())),
    )


def _casts_weight(weights: pl.Series) -> pl.Expr:
    """Return whether a copy casts a weight: by its shape, or by its gradient."""
    shaped = pl.col("caller").str.contains(ascii_only(_WEIGHTED)) & (
        (pl.col("dims") == pl.col("second")) | (pl.col("dims") == pl.col("third"))
    )
    by_gradient = pl.col("request").is_in(weights.implode()) & ~pl.col("own")
    return (
        pl.col("cast")
        & (pl.col("src") == FLOAT32)
        & pl.col("dst").is_in(HALF)
        & (known(shaped) | known(by_gradient))
    )


def _weight_casts(trace: Trace) -> pl.DataFrame:
    """Return the ``request`` of casts whose gradient is that of a weight.

    In the backward the cast is undone, and an AccumulateGrad of as many elements
    follows, with no node in between that computes anything. Under torch.func its size
    is not recorded: it is of the last cast before it. ``viewed`` is whether the weight
    was a view when it was cast, as in einsum: its gradient is viewed too.
    """
    ops = trace.ops
    uncasts = named_like(ops, _UNCASTING)
    if not uncasts.any():
        return pl.DataFrame(schema={"viewed": pl.Boolean, "request": INDEX})
    outermost, accumulates = ops["parent"].is_null(), named_like(ops, _ACCUMULATING)
    unsized = rows_where(named_like(ops, _ACCUMULATED))
    unsized = unsized.filter(
        ~unsized.is_in(ops["parent"].filter(accumulates).implode())
    )
    computes = outermost & ~named_like(ops, f"{_VIEWING}|AccumulateGrad$")
    # Of the others there are many, and nothing is counted on them.
    chosen = known(ops["phase"] == "backward") & (outermost | uncasts | accumulates)
    rows = rows_where(chosen)
    nodes = (
        ops[["thread", "ts", "forward", "inputs"]][rows]
        .with_columns(
            unsized=rows.is_in(unsized.implode()),
            uncasts=uncasts[rows],
            accumulates=accumulates[rows],
            outermost=outermost[rows],
            computes=computes[rows],
        )
        .sort("thread", "ts")
        # Counted over all threads: what matters is how they differ on one.
        .with_columns(
            run=pl.col("computes").cum_sum(), node=pl.col("outermost").cum_sum()
        )
        .filter(pl.col("uncasts") | pl.col("accumulates") | pl.col("unsized"))
    )
    nodes = nodes.with_columns(numel=first_sizes(trace)[nodes["inputs"]])
    behind = (pl.col("node_right") - pl.col("node")).alias("behind")
    sized = (
        nodes.filter("uncasts")
        .join(nodes.filter("accumulates"), on=["thread", "run", "numel"])
        .select("forward", behind)
    )
    last = pl.when("uncasts").then(pl.struct("forward", "node")).forward_fill()
    before = nodes.with_columns(last=last.over("thread", "run")).filter("unsized")
    casts = (
        pl.concat(
            [
                sized,
                before.select(
                    pl.col("last").struct.field("forward"),
                    behind=pl.col("node") - pl.col("last").struct.field("node"),
                ).drop_nulls(),
            ]
        )
        .filter(pl.col("behind") > 0)
        .group_by("forward")
        .agg(viewed=pl.col("behind").min() > 1)
    )
    requests = _requests(trace)[casts["forward"]]
    return casts.select("viewed", request=requests).drop_nulls()


def _feeds_loss(trace: Trace) -> pl.Expr:
    """Return whether a loss asks for a copy, or a program for one as wide as a loss.

    What a loss casts from integers are labels.
    """
    upcast = pl.col("src").is_in(HALF) & (pl.col("dst") == FLOAT32) & pl.col("own")
    computed = pl.col("src").is_null() | pl.col("src").is_in(FLOATING)
    return (computed & pl.col("caller").str.contains(ascii_only(_LOSS))) | (
        upcast & pl.col("dims").list.last().is_in(_loss_widths(trace))
    )


def _loss_widths(trace: Trace) -> pl.Series:
    """Return the last dimensions of the inputs of losses: sizes of vocabularies."""
    losses = trace.ops["inputs"].filter(
        named(trace.ops, ["aten::cross_entropy_loss", "aten::nll_loss_nd"])
    )
    wide = trace.inputs[["dims"]][losses.drop_nulls().unique()]
    return wide.select(nth("dims", 0).list.last()).to_series().drop_nulls().implode()

"""Norms over the last dim: fused or not, and the casts around them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base import assumptions, ownership
from traceq.linter import (
    END,
    FLOAT32,
    HALF,
    NOTHING,
    SIZES,
    View,
    asof,
    first_sizes,
    has_named,
    named,
    nth,
    plain,
    roofline_ns,
    rows_where,
)
from traceq.model import dtypes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.linter import Gpu, Trace

_RMS = "aten::rms_norm"
_FUSED_RMS = "aten::_fused_rms_norm"
_NORMS = (_RMS, "aten::layer_norm", "aten::group_norm")
_CAST = "aten::_to_copy"
_FUSED = (_FUSED_RMS, "aten::native_layer_norm", "aten::native_group_norm")
OF_KERNELS = ("id", "op", "ts", "dur")
"""Columns of kernels that ``grouped`` needs, of dozens."""


def unfused_rms_norms(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return calls of rms_norm that run op by op, grouped by place and input.

    A row has ``dims`` of the input, ``type`` and ``weight`` (dtypes, None without
    shapes), and what ``host_totals`` and ``grouped`` add.
    """
    ops = trace.ops
    if not has_named(ops, [_RMS]):
        return NOTHING
    calls = ops[["id", "inputs", "parent"]].filter(
        named(ops, [_RMS]) & ~ops["compiling"]
    )
    around = ownership.inside(trace, calls["id"])
    fused = around.filter(named(ops, [_FUSED_RMS])).drop_nulls()
    # Under autocast one call is inside another.
    outer = calls["parent"].drop_nulls()
    unfused = calls.filter(~calls["id"].is_in(pl.concat([fused, outer]).implode()))
    if not unfused.height:
        return NOTHING
    norms = (
        unfused.select("inputs", owner="id")
        .join(trace.inputs, left_on="inputs", right_on="id", how="left")
        .select(
            "owner",
            dims=pl.col("dims").list.first(),
            type=pl.col("types").list.first(),
            weight=pl.col("types").list.get(2, null_on_oob=True),
        )
    )
    owners = ownership.inside(trace, norms["owner"])
    norms = norms.join(ownership.host_work(trace, owners), on="owner")
    ran = ownership.owned(trace, kernels[[*OF_KERNELS]], owners).join(norms, on="owner")
    return grouped(trace, ran, ["dims", "type", "weight"], **ownership.host_totals())


def norm_casts(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return norms computed in float32 whose input or result is cast for them.

    A row has ``norm`` (its op), ``half``, the dtype cast from or to, ``up`` and
    ``down``, whether its input and whether its result is cast, ``casts``, the kernels
    of the casts, ``cast_ns``, their time, ``cast_ops``, the casts of the forward and
    autograd's nodes that undo them, and what ``grouped`` adds.
    """
    if not has_named(trace.ops, _FUSED) or not has_named(trace.ops, [_CAST]):
        return NOTHING
    norms = _float_norms(trace)
    if not norms.height:
        return NOTHING
    casts = _casts(trace)
    in_norm = ownership.inside(trace, norms["owner"])
    up = (
        casts.with_columns(owner=in_norm[casts["id"]])
        .filter(pl.col("to") == FLOAT32)
        .join(norms.select("owner", "dims"), on=["owner", "dims"])
        .select("owner", cast="id", half="of", up=True, down=False)
    )
    # The next cast of a tensor of the norm's shape is that of its result, which may be
    # a view of it by then: all but the last dim in one.
    narrowing = casts.filter(pl.col("to").is_in(HALF))
    down = (
        asof(narrowing, norms, "ts", "end", by="thread")
        .filter(
            pl.col("numel") == pl.col("numel_right"),
            pl.col("dims").list.last() == pl.col("dims_right").list.last(),
        )
        .unique("owner", keep="first", maintain_order=True)
        .select("owner", cast="id", half="to", up=False, down=True)
    )
    around = pl.concat([up, down])
    if not around.height:
        return NOTHING
    candidates = (
        around.group_by("owner", maintain_order=True)
        .agg(pl.col("half").first(), pl.col("up").any(), pl.col("down").any())
        .join(norms.select("owner", "norm", "dims"), on="owner")
    )
    return grouped(
        trace,
        _of_norms_and_casts(trace, kernels, candidates, around),
        ["norm", "half", "up", "down", "dims"],
        casts=pl.col("id").filter("cast"),
        cast_ops=pl.col("cast_op").filter("cast").unique(maintain_order=True),
        cast_ns=pl.col("dur").filter("cast").sum(),
    )


def _of_norms_and_casts(
    trace: Trace, kernels: pl.DataFrame, candidates: pl.DataFrame, around: pl.DataFrame
) -> pl.DataFrame:
    """Return the kernels of norms and of the casts around them, marked as ``cast``."""
    casts = around.select("owner", part="cast").with_columns(cast=True)
    norms = candidates.select("owner", part="owner").with_columns(cast=False)
    parts = pl.concat([casts, norms.select(casts.columns)]).unique("part", keep="first")
    within = ownership.inside(trace, parts["part"])
    ran = ownership.owned(trace, kernels[[*OF_KERNELS]], within)
    part, node = ran["owner"], ownership.outermost_ops(trace)[ran["op"]]
    # A cast that checkpointing repeats is in the backward, inside of another node.
    undone = ran["back"] & within[ran["op"]].is_null()
    return (
        ran.drop("owner")
        .with_columns(part=part, cast_op=node.zip_with(undone, part))
        .join(parts, on="part")
        .join(candidates, on="owner")
    )


def _float_norms(trace: Trace) -> pl.DataFrame:
    """Return the fused norms that compute in float32: the outermost op, and its end.

    An outermost op has one row, whatever is inside it.
    """
    ops = trace.ops
    fused = named(ops, _FUSED) & ~ops["compiling"]
    kernels = pl.DataFrame(
        {
            "owner": ownership.outermost_ops(trace, _NORMS).filter(fused),
            "inputs": ops["inputs"].filter(fused),
            "numel": first_sizes(trace)[ops["inputs"].filter(fused)],
        }
    ).drop_nulls("owner")
    ends = ops[["thread", "name", "id", "ts", "dur"]][kernels["owner"].unique()]
    norm = plain(ops, ends["name"]).alias("norm")
    ends = ends.select("thread", norm, owner="id", end=END)
    first = trace.inputs.select(type=nth("types", 0), dims=nth("dims", 0))
    return (
        kernels.hstack(first[kernels["inputs"]])
        .filter(pl.col("type") == FLOAT32)
        .select("owner", "numel", "dims")
        .unique("owner", keep="first", maintain_order=True)
        .join(ends, on="owner")
    )


def _casts(trace: Trace) -> pl.DataFrame:
    """Return the casts between float32 and 16-bit dtypes, ``of`` one ``to`` another."""
    ops = trace.ops
    # The backward of a cast belongs to the op around the copy.
    around = ownership.inside(trace, ops["id"].filter(named(ops, [_CAST])))
    to, of = pl.col("to"), pl.col("of")
    between = ((to == FLOAT32) & of.is_in(HALF)) | ((of == FLOAT32) & to.is_in(HALF))
    inputs = trace.inputs.select(
        dims=nth("dims", 0),
        to=nth("types", 0),
        of=nth("types", 1),
        inputs="id",
        numel=first_sizes(trace),
    )
    rows = rows_where(named(ops, ["aten::copy_"]) & ~ops["compiling"])
    return (
        ops[["thread", "ts", "inputs"]][rows]
        .with_columns(id=around[rows])
        .join(inputs.filter(between), on="inputs", maintain_order="left")
        .drop_nulls("id")
        .select("id", "thread", "ts", "dims", "numel", "to", "of")
    )


def grouped(
    trace: Trace, ran: pl.DataFrame, by: Sequence[str], **more: pl.Expr
) -> pl.DataFrame:
    """Group kernels of norms by place and ``by``.

    A row has what ``by_place`` adds, ``launches`` of one forward call, whether there is
    a ``backward``, and ``more``. Norms whose forward is not in the steps are left out.
    """
    forward = ~pl.col("back")
    return ownership.by_place(
        ownership.at_owner(trace, ran),
        by,
        launches=forward.sum() / pl.col("owner").filter(forward).n_unique(),
        backward=pl.col("back").any(),
        **more,
    ).filter(pl.col("launches").is_not_nan())


def fused_share(row: Mapping[str, Any], gpu: Gpu) -> float:
    """Return the share of a row's GPU time that fused norms would save."""
    return View.saved_share(row["gpu_ns"], _fused_ns(row, gpu))


def _fused_ns(row: Mapping[str, Any], gpu: Gpu) -> float | None:
    """Return the time of fused norms for all calls; None if it is unknown."""
    if not row["dims"]:
        return None
    size = prod(row["dims"]) * SIZES.get(row["type"], SIZES[dtypes.BFLOAT16])
    one = roofline_ns(
        gpu,
        assumptions.NORM_EFFICIENCY,
        moved=float(size * assumptions.NORM_PASSES[row["backward"]]),
        kernels=assumptions.NORM_KERNELS[row["backward"]],
    )
    return None if one is None else one * int(row["calls"])

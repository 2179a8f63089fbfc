"""Norms over the last dim: fused or not, by place, and what a fused one takes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base import assumptions, ownership
from traceq.linter import (
    NOTHING,
    SIZES,
    View,
    has_named,
    named,
    roofline_ns,
)
from traceq.model import dtypes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.linter import Gpu, Trace

_RMS = "aten::rms_norm"
_FUSED_RMS = "aten::_fused_rms_norm"
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

"""Norms over the last dim: fused or not, and the casts around them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base.ownership import (
    busy,
    inside,
    named,
    owned,
    plain_names,
    same_place,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceq.analysis.base.device import Gpu
    from traceq.trace import Trace

HALF = ("c10::BFloat16", "c10::Half")
_RMS = "aten::rms_norm"
_FUSED_RMS = "aten::_fused_rms_norm"
_NORMS = (_RMS, "aten::layer_norm", "aten::group_norm")
_FUSED = (_FUSED_RMS, "aten::native_layer_norm", "aten::native_group_norm")

# How often a fused norm goes over its input, forward and backward, at which share of
# the GPU's bandwidth, and what its kernels take at least.
_PASSES = (2, 5)
_BANDWIDTH = 0.3
_LEAST_NS = (5_000, 15_000)
_UNKNOWN_SAVING = 0.5
_BYTES = {"float": 4, "double": 8}


def unfused_rms_norms(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return calls of rms_norm that run op by op, grouped by place and input.

    A row has ``dims`` of the input, ``type`` and ``weight`` (types, none without
    shapes), and what ``grouped`` adds.
    """
    ops = trace.ops
    calls = named(ops, [_RMS]) & ~ops["compiling"]
    around = inside(trace, ops.filter(calls)["id"])
    fused = around.filter(named(ops, [_FUSED_RMS])).drop_nulls()
    # Under autocast one call is inside another.
    outer = ops.filter(calls)["parent"].drop_nulls()
    found = (
        ops.filter(calls & ~ops["id"].is_in(pl.concat([fused, outer]).implode()))
        .select("dur", "inputs", owner="id")
        .join(trace.inputs, left_on="inputs", right_on="id", how="left")
        .select(
            "owner",
            host="dur",
            dims=pl.col("dims").list.first(),
            type=pl.col("types").list.first(),
            weight=pl.col("types").list.get(2, null_on_oob=True),
        )
    )
    ran = owned(trace, kernels, inside(trace, found["owner"]))
    return grouped(trace, ran.join(found, on="owner"), ["dims", "type", "weight"])


def norm_casts(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return norms computed in float32 whose input or result is cast for them.

    A row has ``norm`` (its op), ``half``, the type cast from or to, ``up`` and
    ``down``, whether it casts its input and whether its result is cast, ``cast_ns``,
    the GPU time of the casts, and what ``grouped`` adds.
    """
    norms, casts = _float_norms(trace), _casts(trace)
    in_norm = inside(trace, norms["owner"])
    up = (
        casts.with_columns(owner=in_norm.gather(casts["id"]))
        .filter(pl.col("to") == "float")
        .join(norms.select("owner", "dims"), on=["owner", "dims"])
        .select("owner", cast="id", half="of", up=True, down=False)
    )
    # The next cast of what has a norm's shape is that of the norm's result.
    down = (
        casts.filter(pl.col("to").is_in(HALF))
        .sort("ts")
        .join_asof(
            norms.sort("end"),
            left_on="ts",
            right_on="end",
            by="thread",
            check_sortedness=False,
        )
        .filter(pl.col("dims") == pl.col("dims_right"))
        .unique("owner", keep="first", maintain_order=True)
        .select("owner", cast="id", half="to", up=False, down=True)
    )
    around = pl.concat([up, down])
    found = (
        around.group_by("owner", maintain_order=True)
        .agg(pl.col("half").first(), pl.col("up").any(), pl.col("down").any())
        .join(norms.select("owner", "norm", "dims", host=pl.lit(0)), on="owner")
    )
    return grouped(
        trace,
        _of_norms_and_casts(trace, kernels, found, around),
        ["norm", "half", "up", "down", "dims"],
        cast_ns=busy(pl.col("cast")),
    )


def _of_norms_and_casts(
    trace: Trace, kernels: pl.DataFrame, found: pl.DataFrame, around: pl.DataFrame
) -> pl.DataFrame:
    """Return the kernels of norms and of the casts around them; ``cast`` says which."""
    casts = around.select("owner", part="cast").with_columns(cast=True)
    norms = found.select("owner", part="owner").with_columns(cast=False)
    parts = pl.concat([casts, norms.select(casts.columns)]).unique("part", keep="first")
    ran = owned(trace, kernels, inside(trace, parts["part"])).rename({"owner": "part"})
    return ran.join(parts, on="part").join(found, on="owner")


def _float_norms(trace: Trace) -> pl.DataFrame:
    """Return the fused norms that compute in float32: the outermost op, and its end."""
    ops = trace.ops
    is_norm = named(ops, _NORMS) & ~ops["compiling"]
    outer = is_norm & ~is_norm.gather(ops["parent"]).fill_null(value=False)
    around = inside(trace, ops.filter(outer)["id"])
    kernels = ops.with_columns(owner=around).filter(named(ops, _FUSED))
    ends = ops.select("thread", "name", owner="id", end=pl.col("ts") + pl.col("dur"))
    return (
        kernels.select("owner", "inputs")
        .drop_nulls("owner")
        .join(trace.inputs, left_on="inputs", right_on="id")
        .filter(pl.col("types").list.first() == "float")
        .select("owner", dims=pl.col("dims").list.first())
        .join(ends, on="owner")
        .join(plain_names(ops), on="name")
        .rename({"plain": "norm"})
        .drop("name")
    )


def _casts(trace: Trace) -> pl.DataFrame:
    """Return the casts between float32 and 16 bits: ``of`` what, ``to`` what."""
    ops = trace.ops
    # The backward of a cast belongs to the op around the copy.
    around = inside(trace, ops.filter(named(ops, ["aten::_to_copy"]))["id"])
    to, of = (pl.col("types").list.get(at, null_on_oob=True) for at in (0, 1))
    return (
        ops.with_columns(id=around)
        .filter(named(ops, ["aten::copy_"]) & around.is_not_null() & ~ops["compiling"])
        .select("id", "thread", "ts", "inputs")
        .join(
            trace.inputs.filter(
                ((to == "float") & of.is_in(HALF)) | ((of == "float") & to.is_in(HALF))
            ),
            left_on="inputs",
            right_on="id",
        )
        .select("id", "thread", "ts", dims=pl.col("dims").list.first(), to=to, of=of)
    )


def grouped(
    trace: Trace, ran: pl.DataFrame, by: Sequence[str], **more: pl.Expr
) -> pl.DataFrame:
    """Group kernels of norms by place and ``by``; ``host`` is what each call takes.

    Adds the place, ``calls``, ``modules``, ``ops`` and ``kernels`` (ids), ``gpu_ns``,
    ``host_ns``, ``launches`` of one forward call, and whether there is a ``backward``.
    """
    source = trace.ops.select("module", "file", "line", "function", owner="id")
    forward = ~pl.col("back")
    return (
        ran.drop("module", "file", "line", "function")
        .join(source, on="owner")
        .sort("ts", "id")
        .group_by(*by, *same_place(), maintain_order=True)
        .agg(
            calls=pl.col("owner").n_unique(),
            modules=pl.col("module").cast(pl.String).unique(maintain_order=True),
            module=pl.col("module").cast(pl.String).drop_nulls().first(),
            ops=pl.col("owner").unique(maintain_order=True),
            kernels=pl.col("id"),
            gpu_ns=busy(),
            host_ns=pl.col("host").filter(pl.col("owner").is_first_distinct()).sum(),
            launches=forward.sum() / pl.col("owner").filter(forward).n_unique(),
            backward=pl.col("back").any(),
            **more,
        )
        .filter(pl.col("launches").is_not_nan())
    )


def fused_saving(row: Mapping[str, Any], gpu: Gpu) -> float:
    """Return how many nanoseconds a fused norm would save in all calls of a row.

    Such a norm takes as long as memory needs for its input and result; where that is
    not known, half of what runs now is saved.
    """
    peak = gpu.peak
    if not peak or not row["dims"]:
        return float(row["gpu_ns"]) * _UNKNOWN_SAVING
    moved = prod(row["dims"]) * _BYTES.get(row["type"], 2) * _PASSES[row["backward"]]
    seconds = moved / (_BANDWIDTH * peak.bandwidth)
    one = max(seconds * 1e9, _LEAST_NS[row["backward"]])
    return max(0.0, float(row["gpu_ns"]) - one * int(row["calls"]))

"""Savings from slow ops: time above the roofline, replayed.

No kernel reaches the peaks: an op counts as slow relative to the time that kernels of
its kind reach elsewhere. The saving of a step is replayed, not summed: a faster kernel
that nothing waits for saves nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import (
    COPY_EFFICIENCY,
    FLASH_EFFICIENCY,
    MATMUL_EFFICIENCY,
    SHORTEST_KERNEL_NS,
)
from traceq.analysis.replay.bound import calibration_of, replay_of
from traceq.analysis.replay.simulation import Change
from traceq.common.expressions import text
from traceq.common.units import NS_PER_S
from traceq.common.words import layer_names

if TYPE_CHECKING:
    from traceq.analysis.time.roofline import Roofline
    from traceq.model.trace import Trace

_MOST_REPLAYED = 40
# Less than this share of the GPU time is not worth a replay.
_WORTH = 0.002
_SLOW = ("kernels", "gpu", "reachable")
_KEYS = ("name", "shapes", "dtype", "phase", "file", "call_line", "layer")


def by_op(trace: Trace, roofline: Roofline, step_ns: int | None = None) -> pl.DataFrame:
    """Return the ops by name, shapes and place, most recoverable time first.

    A row has what ``op_groups`` returns, and ``recoverable``: ns of a step, by replay,
    if the op were as fast as kernels of its kind are elsewhere.
    """
    groups = _groups(trace, roofline)
    saved = pl.Series("recoverable", _replayed(trace, groups, roofline, step_ns))
    return (
        _of_a_step(groups, roofline)
        .with_columns(saved.cast(pl.Float64))
        .sort("recoverable", "gpu", descending=True, maintain_order=True)
    )


def op_groups(trace: Trace, roofline: Roofline) -> pl.DataFrame:
    """Return the ops by name, shapes and place, most GPU time first.

    A row has the keys, ``calls``, ``gpu`` and ``least`` ns of a step, ``flops`` and
    ``bytes`` of a call, ``bound``, ``efficiency`` (the share of ``gpu`` that the peaks
    need), and the longest ``kernel``.
    """
    return _of_a_step(_groups(trace, roofline), roofline)


def recoverable_ns(
    trace: Trace, roofline: Roofline, step_ns: int | None = None
) -> float:
    """Return the saving per step if all slow ops were as fast as their kind.

    That is one replay, and less than the sum over ops where they hide each other.
    """
    slow = _groups(trace, roofline).select(_SLOW).head(_MOST_REPLAYED)
    changes = [
        change for row in slow.iter_rows() if (change := _change(roofline, *row))
    ]
    replay, scale = replay_of(trace), calibration_of(trace, step_ns).likely
    before = replay.run(scale=scale).step_ns
    return max(0.0, before - replay.run(changes, scale).step_ns) if changes else 0.0


def _of_a_step(groups: pl.DataFrame, roofline: Roofline) -> pl.DataFrame:
    return groups.with_columns(
        pl.col("gpu", "least") / roofline.steps,
        efficiency=pl.col("least") / pl.col("gpu"),
        launched=pl.col("kernels").list.len() / roofline.steps,
    )


def _groups(trace: Trace, roofline: Roofline) -> pl.DataFrame:
    """Return the ops by name, shapes and place, with totals; most GPU time first."""
    inputs = trace.inputs.select(inputs="id", shapes="dims_text")
    ops = roofline.ops.join(inputs, on="inputs", how="left", maintain_order="left")
    ops = ops.with_columns(
        _reachable(roofline).alias("reachable"),
        layer=layer_names(pl.col("module")),
        file=text("file"),
        phase=text("phase"),
    )
    return (
        ops.group_by(_KEYS, maintain_order=True)
        .agg(
            pl.col("gpu", "least", "reachable").sum(),
            pl.col("flops", "bytes").mean(),
            pl.col("bound").mode().first(),
            pl.col("function", "via").first().cast(pl.String),
            pl.col("line").first(),
            pl.col("kernels").explode(),
            kernel=pl.col("kernel").get(pl.col("gpu").arg_max()).cast(pl.String),
            calls=pl.len() / roofline.steps,
        )
        .sort("gpu", descending=True, maintain_order=True)
    )


def _reachable(roofline: Roofline) -> pl.Expr:
    """Return the time of an op at the usual efficiency of its kind.

    Where that is not known it is what the op takes.
    """
    peak = roofline.gpu.peak
    if peak is None:
        return pl.col("gpu").cast(pl.Float64)
    attention = FLASH_EFFICIENCY.get(roofline.gpu.capability[0], MATMUL_EFFICIENCY)
    rate = pl.col("dtype").replace_strict(peak.flops, default=None)

    def at(compute: float, bandwidth: float) -> pl.Expr:
        return pl.max_horizontal(
            pl.col("flops") / rate / compute * NS_PER_S,
            pl.col("bytes") / peak.bandwidth / bandwidth * NS_PER_S,
            pl.lit(float(SHORTEST_KERNEL_NS)),
        )

    return (
        pl.when(pl.col("flops").is_not_null() & rate.is_null())
        .then(pl.col("gpu"))
        .when(pl.col("flops").is_null())
        .then(at(1.0, COPY_EFFICIENCY.bandwidth))
        .when(pl.col("name").str.contains("attention"))
        .then(at(attention.compute, attention.bandwidth))
        .otherwise(at(MATMUL_EFFICIENCY.compute, MATMUL_EFFICIENCY.bandwidth))
    )


def _replayed(
    trace: Trace, groups: pl.DataFrame, roofline: Roofline, step_ns: int | None
) -> list[float]:
    """Return the saving of a step by each group, the first of them by replay."""
    slow = groups.select(_SLOW).rows()
    replay, scale = replay_of(trace), calibration_of(trace, step_ns).likely
    before = replay.run(scale=scale).step_ns
    saved = []
    for row in slow[:_MOST_REPLAYED]:
        change = _change(roofline, *row)
        after = replay.run([change], scale).step_ns if change else before
        saved.append(max(0.0, before - after))
    return saved + [0.0] * (len(slow) - len(saved))


def _change(
    roofline: Roofline, kernels: list[int], gpu: float, reachable: float
) -> Change | None:
    """Return the change that makes kernels as fast as their kind; none if too small."""
    share = 1 - reachable / gpu if gpu else 0.0
    whole = roofline.judged_ns + roofline.other_ns
    if share <= 0 or share * gpu < _WORTH * whole:
        return None
    return Change(kernels=frozenset(kernels), kernel_share=share)

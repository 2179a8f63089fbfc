"""Batch norms on NCHW kernels, and their time with channels_last kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.linter import SIZES, nth, roofline_ns, text

if TYPE_CHECKING:
    from traceq.linter import Gpu, Trace

# Of torch, where those for channels_last have that in their names, and of cuDNN.
_NCHW = (
    rf"\b(?:batch_norm_|cudnn::)({'|'.join(assumptions.CHANNELS_LAST_BATCH_NORM)})"
    r"(?:_kernel\b|_1C11_)"
)
_BACKWARD = ("backward", "bn_bw")
_IMAGES = 4


def nchw_batch_norms(trace: Trace, kernels: pl.DataFrame, gpu: Gpu) -> pl.DataFrame:
    """Return the kernels of batch norms of NCHW images, of a GPU with known peaks.

    ``then_ns`` is what the same takes in channels_last, if that is less, and ``back``
    whether it is in the backward.
    """
    ran = kernels.with_columns(part=text("name").str.extract(_NCHW)).drop_nulls("part")
    inputs = trace.inputs.select(
        inputs="id", images=nth("dims", 0), type=nth("types", 0)
    )
    ran = (
        ran.with_columns(inputs=trace.ops["inputs"][ran["op"]])
        .join(inputs, on="inputs", maintain_order="left")
        .filter(pl.col("images").list.len() == _IMAGES)
    )
    size = pl.col("images").list.eval(pl.element().product()).list.first()
    moved = size * pl.col("type").replace_strict(SIZES, default=None)
    times = ran.select("part", moved=moved).rows()
    then = [_channels_last_ns(gpu, part, moved) for part, moved in times]
    return (
        ran.with_columns(then_ns=pl.Series(then, dtype=pl.Float64))
        .drop_nulls("then_ns")
        .with_columns(
            then_ns=pl.min_horizontal("then_ns", "dur"),
            back=pl.col("part").is_in(_BACKWARD),
        )
    )


def _channels_last_ns(gpu: Gpu, part: str, size: int | None) -> float | None:
    passes, efficiency = assumptions.CHANNELS_LAST_BATCH_NORM[part]
    return size and roofline_ns(gpu, efficiency, moved=float(passes * size))

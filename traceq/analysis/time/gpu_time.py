"""GPU time by phase and kind, by op, by kernel; each instant counts once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import text
from traceq.common.intervals import disjoint, overlap, spans
from traceq.graph.devices import busiest_device

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace

_SOURCE = ("module", "file", "line", "function")


def by_kind_and_phase(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the time and number of kernels of each kind in each phase."""
    return (
        kernels.group_by("kind", "phase")
        .agg(time=pl.col("dur").sum(), kernels=pl.len())
        .sort("time", "kind", "phase", descending=[True, False, False])
    )


def by_op(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the time of the kernels that ops launch themselves, longest first.

    Ops of one name with the same shapes, from the same place in the source, are one
    row. ``calls`` counts the calls that launched something.
    """
    launched = kernels.select("op", "dur", "phase", "file", "line", "function").join(
        trace.ops.select("inputs", op="id", name=text("name")),
        on="op",
        how="left",
    )
    return (
        launched.group_by("name", "inputs", "phase", "file", "line", "function")
        .agg(
            time=pl.col("dur").sum(),
            kernels=pl.len(),
            calls=pl.col("op").n_unique(),
        )
        .sort(
            "time", "name", "inputs", "phase", "file", descending=[True, *[False] * 4]
        )
        .join(
            trace.inputs.select("dims", inputs="id"),
            on="inputs",
            how="left",
            maintain_order="left",
        )
    )


def by_kernel(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the time and number of kernels of each name, longest first."""
    return (
        kernels.group_by("name")
        .agg(
            pl.col("kind", "dtype", "library").first(),
            time=pl.col("dur").sum(),
            kernels=pl.len(),
        )
        .with_columns(text("name"))
        .sort("time", "name", descending=[True, False])
    )


def non_gemm(by_name: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels of ``by_kernel`` that are no matmuls by ``kind``.

    ``time``, ``kernels``, the name of the ``longest`` and its ``longest_time``. Copies
    and sets by the driver are no kernels.
    """
    kernels = by_name.filter(
        pl.col("kind") != "gemm", text("library").ne_missing("driver")
    )
    return (
        kernels.group_by(text("kind"), maintain_order=True)
        .agg(
            pl.col("time", "kernels").sum(),
            longest=pl.col("name").first(),
            longest_time=pl.col("time").first(),
        )
        .sort("time", "kind", descending=[True, False])
    )


def by_host_op(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the self time of ops on the host, for traces without a GPU."""
    ops = trace.host_ops
    if windows["step"].null_count() == 0:
        ops = ops.join(windows.select("step"), on="step", how="semi")
    return (
        ops.with_columns(text("name"))
        .group_by("name", "inputs", "phase", "file", "line", "function")
        .agg(time=pl.col("self_dur").sum(), calls=pl.len())
        .sort(
            "time", "name", "inputs", "phase", "file", descending=[True, *[False] * 4]
        )
        .join(
            trace.inputs.select("dims", inputs="id"),
            on="inputs",
            how="left",
            maintain_order="left",
        )
    )


def longest_by_phase(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the name with the most kernel time in each phase, and the totals."""
    return (
        kernels.group_by("phase", "name")
        .agg(pl.col("kind").first(), time=pl.col("dur").sum(), kernels=pl.len())
        .with_columns(text("name"))
        .sort("time", "name", descending=[True, False])
        .group_by("phase", maintain_order=True)
        .agg(
            pl.col("name", "kind", "time", "kernels").first(), all=pl.col("time").sum()
        )
        .sort("phase")
    )


def busy_time(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the GPU time of each kernel in the steps: ``kernel``, ``gpu_ns``.

    Of kernels that run at the same time each instant counts once.
    """
    kernels = busiest_device(trace.kernels)
    own = disjoint(spans(kernels).with_columns(kernel=kernels["id"]))
    own = own.filter(pl.col("end") > pl.col("start"))
    windows = steady.windows.select("start", "end")
    return own.select("kernel", gpu_ns=overlap(own, windows))

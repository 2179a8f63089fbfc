"""Model FLOP utilisation: the GPU's compute rate relative to its peak."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import COUNTED_SHARE
from traceq.analysis.base.device import used_gpu
from traceq.analysis.base.ownership import inside
from traceq.analysis.time.flops import COMPUTING, computed_in, op_flops
from traceq.common.expressions import text
from traceq.common.units import NS_PER_S

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace


@dataclass(frozen=True)
class Compute:
    """FLOPs per step, their rate, and its fraction of the GPU's peak."""

    flops: float | None = None
    """Operations of a step."""
    rate: float | None = None
    """Operations per second of the whole step."""
    dtype: str | None = None
    """The dtype in which most operations were done, as bf16."""
    peak: float | None = None
    """The GPU's operations per second in that dtype, at most."""
    utilisation: float | None = None
    """Model FLOP utilisation: the share of the step that the operations would take
    at the peak of the dtype they were done in."""
    unknown: str = ""
    """Reason why there is no figure, if there is none."""

    def faster(self, factor: float) -> Compute:
        """Return the same operations in steps that are faster by a factor."""
        return replace(
            self,
            rate=self.rate and self.rate * factor,
            utilisation=self.utilisation and self.utilisation * factor,
        )


def compute(trace: Trace, steady: SteadySteps) -> Compute:
    """Return the compute rate of the steady steps of a trace."""
    timed = steady.kernels.filter(pl.col("kind").is_in(COMPUTING))
    if not timed.height:
        return Compute(unknown="no matmuls on the GPU")
    if not trace.facts.shapes:
        return Compute(unknown="shapes were not recorded")
    counted = _with_dtypes(trace, timed)
    # An attention op is counted above the op that launches its kernels.
    covered = _covered_time(trace, timed, counted)
    total = int(timed["dur"].sum())
    if covered < COUNTED_SHARE * total:
        return Compute(
            unknown=f"only {100 * covered / total:.0f}% of the time in matmuls can be"
            " counted; the rest lacks shapes or arguments"
        )
    return _rate(trace, steady, counted)


def _with_dtypes(trace: Trace, timed: pl.DataFrame) -> pl.DataFrame:
    """Return the counted ops of these kernels' steps, with the dtype they ran in."""
    steps = timed.select("step").unique()
    flops = op_flops(trace).filter(pl.col("flops") > 0)
    flops = flops.join(trace.ops.select("step", op="id"), on="op", how="left").join(
        steps, on="step", how="semi", nulls_equal=True
    )
    # Beside the kernel that computes there are those that prepare and sum up for it.
    launched = inside(trace, flops["op"])[timed["op"]]
    dtypes = (
        timed.with_columns(op=launched)
        .filter(timed["dtype"].is_not_null())
        .drop_nulls("op")
        .group_by("op")
        .agg(kernel_dtype=text("dtype").get(pl.col("dur").arg_max()))
    )
    return flops.join(dtypes, on="op", how="left").with_columns(dtype=computed_in())


def _covered_time(trace: Trace, timed: pl.DataFrame, counted: pl.DataFrame) -> int:
    """Return the time of the kernels that counted ops, or ops inside them, launched."""
    counted_ops = counted.select("op").unique()
    covered = 0
    rest = timed.select("op", "dur")
    while rest.height:
        covered += int(rest.join(counted_ops, on="op", how="semi")["dur"].sum())
        rest = (
            rest.join(counted_ops, on="op", how="anti")
            .join(trace.ops.select("parent", op="id"), on="op", how="inner")
            .select("dur", op="parent")
            .drop_nulls("op")
        )
    return covered


def _rate(trace: Trace, steady: SteadySteps, counted: pl.DataFrame) -> Compute:
    by_dtype = (
        counted.group_by("dtype")
        .agg(pl.col("flops").sum())
        .sort("flops", descending=True)
    )
    flops = float(by_dtype["flops"].sum())
    seconds = steady.time / NS_PER_S
    if not flops or not seconds:
        return Compute(unknown="the trace has no time in it")
    dtype = by_dtype["dtype"][0]
    peak = used_gpu(trace).peak
    rates = peak.flops if peak else {}
    rate = Compute(
        flops=flops / steady.count,
        rate=flops / seconds,
        dtype=dtype,
        peak=rates.get(dtype),
    )
    if not set(by_dtype["dtype"]) <= rates.keys():
        return rate
    at_peak = sum(count / rates[name] for name, count in by_dtype.iter_rows())
    return Compute(**{**vars(rate), "utilisation": at_peak / seconds})

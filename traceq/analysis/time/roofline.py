"""How far each op is from what the GPU can do with its operations and bytes.

The time that a GPU needs at least is that of its operations at the peak of their dtype
or that of its bytes at the peak of the memory, whichever is longer. An op whose bytes
fit into the GPU's cache may be faster than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.device import used_gpu
from traceq.analysis.base.ownership import (
    inside,
    named,
    named_like,
    plain_names,
)
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time.bytes_moved import Call, is_counted, least_bytes
from traceq.analysis.time.flops import computed_in, op_flops
from traceq.expressions import elements, known, nth, text
from traceq.model.dtypes import ALL_SIZES
from traceq.model.names import TRANSFER
from traceq.records import dataclass

if TYPE_CHECKING:
    from traceq.analysis.base.device import Gpu
    from traceq.trace import Trace

# Work this short is as short as it gets: launching and ending it is most of it.
# Measured on an H200: the smallest kernels take 1 to 3 µs.
LATENCY_NS = 3_000
_GRADIENT = "torch::autograd::AccumulateGrad"
_SECOND_NS = 1e9
# As of a Call.
_CALL = (
    *("plain", "dims", "types", "strides"),
    *("values", "dims_text", "kernel", "dtype"),
)
_PLACE = ("module", "file", "line", "function", "via", "call_line", "phase")


@dataclass(frozen=True)
class Roofline:
    """The ops of the steady steps with GPU work, and what the GPU can do."""

    ops: pl.DataFrame
    """A row for each op with a count, and its place.

    ``op`` is its id, ``kernels`` are those of its work; ``gpu`` is their time and
    ``least`` what the peaks allow for its ``flops`` in ``dtype`` and its ``bytes``, in
    ns; it is ``bound`` by compute, bandwidth or latency.
    """
    gpu: Gpu
    judged_ns: int
    """GPU time of these ops."""
    other_ns: int
    """GPU time of work whose operations and bytes are not known."""
    apart_ns: int
    """GPU time of transfers and collectives, which the memory does not bound."""
    steps: int

    @property
    def covered(self) -> float:
        """The share of GPU time, transfers and collectives apart, that is judged."""
        whole = self.judged_ns + self.other_ns
        return self.judged_ns / whole if whole else 0.0

    @property
    def efficiency(self) -> float:
        """The share of the judged time that the peaks need."""
        least = self.ops["least"].sum()
        return float(least) / self.judged_ns if self.judged_ns else 0.0

    @property
    def bounds(self) -> dict[str, float]:
        """Shares of the judged time by what bounds it, most first."""
        by = self.ops.group_by("bound").agg(pl.col("gpu").sum()).drop_nulls()
        return {
            bound: gpu / self.judged_ns
            for bound, gpu in by.sort("gpu", "bound", descending=True).iter_rows()
        }


@cached_per_trace
def roofline(trace: Trace) -> Roofline:
    """Return the roofline of each op of a trace's steady steps."""
    steady = steady_steps(trace)
    gpu = used_gpu(trace)
    kernels = steady.kernels
    communicates = known(kernels["kind"] == "communication")
    apart = communicates | named_like(kernels, TRANSFER)
    work = kernels.select("id", "op", "dur", "dtype", kernel="name").filter(~apart)
    ops = _judged(_costed(trace, work), gpu)
    counted, whole = int(ops["gpu"].sum()), int(work["dur"].sum())
    return Roofline(
        ops,
        gpu,
        counted,
        whole - counted,
        int(kernels["dur"].sum()) - whole,
        steady.count,
    )


def _costed(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that work is of, with their operations and bytes."""
    placed = work.drop_nulls("op")
    kernels = placed.group_by("op").agg(pl.col("kernel", "dtype").first())
    moved = _bytes(trace, kernels)
    flops = op_flops(trace).select("op", "flops", "type")
    counted = pl.concat([moved["op"], flops["op"].filter(known(flops["flops"] > 0))])
    root = inside(trace, counted)[placed["op"]]
    found = (
        placed.with_columns(root=root)
        .drop_nulls("root")
        .group_by(op="root")
        .agg(
            kernels=pl.col("id"),
            gpu=pl.col("dur").sum(),
            kernel=pl.col("kernel").get(pl.col("dur").arg_max()),
            kernel_dtype=pl.col("dtype").drop_nulls().first(),
        )
        .sort("op")
        .with_columns(text("kernel"), text("kernel_dtype"))
        .join(moved, on="op", how="left", maintain_order="left")
        .join(flops, on="op", how="left", maintain_order="left")
    )
    return found.with_columns(
        trace.ops[["inputs", *_PLACE]][found["op"]].get_columns(),
        name=trace.ops["name"][found["op"]].cast(pl.String),
    )


def _bytes(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the ``bytes`` of each ``op`` that has any.

    They are counted once for each name, set of inputs and kernel.
    """
    names = plain_names(trace.ops).drop_nulls()
    names = names.filter(pl.Series(map(is_counted, names["plain"]), dtype=pl.Boolean))
    calls = (
        trace.ops[["id", "name", "inputs"]]
        .filter(named(trace.ops, names["plain"]))
        .join(kernels, left_on="id", right_on="op", how="left", maintain_order="left")
    )
    keys = ["name", "inputs", "kernel", "dtype"]
    distinct = calls.select(keys).unique(maintain_order=True)
    shapes = (
        distinct.join(names, on="name", how="left", maintain_order="left")
        .with_columns(text("kernel").fill_null(""), text("dtype").fill_null(""))
        .join(
            trace.inputs,
            left_on="inputs",
            right_on="id",
            how="left",
            maintain_order="left",
        )
    )
    gradients = _gradient_bytes(trace)
    # Lists are taken out of a column in a third of the time that rows of them take.
    columns = [shapes[column].to_list() for column in _CALL]
    counted = [
        least_bytes(Call._make((*row, gradients))) for row in zip(*columns, strict=True)
    ]
    return (
        calls.join(
            distinct.with_columns(pl.Series("bytes", counted, dtype=pl.Float64)),
            on=keys,
            how="left",
            maintain_order="left",
            nulls_equal=True,
        )
        .select("bytes", op="id")
        .drop_nulls("bytes")
    )


def _gradient_bytes(trace: Trace) -> float:
    """Return how large all gradients of a step are: of the step with the fewest.

    Where a step adds up the gradients of several passes, that is too much.
    """
    ops = (
        trace.ops[["step", "inputs"]]
        .filter(trace.ops["name"] == _GRADIENT)
        .drop_nulls("inputs")
    )
    distinct = ops["inputs"].unique()
    size = nth("types", 0).replace_strict(ALL_SIZES, default=None)
    sized = (
        trace.inputs[["dims", "types"]][distinct]
        .select(inputs=distinct, bytes=elements() * size)
        .drop_nulls("bytes")
    )
    totals = ops.join(sized, on="inputs").group_by("step").agg(pl.col("bytes").sum())
    least = totals["bytes"].min()
    return float(least) if isinstance(least, (int, float)) else 0.0


def _judged(ops: pl.DataFrame, gpu: Gpu) -> pl.DataFrame:
    """Add what the GPU needs at least for each op, and what that is bound by."""
    peak = gpu.peak
    named = ops.with_columns(dtype=computed_in())
    if peak is None:
        return named.with_columns(
            least=pl.lit(None, pl.Float64), bound=pl.lit(None, pl.String)
        )
    rate = pl.col("dtype").replace_strict(peak.flops, default=None)
    compute = (pl.col("flops") / rate * _SECOND_NS).fill_null(0.0)
    memory = (pl.col("bytes") / peak.bandwidth * _SECOND_NS).fill_null(0.0)
    latency = LATENCY_NS * pl.col("kernels").list.len()
    return named.with_columns(
        least=pl.max_horizontal(compute, memory),
        bound=pl.when(pl.max_horizontal(compute, memory) < latency / 2)
        .then(pl.lit("latency"))
        .when(compute >= memory)
        .then(pl.lit("compute"))
        .otherwise(pl.lit("bandwidth")),
    )

"""An account of the GPU's time: every nanosecond in which it works has one cause.

A kernel's time is what its work needs, by its operations and bytes at the rate that
kernels of its class reach, and named losses: the rest. Where kernels of two streams
overlap, an instant belongs to the one that began first, so that the account adds up to
the time in which the GPU is busy.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.analysis.base.assumptions import (
    ACCOUNT_EFFICIENCY,
    FLASH_EFFICIENCY,
    LOW_OCCUPANCY,
    MATMUL_REACHED,
    MOST_OF_A_LOSS,
    SHORTEST_KERNEL_NS,
    SLOW_ALGORITHM,
)
from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.occupancy import idle_share, occupancy
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.patterns.copies import copies
from traceq.analysis.time.fusible_chains import fusible_chains
from traceq.analysis.time.roofline import roofline
from traceq.common.expressions import END, constant, text
from traceq.common.intervals import covered
from traceq.common.units import NS_PER_S
from traceq.common.words import layer_names
from traceq.graph.devices import busiest_device
from traceq.graph.nesting import INDEX
from traceq.model.schema import ACCOUNT_PARTS, ANALYSES

if TYPE_CHECKING:
    from collections.abc import Collection

    from traceq.analysis.base.device import Gpu
    from traceq.analysis.time.roofline import Roofline
    from traceq.model.trace import Trace

(
    WORK,
    FUSION,
    COPIES,
    LAYOUT,
    DTYPE,
    SHAPES,
    ALGORITHM,
    BLOCKS,
    LAUNCH,
    CONTENTION,
    TRANSFERS,
    UNKNOWN,
) = ACCOUNT_PARTS
# Copies that change what a tensor looks like in memory, and those that bring data.
_LAYOUTS = ("conv layout", "layout", "join", "backward", "inside")
# The driver copies bytes as they are: of contiguous tensors.
_AS_IT_IS = text("name").str.starts_with("Memcpy DtoD")
_BRINGS = ("transfer", "pageable", "collective")
_TENSOR_CORES = ("gemm", "conv")
# Elements that a row of a matrix on tensor cores should be a multiple of.
_ALIGNED = 8
_PLACE = ("file", "line", "function", "module")
_LINE = ("part", "name", "file", "line", "function")
# The time of kernels of which neither operations nor bytes are known.
_UNJUDGED = pl.col("part").is_in([UNKNOWN, BLOCKS, LAUNCH]) & pl.col("bound").is_null()


class GpuAccount(Struct, frozen=True, dict=True):
    """The GPU's time of the steady steps, by cause; times are per step."""

    steps: int
    busy_total: int
    """Time of all steps in which the busiest GPU works, in ns."""
    parts: pl.DataFrame
    """The rows of the table ``gpu_account``: each kernel's time by part, in ns of all
    steps. ``time`` adds up to ``busy_total``."""
    gpu: Gpu

    @property
    def busy_ns(self) -> float:
        """Time of a step in which the GPU works."""
        return self.busy_total / self.steps

    @cached_property
    def floor_ns(self) -> float:
        """Time of a step that the work needs, with transfers and collectives."""
        needed = self.parts.filter(pl.col("part").is_in([WORK, TRANSFERS]))
        return int(needed["time"].sum()) / self.steps

    @cached_property
    def unjudged_ns(self) -> float:
        """Time of a step in kernels of which nothing shows what their work needs."""
        return int(self.parts.filter(_UNJUDGED)["time"].sum()) / self.steps

    @property
    def above_ns(self) -> float:
        """Time of a step above that, of kernels whose need is known."""
        return self.busy_ns - self.floor_ns - self.unjudged_ns

    @property
    def ridge(self) -> dict[str, float]:
        """Operations per byte from which on work is compute-bound, by dtype."""
        peak = self.gpu.peak
        if peak is None:
            return {}
        return {dtype: rate / peak.bandwidth for dtype, rate in peak.flops.items()}

    @cached_property
    def kinds(self) -> pl.DataFrame:
        """By ``part``: ``time`` per step and ``kernels``, longest first."""
        return self.by("part")

    @cached_property
    def bounds(self) -> pl.DataFrame:
        """By ``bound`` (compute, bandwidth, latency or none): as ``kinds``."""
        return self.by("bound")

    @cached_property
    def lines(self) -> pl.DataFrame:
        """By part, op and line: ``time`` per step, ``kernels`` and ``bound``."""
        return self.by(*_LINE)

    @cached_property
    def modules(self) -> pl.DataFrame:
        """By part and module, layers of one class together: as ``kinds``."""
        named = self.parts.with_columns(module=layer_names(pl.col("module")))
        return self.by("part", "module", of=named)

    def losses(self, without: Collection[int] = ()) -> pl.DataFrame:
        """Return the losses by part, op and line, without those of some kernels.

        What nothing is known of may need all of its time.
        """
        lost = self.parts.filter(~pl.col("part").is_in([WORK, TRANSFERS]) & ~_UNJUDGED)
        if without:
            some = pl.Series([*without], dtype=lost["kernel"].dtype)
            lost = lost.filter(~pl.col("kernel").is_in(some.implode()))
        return self.by(*_LINE, of=lost)

    def by(self, *keys: str, of: pl.DataFrame | None = None) -> pl.DataFrame:
        """Return the time of a step by some columns, longest first."""
        parts = self.parts if of is None else of
        texts = [key for key in keys if key != "line"]
        return (
            parts.with_columns(pl.col(texts).cast(pl.String))
            .group_by(keys, maintain_order=True)
            .agg(
                time=pl.col("time").sum() / self.steps,
                kernels=pl.col("kernel").n_unique() / self.steps,
                **({} if "bound" in keys else {"bound": _longest_bound()}),
            )
            .sort("time", *keys, descending=[True, *(False for _ in keys)])
        )


def _longest_bound() -> pl.Expr:
    return pl.col("bound").get(pl.col("time").arg_max()).cast(pl.String)


@cached_per_trace
def gpu_account(trace: Trace) -> GpuAccount:
    """Return the account of a trace's steady steps."""
    steady = steady_steps(trace)
    ops = roofline(trace)
    kernels = _needed(trace, _timed(trace), ops)
    kernels = kernels.with_columns(
        *_columns(trace, kernels, ops),
        unfilled=idle_share(ops.gpu).fill_null(0.0),
        warps=occupancy(ops.gpu).fill_null(1.0),
    )
    parts = _parts(kernels)
    table = ANALYSES["gpu_account"]
    return GpuAccount(steady.count, steady.gpu_busy, table.shaped(parts), ops.gpu)


def _timed(trace: Trace) -> pl.DataFrame:
    """Return the kernels of the busiest GPU with the time that each adds.

    Kernels of a step are in order; what an earlier one covers is not counted again.
    """
    steady = steady_steps(trace)
    ran = busiest_device(trace.kernels)
    if trace.steps.height:
        ran = ran.filter(pl.col("step").is_in(steady.windows["step"].implode()))
    of_step = "step" if trace.steps.height else pl.lit(0)
    return (
        ran.sort("ts", "id")
        .with_columns(
            time=covered(pl.col("ts"), END).over(of_step),
        )
        .with_columns(
            overlaps=(
                (pl.col("time") < pl.col("dur"))
                | (pl.col("ts").shift(-1) < END).over(of_step).fill_null(value=False)
            )
            & ~_on_several_streams()
        )
    )


def _on_several_streams() -> pl.Expr:
    """Return whether an op divides its work among streams, as cuDNN does.

    The program has not made these, and the op would not be faster on one of them.
    """
    several = pl.col("stream").n_unique().over("op") > 1
    return several & pl.col("op").is_not_null()


def _needed(trace: Trace, kernels: pl.DataFrame, ops: Roofline) -> pl.DataFrame:
    """Add ``need``, the ns that the work of a kernel needs, and what that is by.

    ``root`` is the op whose work is known, ``bound`` what sets its time, ``reached``
    the share of its time that it needs, ``narrow`` what a matmul in float32 needs in
    TF32. The work of an op is divided among its kernels by their time.
    """
    judged = ops.ops.with_row_index("row")
    row_of = constant(None, trace.kernels.height, INDEX)
    exploded = judged.select("row", "kernels").explode("kernels")
    row_of = row_of.scatter(exploded["kernels"], exploded["row"].cast(INDEX))
    row = row_of[kernels["id"]]
    peak = ops.gpu.peak
    if peak is None:
        nothing = pl.lit(None, pl.Float64)
        return kernels.with_columns(
            root=judged["op"][row],
            need=nothing,
            narrow=nothing,
            bound=pl.lit(None, pl.String),
            flops=nothing,
        )
    reachable = judged.select(
        "op",
        "bound",
        "flops",
        "gpu",
        need=_reachable(ops, pl.col("dtype")),
        narrow=_reachable(ops, pl.lit("tf32")),
    )
    # An op of no length has no shares: 0 / 0.
    share = (kernels["dur"] / reachable["gpu"][row]).fill_nan(0.0)
    return kernels.with_columns(
        root=reachable["op"][row],
        bound=reachable["bound"][row],
        flops=reachable["flops"][row],
        need=reachable["need"][row] * share,
        narrow=reachable["narrow"][row] * share,
    )


def _reachable(ops: Roofline, dtype: pl.Expr) -> pl.Expr:
    """Return the time of an op at the rate that those of its class reach."""
    peak = ops.gpu.peak
    assert peak is not None  # noqa: S101 - the caller looked
    rate = dtype.replace_strict(peak.flops, default=None)
    name = text("name")
    flash = FLASH_EFFICIENCY.get(ops.gpu.capability[0], MATMUL_REACHED)
    compute = pl.lit(MATMUL_REACHED.compute)
    bandwidth = pl.lit(MATMUL_REACHED.bandwidth)
    for pattern, reached in ACCOUNT_EFFICIENCY.items():
        compute = (
            pl.when(name.str.contains(pattern)).then(reached.compute).otherwise(compute)
        )
        bandwidth = (
            pl.when(name.str.contains(pattern))
            .then(reached.bandwidth)
            .otherwise(bandwidth)
        )
    is_attention = name.str.contains("attention")
    compute = pl.when(is_attention).then(flash.compute).otherwise(compute)
    return pl.max_horizontal(
        (pl.col("flops") / (compute * rate) * NS_PER_S).fill_null(0.0),
        (pl.col("bytes") / (bandwidth * peak.bandwidth) * NS_PER_S).fill_null(0.0),
    )


def _columns(trace: Trace, kernels: pl.DataFrame, ops: Roofline) -> list[pl.Series]:
    """Return what the losses of kernels are told by."""
    count = trace.kernels.height
    ids = kernels["id"]
    chained = fusible_chains(trace).kernels
    fused = constant(0.0, count, pl.Float64).scatter(
        chained["kernel"], chained["share"]
    )
    copied = copies(trace, kernels)
    part = constant(None, count, pl.String).scatter(
        copied["id"], copied["part"].cast(pl.String)
    )
    root = kernels["root"]
    misaligned = trace.inputs.select(_misaligned()).to_series()
    named = root.zip_with(root.is_not_null(), kernels["op"].cast(root.dtype))
    return [
        fused[ids].alias("fused"),
        part[ids].alias("copy_part"),
        misaligned[trace.ops["inputs"][root]],
        kernels.select(_older(ops.gpu.capability[0])).to_series(),
        trace.ops["name"][named].cast(pl.String).alias("of_op"),
    ]


def _misaligned() -> pl.Expr:
    """Return whether a row of an op's inputs does not begin at a multiple of 16 bytes.

    Without strides, inputs count as contiguous.
    """
    odd = pl.element() % _ALIGNED != 0
    last = pl.col("dims_text").str.extract_all(r"\d+\]")
    width = pl.element().str.head(-1).cast(pl.Int64, strict=False)
    by_dims = last.list.eval(width % _ALIGNED != 0).list.any()
    strided = pl.element().list.eval((pl.element() > 1) & odd).list.any()
    by_strides = pl.col("strides").list.eval(strided).list.any()
    return pl.coalesce(by_strides, by_dims).alias("misaligned")


def _older(capability: int) -> pl.Expr:
    """Return whether an attention kernel was made for an earlier GPU than this."""
    made_for = text("name").str.extract(r"^fmha_cutlass.*_sm(\d)\d")
    older = made_for.cast(pl.Int64) < capability
    return older.fill_null(value=False).alias("older")


def _parts(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each kernel and part of its time."""
    time = pl.col("time")
    moves = pl.col("copy_part").is_not_null()
    brings = pl.col("copy_part").is_in(_BRINGS) | (pl.col("kind") == "communication")
    copied = moves & ~brings
    need = (
        pl.when(copied)
        .then(0.0)
        .when(brings)
        .then(0.0)
        .when(_wide())
        .then(pl.min_horizontal("need", "narrow"))
        .otherwise(pl.col("need"))
        .fill_null(0.0)
    )
    whole = (
        pl.when(brings)
        .then(pl.lit(TRANSFERS))
        .when(copied & pl.col("copy_part").is_in(_LAYOUTS) & ~_AS_IT_IS)
        .then(pl.lit(LAYOUT))
        .when(copied)
        .then(pl.lit(COPIES))
    )
    rows = kernels.with_columns(whole=whole, needs=need).with_columns(
        saved=pl.when(pl.col("whole").is_null())
        .then((pl.col("fused") * time).round().cast(pl.Int64))
        .otherwise(0),
        loss=pl.coalesce("whole", _loss()),
    )
    # What fusion leaves is work, and so is what the work needs.
    left = time - pl.col("saved")
    rows = rows.with_columns(
        work=pl.when(pl.col("whole").is_not_null())
        .then(0)
        .when(pl.col("fused") > 0)
        .then(left)
        .otherwise(pl.min_horizontal(left, pl.col("needs").round().cast(pl.Int64)))
    )
    pieces = {
        WORK: pl.col("work"),
        FUSION: pl.col("saved"),
        None: time - pl.col("work") - pl.col("saved"),
    }
    every = [
        rows.select(
            kernel="id",
            op="root",
            part=pl.lit(name) if name else pl.col("loss"),
            time=part,
            bound=pl.col("bound"),
            name=pl.coalesce("of_op", pl.col("name").cast(pl.String)),
            **{column: pl.col(column) for column in _PLACE},
        ).filter(pl.col("time") > 0)
        for name, part in pieces.items()
    ]
    return pl.concat(every).sort("kernel", "part", maintain_order=True)


def _wide() -> pl.Expr:
    """Return whether a matmul or convolution is in float32 without tensor cores."""
    return (
        (pl.col("flops") > 0)
        & pl.col("narrow").is_not_null()
        & (pl.col("narrow") < 0.5 * pl.col("need"))
    ).fill_null(value=False)


def _loss() -> pl.Expr:
    """Return what a kernel loses time by, beyond its work and what fusion saves."""
    reached = pl.col("needs") / pl.col("dur")
    lost = pl.col("dur") - pl.col("needs")
    # Matmuls, convolutions and attention are made for few warps with many registers.
    sparse = (pl.col("warps") < LOW_OCCUPANCY) & ~(pl.col("flops") > 0).fill_null(
        value=False
    )
    partly = pl.col("unfilled") * pl.col("dur") >= MOST_OF_A_LOSS * lost
    return (
        pl.when("overlaps")
        .then(pl.lit(CONTENTION))
        .when(_wide())
        .then(pl.lit(DTYPE))
        .when(pl.col("of_op").str.contains("mm$") & pl.col("misaligned"))
        .then(pl.lit(SHAPES))
        .when(pl.col("dur") <= SHORTEST_KERNEL_NS)
        .then(pl.lit(LAUNCH))
        .when(sparse | ((lost > 0) & partly))
        .then(pl.lit(BLOCKS))
        .when(pl.col("needs") <= 0)
        .then(pl.lit(UNKNOWN))
        .when(pl.col("older") | (reached < SLOW_ALGORITHM))
        .then(pl.lit(ALGORITHM))
        .otherwise(pl.lit(UNKNOWN))
    )

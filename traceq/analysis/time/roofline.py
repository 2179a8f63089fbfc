"""Roofline of each op: its time compared with the GPU's lower bound for its work.

The lower bound is the op's FLOPs at the peak of their dtype (compute-bound) or its
bytes at the peak of the memory (memory-bound), whichever takes longer. An op whose
bytes fit into the GPU's cache may be faster than that. Where the instructions of its
kernel take longer than either, it is compute-bound too.
"""

from __future__ import annotations

from functools import cache, partial, reduce
from operator import mul
from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.analysis.base.assumptions import ELEMENT_INSTRUCTIONS, THREAD_INSTRUCTIONS
from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.device import used_gpu
from traceq.analysis.base.group_ids import alike
from traceq.analysis.base.ownership import (
    inside,
    named,
    named_like,
    plain,
    plain_names,
)
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.time.bytes_moved import Call, is_counted, least_bytes
from traceq.analysis.time.flops import COMPUTING, computed_in, op_flops
from traceq.common.expressions import constant, elements, fill_false, known, nth, text
from traceq.common.units import NS_PER_S
from traceq.graph.nesting import INDEX, row_numbers
from traceq.model.dtypes import ALL_SIZES
from traceq.model.names import TRANSFER

if TYPE_CHECKING:
    from traceq.analysis.base.device import Gpu
    from traceq.model.trace import Trace

# Work this short is as short as it gets: launching and ending it is most of it.
# Measured on an H200: the smallest kernels take 1 to 3 µs.
LATENCY_NS = 3_000
_GRADIENT = "torch::autograd::AccumulateGrad"
# The elements of a thread are the second argument of the template.
_ADDRESSED = r"\belementwise_kernel<\d+, (\d+)"
# As of a Call.
_CALL = (
    *("plain", "dims", "types", "strides"),
    *("values", "dims_text", "kernel", "dtype"),
)
_PLACE = ("module", "file", "line", "function", "via", "call_line", "phase")


class Roofline(Struct, frozen=True):
    """The ops of the steady steps with GPU work, and the GPU's peaks."""

    ops: pl.DataFrame
    """A row for each op with a count, and its place.

    ``op`` is its id, ``kernels`` are those of its work, ``kernel`` names the longest;
    ``gpu`` is their time and ``least`` what the peaks allow for its ``flops`` in
    ``dtype`` and its ``bytes``, in ns; it is ``bound`` by compute, bandwidth or
    latency.
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
        """Fraction of GPU time, transfers and collectives apart, that is judged."""
        whole = self.judged_ns + self.other_ns
        return self.judged_ns / whole if whole else 0.0

    @property
    def efficiency(self) -> float:
        """Fraction of the judged time that the peaks need."""
        least = self.ops["least"].sum()
        return float(least) / self.judged_ns if self.judged_ns else 0.0

    @property
    def bounds(self) -> dict[str, float]:
        """Fractions of the judged time by what bounds it, largest first."""
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
    work = kernels.select(
        "id", "op", "dur", "kind", "dtype", kernel="name", threads=_threads()
    ).filter(~apart)
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
    placed = work.filter(work["op"].is_not_null())
    moved = _bytes(trace, placed)
    flops = op_flops(trace).select("op", "flops", "type")
    counted = pl.concat([moved["op"], flops["op"].filter(known(flops["flops"] > 0))])
    root = inside(trace, counted)[placed["op"]].alias("root")
    judged = placed.hstack([root]).filter(root.is_not_null())
    costed = (
        judged.group_by(op="root")
        .agg(kernels=pl.col("id"), gpu=pl.col("dur").sum(), longest=pl.col("dur").max())
        .sort("op")
    )
    op, ops = costed["op"], trace.ops
    longest = constant(0, ops.height, pl.Int64).scatter(op, costed["longest"])
    main = judged.filter(judged["dur"] == longest[judged["root"]])
    typed = judged.filter(judged["dtype"].is_not_null())
    # Of an op that also transposes, or sums up, it is that of what computes longest.
    computing = typed.filter(typed["kind"].is_in(COMPUTING))
    typed = pl.concat([computing.sort("dur", descending=True), typed])
    dtype = typed["dtype"][_first_rows(ops, typed["root"])[op]]
    of_flops = _first_rows(ops, flops["op"])[op]
    main = main[_first_rows(ops, main["root"])[op]]
    mixed = in_two_orders(trace)[ops["inputs"][op]]
    return costed.drop("longest").with_columns(
        main["kernel"],
        _instructions(main).zip_with(
            ~fill_false(mixed), pl.Series([None], dtype=pl.Float64)
        ),
        dtype.alias("kernel_dtype"),
        constant(None, ops.height, pl.Float64)
        .scatter(moved["op"], moved["bytes"])[op]
        .alias("bytes"),
        flops["flops"][of_flops],
        flops["type"][of_flops],
        *(ops[column][op] for column in ("inputs", *_PLACE)),
        ops["name"][op].cast(pl.String),
    )


def _threads() -> pl.Expr:
    """Return how many threads a kernel has."""
    sizes = [
        pl.col(column).list.get(at, null_on_oob=True)
        for column in ("grid", "block")
        for at in range(3)
    ]
    return reduce(mul, sizes)


def _instructions(kernels: pl.DataFrame) -> pl.Series:
    """Return the instructions of kernels whose threads take a known number of them."""
    name = text("kernel")
    elements_each = name.str.extract(_ADDRESSED).cast(pl.Float64)
    each = ELEMENT_INSTRUCTIONS * elements_each
    for pattern, count in THREAD_INSTRUCTIONS.items():
        each = pl.when(name.str.contains(pattern)).then(float(count)).otherwise(each)
    return kernels.select(instructions=pl.col("threads") * each).to_series()


def in_two_orders(trace: Trace) -> pl.Series:
    """Return for each set of inputs whether its largest are stored in two orders.

    The threads of a kernel then read or write memory with gaps, which takes longer
    than their instructions do.
    """
    last = pl.col("strides").list.reverse()
    stored = (
        trace.inputs.select("id", "dims", "strides")
        .filter(pl.col("dims").list.len() == pl.col("strides").list.len())
        .explode("dims", "strides")
        .filter(pl.col("strides").list.len() > 1)
        .select(
            "id",
            size=pl.col("dims").list.eval(pl.element().product()).list.first(),
            order=last.list.eval(pl.element() == 1).list.arg_max(),
        )
        .filter(pl.col("size") == pl.col("size").max().over("id"))
        .group_by("id")
        .agg(mixed=pl.col("order").n_unique() > 1)
    )
    nothing = constant(None, trace.inputs.height, pl.Boolean)
    return nothing.scatter(stored["id"], stored["mixed"])


def _first_rows(ops: pl.DataFrame, of: pl.Series) -> pl.Series:
    """Return for each op the first row that is of it, if any."""
    nothing = constant(None, ops.height, INDEX)
    # Of what is written at one place the last stays.
    backwards = row_numbers(len(of)).reverse()
    return nothing.scatter(of[backwards], backwards)


def _bytes(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Return the ``bytes`` of each ``op`` that has any.

    They are counted once for each name, set of inputs and kernel.
    """
    ops = trace.ops
    names = plain_names(ops)["plain"].drop_nulls()
    names = names.filter(pl.Series(map(is_counted, names), dtype=pl.Boolean))
    calls = ops[["id", "name", "inputs"]].filter(named(ops, names))
    launched = _first_rows(ops, work["op"])[calls["id"]]
    calls = calls.with_columns(work[column][launched] for column in ("kernel", "dtype"))
    number, first = alike(*calls[["name", "inputs", "kernel", "dtype"]])
    distinct = calls[first]
    expanded = pl.col("strides").list.eval(pl.element().list.contains(0)).list.any()
    shapes = trace.inputs[distinct["inputs"]].with_columns(
        *distinct.select(text("kernel").fill_null(""), text("dtype").fill_null("")),
        plain(ops, distinct["name"]),
        # Few have them, and lists of lists take longest to be made Python's.
        strides=pl.when(expanded).then("strides"),
    )
    gradients = cache(partial(_gradient_bytes, trace))
    # Lists are taken out of a column in a third of the time that rows of them take.
    columns = [shapes[column].to_list() for column in _CALL]
    counted = [
        least_bytes(Call._make((*row, gradients))) for row in zip(*columns, strict=True)
    ]
    moved = pl.Series("bytes", counted, dtype=pl.Float64)[number]
    return pl.DataFrame([moved, calls["id"].alias("op")]).drop_nulls("bytes")


def _gradient_bytes(trace: Trace) -> float:
    """Return the size of all gradients of a step: of the step with the fewest.

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
    """Add the lower bound of each op's time, and what sets it."""
    peak = gpu.peak
    named = ops.with_columns(dtype=computed_in())
    if peak is None:
        return named.drop("instructions").with_columns(
            least=pl.lit(None, pl.Float64), bound=pl.lit(None, pl.String)
        )
    rate = pl.col("dtype").replace_strict(peak.flops, default=None)
    needed = named.select(
        compute=(pl.col("flops") / rate * NS_PER_S).fill_null(0.0),
        memory=(pl.col("bytes") / peak.bandwidth * NS_PER_S).fill_null(0.0),
        latency=LATENCY_NS * pl.col("kernels").list.len(),
        # A core adds and multiplies in one instruction.
        instructions=(
            pl.col("instructions") / (peak.flops["fp32"] / 2) * NS_PER_S
        ).fill_null(0.0),
    )
    least = pl.max_horizontal("compute", "memory")
    judged = needed.select(
        least=least,
        bound=pl.when(least < pl.col("latency") / 2)
        .then(pl.lit("latency"))
        .when(pl.max_horizontal("compute", "instructions") >= pl.col("memory"))
        .then(pl.lit("compute"))
        .otherwise(pl.lit("bandwidth")),
    )
    return named.drop("instructions").hstack(judged)

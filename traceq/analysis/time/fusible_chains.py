"""Chains of memory-bound ops that a compiler would fuse, with what they would move.

A chain is the memory-bound ops between two matmuls, convolutions or other ops that
are not fused, in the order in which the forward calls them, with their backward. It
goes on after a matmul that uses nothing of it, as that of the second half of a gated
layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.analysis.base.assumptions import (
    BIAS_SUM_SAVED,
    FUSED_EFFICIENCY,
    FUSED_KERNEL_NS,
    FUSED_POINTWISE,
    LOOSE_SAVED,
)
from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.group_ids import alike
from traceq.analysis.base.ownership import inside, named_like, nobody, plain
from traceq.analysis.base.steady import steady_steps
from traceq.analysis.patterns.compilation import REGION
from traceq.analysis.patterns.copies import copies
from traceq.analysis.time.fused_bytes import Fused, Unit, fused_bytes, reads, writes
from traceq.analysis.time.roofline import roofline
from traceq.common.expressions import constant, known, rows_where, text
from traceq.common.words import layer_names
from traceq.graph.devices import busiest_device
from traceq.graph.nesting import INDEX, row_numbers

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from traceq.model.trace import Trace

# Ops that inductor computes in kernels of its own, together with others.
_FUSIBLE = (
    r"^aten::(_?(abs|add|addcdiv|addcmul|atan2|bitwise_\w+|ceil|celu|clamp\w*|cos|cosh"
    r"|div|elu|eq|erf|erfc|exp|expm1|floor|floor_divide|fmod|ge|gelu|glu|gt|hardsigmoid"
    r"|hardswish|hardtanh|isfinite|isinf|isnan|le|leaky_relu|lerp|log|log10|log1p|log2"
    r"|log_sigmoid_forward|logical_\w+|logit|lt|masked_fill|maximum|minimum|mish|mul"
    r"|nan_to_num|native_dropout|fused_dropout|ne|neg|pow|reciprocal|relu|remainder"
    r"|round|rsqrt|rsub|sgn|normal|uniform|selu|sigmoid|sign|silu|sin|sinh|softplus|sqrt|square|sub|tan"
    r"|tanh|threshold|trunc|where|xlogy|copy|clone|cat|stack|fill|zero|tril|triu"
    r"|bernoulli|prelu_kernel|softmax|log_softmax|native_layer_norm|native_group_norm|fused_rms_norm"
    r"|native_batch_norm|cudnn_batch_norm|miopen_batch_norm|batch_norm\w*|mean|sum|var"
    r"|std|var_mean|std_mean|amax|amin|max|min|prod|norm|linalg_vector_norm|logsumexp"
    r"|all|any|mse_loss|smooth_l1_loss|l1_loss|binary_cross_entropy\w*|nll_loss\w*"
    r"|huber_loss|kl_div|embedding|gather|index_select|upsample_nearest2d|arange|roll"
    r"|flip|constant_pad_nd)_?|\w+_backward(_data)?)$"
)
_NEVER = (
    r"convolution_backward|embedding_dense_backward|attention|_rnn|lstm|fft|ctc"
    r"|max_pool|avg_pool|scatter|index_put"
)
# Copies that stay copies, or that rules of their own are about.
_STAY = ("optimizer", "collective", "pageable", "transfer", "weights", "dequantized")
_LOOSE = r"^aten::(add_?|copy_|fill_|zero_|cat|sum)$"
_SUM = r"^aten::sum$"
_OUTSIDE = ("backward", "optimizer", "data")
_MOST_JOINED = 4
# Fixes with nearly the same share are one.
_SHARES = 10
_GENERATED = REGION


class Chains(Struct, frozen=True):
    """The fusible chains of the steady steps."""

    kernels: pl.DataFrame
    """A row for each kernel of a chain: ``kernel``, ``op`` (of the forward), ``chain``
    (none for gradients of views, and sums of several), ``back`` (of its backward),
    ``dur``, and ``share``: of its time, what goes."""
    chains: pl.DataFrame
    """A row for each chain and pass: ``chain``, ``back``, ``kernels`` (how many),
    ``gpu`` and ``fused``, the ns now and fused, ``bytes``, those moved once fused."""

    @property
    def saved_ns(self) -> float:
        """Time of all steps that goes once they are fused."""
        kernels = self.kernels
        return float((kernels["dur"] * kernels["share"]).sum())

    @property
    def several(self) -> pl.DataFrame:
        """The kernels that have others to be fused with."""
        alone = self.chains.filter(pl.col("kernels") == 1).select("chain", "back")
        return self.kernels.join(alone, on=["chain", "back"], how="anti")

    def by_share(self, among: pl.Series | None = None) -> pl.DataFrame:
        """Return the kernels that fusing shortens, by the ``share`` that goes.

        Kernels with nearly the same share are one row, as each is a change of the
        replay. ``among`` are those that are compiled, unless all are.
        """
        kernels = self.kernels
        if among is not None:
            kernels = kernels.filter(pl.col("kernel").is_in(among.implode()))
        rows = kernels.group_by(
            (pl.col("share") * _SHARES).round().alias("at"), maintain_order=True
        ).agg(
            "kernel",
            share=(pl.col("dur") * pl.col("share")).sum() / pl.col("dur").sum(),
        )
        return rows.sort("at").filter(pl.col("share") > 0).select("kernel", "share")

    def without(self, claimed: Collection[int]) -> Chains:
        """Return the chains without kernels that other fixes change.

        What is left of a chain is fused as well, with the same share of its time.
        """
        if not claimed:
            return self
        taken = pl.Series([*claimed], dtype=self.kernels["kernel"].dtype)
        left = self.kernels.filter(~pl.col("kernel").is_in(taken.implode()))
        return Chains(left, self.chains)


_KERNELS = pl.Schema(
    {
        "kernel": pl.UInt32(),
        "op": INDEX,
        "chain": pl.UInt32(),
        "back": pl.Boolean(),
        "dur": pl.Int64(),
        "share": pl.Float64(),
    }
)
_MOVED = {
    "forward_bytes": pl.Float64,
    "backward_bytes": pl.Float64,
    "reduces": pl.Boolean,
}
_CHAINS = pl.Schema(
    {
        "chain": pl.UInt32(),
        "back": pl.Boolean(),
        "kernels": pl.UInt32(),
        "gpu": pl.Int64(),
        "fused": pl.Float64(),
        "bytes": pl.Float64(),
    }
)


def none() -> Chains:
    """Return that there are no chains."""
    return Chains(_KERNELS.to_frame(), _CHAINS.to_frame())


@cached_per_trace
def fusible_chains(trace: Trace) -> Chains:
    """Return the chains of a trace's steady steps that a compiler would fuse."""
    ops_roofline = roofline(trace)
    peak = ops_roofline.gpu.peak
    if peak is None or not trace.facts.shapes or not ops_roofline.ops.height:
        return none()
    units = _units(trace, ops_roofline.ops)
    forward = units.filter(
        pl.col("forward").is_null(),
        ~text("phase").is_in(_OUTSIDE).fill_null(value=False),
    )
    if not forward.height or not forward["fusible"].any():
        return none()
    members, moved = _chained(trace, forward)
    kernels = _with_backward(trace, units, members)
    if not kernels.height:
        return none()
    rate = FUSED_EFFICIENCY.bandwidth * peak.bandwidth / 1e9
    chains = (
        kernels.drop_nulls("chain")
        .group_by("chain", "back")
        .agg(kernels=pl.len(), gpu=pl.col("dur").sum())
        .join(moved, on="chain")
        .with_columns(
            bytes=pl.when("back").then("backward_bytes").otherwise("forward_bytes")
        )
        .with_columns(
            fused=FUSED_KERNEL_NS
            + pl.col("bytes")
            / rate
            * pl.when("reduces").then(1.0).otherwise(FUSED_POINTWISE)
        )
        .with_columns(
            share=(1 - pl.col("fused") / pl.col("gpu")).clip(0.0, 1.0),
            fused=pl.min_horizontal("fused", "gpu"),
        )
        # A single kernel is fused with nothing.
        .with_columns(
            share=pl.when(pl.col("kernels") > 1).then("share").otherwise(0.0),
        )
        .sort("chain", "back")
    )
    shares = chains.select("chain", "back", "share")
    return Chains(
        kernels.join(shares, on=["chain", "back"], how="left", maintain_order="left")
        .with_columns(pl.col("share").fill_null(_loose_share(trace, kernels)))
        .select(_KERNELS.names()),
        chains.select(_CHAINS.names()),
    )


def _units(trace: Trace, judged: pl.DataFrame) -> pl.DataFrame:
    """Return the ops with GPU work of their own, in order, with their kernels.

    ``fusible`` is whether a compiler would compute it in a kernel with others.
    """
    ops = trace.ops
    kernels = busiest_device(steady_steps(trace).kernels)
    of_judged = judged.select("op", "kernels").explode("kernels")
    nothing = constant(None, trace.kernels.height, INDEX)
    root = nothing.scatter(of_judged["kernels"], of_judged["op"].cast(INDEX))
    root = root[kernels["id"]]
    unit = root.zip_with(root.is_not_null(), kernels["op"])
    copied = copies(trace, steady_steps(trace).kernels)
    stays = copied["id"].filter(copied["part"].cast(pl.String).is_in(_STAY))
    moved = (
        kernels.select("id", "dur", "activity", unit=unit)
        .with_columns(stays=pl.col("id").is_in(stays.implode()))
        .filter(pl.col("unit").is_not_null())
        .group_by("unit")
        .agg(
            kernels=pl.col("id"),
            gpu=pl.col("dur").sum(),
            plain=~((pl.col("activity") == "memcpy") | pl.col("stays")).any(),
        )
    )
    at = moved["unit"]
    known_bytes = constant(value=False, count=ops.height, dtype=pl.Boolean)
    counted = judged.filter(pl.col("flops").is_null() | (pl.col("flops") == 0))["op"]
    known_bytes = known_bytes.scatter(counted, values=True)
    fusible = named_like(ops, _FUSIBLE) & ~named_like(ops, _NEVER)
    compiled = inside(trace, rows_where(named_like(ops, _GENERATED))).is_not_null()
    return (
        moved.select(
            "kernels",
            "gpu",
            pl.col("unit").alias("op"),
            fusible=pl.col("plain") & (fusible & ~compiled)[at],
        )
        .with_columns(
            *(
                ops[column][at]
                for column in (
                    "name",
                    "inputs",
                    "thread",
                    "ts",
                    "step",
                    "phase",
                    "forward",
                )
            ),
            *(ops[column][at] for column in ("module", "file", "line")),
        )
        .sort("thread", "ts", "op")
    )


def _chained(trace: Trace, forward: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the ``op`` and ``chain`` of fusible ops, and the bytes of each chain."""
    modules = layer_names_of(forward).cast(pl.Categorical)
    place = alike(forward["file"], forward["line"], modules).number
    same, first = alike(forward["name"], forward["inputs"], place, forward["fusible"])
    distinct = _distinct(trace, forward[first].with_columns(place=place[first]))
    rows = forward.select("op", "thread", "step", "fusible").with_columns(
        same=same, row=row_numbers(forward.height)
    )
    ends = pl.col("fusible") & ~pl.col("fusible").shift(1, fill_value=False)
    apart = (pl.col("thread") != pl.col("thread").shift(1)) | (
        pl.col("step").ne_missing(pl.col("step").shift(1))
    )
    rows = rows.with_columns(
        block=(ends | apart.fill_null(value=True)).cum_sum(),
        apart=apart.fill_null(value=True),
    )
    blocks = rows.group_by("block", maintain_order=True).agg(
        "same", "fusible", apart=pl.col("apart").first()
    )
    number, first = _alike_lists(blocks["same"])
    alone = pl.Series(
        [
            _goes_on([distinct[entry] for entry in some])
            for some in blocks["same"][first]
        ],
        dtype=pl.Boolean,
    )[number]
    joined = alone.shift(1, fill_value=False) & ~blocks["apart"]
    chain = _limited(joined)
    blocks = blocks.with_columns(chain=chain)
    rows = rows.join(blocks.select("block", "chain"), on="block", maintain_order="left")
    per = rows.group_by("chain", maintain_order=True).agg("same", "fusible")
    contexts = per.with_columns(
        before=pl.col("same").shift(1).fill_null(pl.lit([], pl.List(same.dtype)))
    )
    number, first = _alike_lists(contexts["same"], contexts["before"])
    moved = [
        _moved(
            [distinct[entry] for entry in some],
            [distinct[entry] for entry in before or ()],
        )
        for some, before in contexts.select("same", "before")[first].iter_rows()
    ]
    table = pl.DataFrame(moved, schema=_MOVED, orient="row")
    return (
        rows.filter("fusible").select("op", "chain"),
        pl.concat([per.select("chain"), table[number]], how="horizontal"),
    )


def layer_names_of(forward: pl.DataFrame) -> pl.Series:
    """Return the modules of ops, without the numbers of their layers."""
    return forward.select(layer_names(pl.col("module"))).to_series()


def _alike_lists(*lists: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Return a number for equal rows, and the first row of each number."""
    texts = [column.cast(pl.List(pl.String)).list.join(",") for column in lists]
    return alike(*(item.cast(pl.Categorical) for item in texts))


def _limited(joined: pl.Series) -> pl.Series:
    """Return the number of the chain of each block: few of them are joined in one."""
    run = (~joined).cum_sum()
    frame = pl.DataFrame({"run": run}).with_columns(
        at=pl.int_range(pl.len()).over("run") // _MOST_JOINED
    )
    return alike(frame["run"], frame["at"]).number.cast(pl.UInt32)


def _distinct(trace: Trace, units: pl.DataFrame) -> list[Unit]:
    shapes = trace.inputs[units["inputs"]]
    names = plain(trace.ops, units["name"])
    columns = (
        names.to_list(),
        *(
            shapes[column].to_list()
            for column in ("dims", "types", "strides", "values")
        ),
        units["place"].to_list(),
        units["fusible"].to_list(),
    )
    return [Unit._make(row) for row in zip(*columns, strict=True)]


def _split(units: Sequence[Unit]) -> tuple[list[Unit], list[Unit]]:
    """Return the ops up to the last fusible one, and those after it."""
    last = max((at for at, unit in enumerate(units) if unit.fusible), default=-1)
    return list(units[: last + 1]), list(units[last + 1 :])


def _goes_on(units: Sequence[Unit]) -> bool:
    """Return whether no op after those of a block uses what the last of them makes."""
    chain, after = _split(units)
    made = writes(chain[-1]) if chain else None
    if not made or not after:
        return False
    read = [{count for count, _ in reads(unit)} for unit in after]
    return all(some and made[0] not in some for some in read)


def _moved(units: Sequence[Unit], before: Sequence[Unit]) -> Fused:
    chain, after = _split(units)
    _, earlier = _split(before)
    return fused_bytes(earlier, chain, after)


def _with_backward(
    trace: Trace, units: pl.DataFrame, members: pl.DataFrame
) -> pl.DataFrame:
    """Return the kernels of the chains' ops and of their backward."""
    chain_of = constant(None, trace.ops.height, pl.UInt32).scatter(
        members["op"], members["chain"]
    )
    # An op's backward is of the op around it that autograd knows.
    inner = nobody(trace).scatter(members["op"], members["op"].cast(INDEX))
    outer = _outermost(trace, members["op"])
    inner = inner.scatter(outer["outer"], outer["op"].cast(INDEX))
    fusible = units.filter("fusible")
    own = chain_of[fusible["op"]]
    origin = inner[fusible["forward"]]
    back = known(origin.is_not_null()) & own.is_null()
    op = fusible["op"].cast(INDEX).zip_with(~back, origin)
    loose = named_like(trace.ops, _LOOSE)[fusible["op"]]
    loose &= fusible["phase"].cast(pl.String) == "backward"
    table = fusible.select("kernels").with_columns(
        op=op, back=back | known(loose), chain=chain_of[op]
    )
    durations = trace.kernels["dur"]
    # The gradients of views, and sums of several, are of no op of a chain.
    chosen = table["chain"].is_not_null() | known(loose)
    rows = table.filter(chosen).explode("kernels")
    return rows.rename({"kernels": "kernel"}).with_columns(
        durations[rows["kernels"]].alias("dur")
    )


def _loose_share(trace: Trace, kernels: pl.DataFrame) -> pl.Series:
    """Return what goes of kernels that are of no chain: less where they add up rows."""
    sums = named_like(trace.ops, _SUM)[kernels["op"]]
    return pl.select(
        pl.when(sums).then(BIAS_SUM_SAVED).otherwise(LOOSE_SAVED)
    ).to_series()


def _outermost(trace: Trace, ops: pl.Series) -> pl.DataFrame:
    """Return each op with all ops around it, as ``outer``."""
    parent = trace.ops["parent"]
    frames, outer, of = [], ops, ops
    for _ in range(6):
        outer = parent[outer]
        there = outer.is_not_null()
        outer, of = outer.filter(there), of.filter(there)
        if not len(outer):
            break
        frames.append(pl.DataFrame({"outer": outer, "op": of}))
    empty = pl.DataFrame({"outer": ops.clear(), "op": ops.clear()})
    return pl.concat([empty, *frames]) if frames else empty

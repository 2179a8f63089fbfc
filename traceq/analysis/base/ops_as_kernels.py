"""Ops of a recording without GPU work, as the kernels that a GPU would run.

Patterns are recognised by the ops that have GPU work. On the CPU an op computes by
itself; here each op that computes has a row of ``kernels``, so that the same question
can be asked of the same program without a GPU. Times are those of the CPU, and tell
nothing about a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import inside, named, named_like
from traceq.common.expressions import known, rows_where
from traceq.model.schema import TABLES

if TYPE_CHECKING:
    from traceq.model.trace import Trace

MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
_COPIES = ("aten::copy_",)
# These compute nothing: they view, allocate, or ask for what an op inside them does.
_WITHOUT_WORK = (
    r"^aten::(_unsafe_view|_reshape_alias|alias|as_strided_?|chunk|contiguous"
    r"|detach_?|diagonal|empty\w*|expand\w*|flatten|is_\w+|lift_fresh|movedim|narrow"
    r"|new_empty\w*|numpy_T|permute|real|requires_grad_|reshape\w*|resize\w*"
    r"|resolve_(conj|neg)|result_type|select|set_|slice|split\w*|squeeze_?|swapaxes|t_?"
    r"|to|transpose_?|type_as|unbind|unflatten\w*|unfold|unsqueeze_?|view\w*"
    r"|_local_scalar_dense|item)$"
)
_COMPUTES = r"^(aten|torchvision|torchaudio|xformers|flash_attn)::"
_SAME = ("ts", "dur", "step", "phase", "module", "file", "line", "function", "via")


@cached_per_trace
def with_ops_as_kernels(trace: Trace) -> Trace:
    """Return a trace without GPU work with a kernel for each op that computes.

    What the data loader computes is left out: it stays on the CPU.
    """
    ops = trace.ops[["id", "name", *_SAME]][_computing(trace)]
    gemm, copy = (named(trace.ops, some)[ops["id"]] for some in (MATMULS, _COPIES))
    kind = (
        pl.when(gemm)
        .then(pl.lit("gemm"))
        .when(copy)
        .then(pl.lit("copy"))
        .otherwise(pl.lit("other"))
    )
    table = TABLES["kernels"]
    rows = ops.select(
        *_SAME,
        pl.col("name").cast(pl.String),
        op="id",
        id=pl.int_range(pl.len()),
        kind=kind,
        activity=pl.lit("kernel"),
        device=pl.lit(0),
        stream=pl.lit(0),
    )
    missing = [name for name in table.dtypes if name not in rows.columns]
    kernels = rows.with_columns(
        pl.lit(None, table.dtypes[name]).alias(name) for name in missing
    )
    return replace(
        trace, facts=replace(trace.facts, gpu=True), kernels=table.shaped(kernels)
    )


def _computing(trace: Trace) -> pl.Series:
    """Return the rows of the ops that compute: matmuls, and else the innermost."""
    ops = trace.ops
    matmuls = named(ops, MATMULS)
    works = named_like(ops, _COMPUTES) & ~named_like(ops, _WITHOUT_WORK)
    works &= ~ops["compiling"] & ops["phase"].ne_missing("data")
    # A matmul on the CPU may copy its bias first: on a GPU that is one kernel.
    within = inside(trace, rows_where(matmuls))[ops["parent"]].is_not_null()
    works &= ~within
    outer = inside(trace, rows_where(known(works)))[ops["parent"].filter(works)]
    calling = pl.repeat(value=False, n=ops.height, dtype=pl.Boolean, eager=True)
    calling = calling.scatter(outer.drop_nulls().unique(), values=True)
    return rows_where(known(works & (matmuls | ~calling)))

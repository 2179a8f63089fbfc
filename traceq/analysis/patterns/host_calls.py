"""Host calls of a step, independent of the device: ops, casts, copies, syncs.

On a machine without a GPU this is the part of a program that can be compared: the same
ops run, on other kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.callers import innermost_calls
from traceq.analysis.base.ownership import named, named_like
from traceq.analysis.base.steady import in_steps
from traceq.analysis.patterns.copies import COPYING
from traceq.common.expressions import END, asof, constant, known, nth, text
from traceq.graph.nesting import nearest
from traceq.model.dtypes import dtype_name

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace

SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "kind": pl.String,
    "what": pl.String,
    "dtypes": pl.List(pl.String),
    "file": pl.String,
    "function": pl.String,
    "line": pl.Int64,
    "call_lines": pl.List(pl.Int64),
    "count": pl.Float64,
    "min": pl.Float64,
    "max": pl.Float64,
}
"""Columns of calls: ``line`` is where the function begins, ``call_lines`` are those in
it that call, where they are known, ``count`` is a step's on average, and ``min`` and
``max`` are those of single steps, null where all steps have the same."""
KEY = ("kind", "what", "dtypes", "file", "function")
"""Columns that identify a call, and stay the same when lines move."""

OP, OPTIMIZER, CAST, COPY, SYNC = "op", "optimizer op", "cast", "copy", "sync"

# Ops that read values or counts on the host, which waits for the GPU to have them.
_SYNCING = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
)
# Methods that do so too; on the CPU they copy nothing, so no op of theirs shows it.
_READING = r"^<built-in method (cpu|tolist) of \w+ object"
_READ_BY_METHOD = r"^<built-in method (item|tolist) of \w+ object"
_ITEM = ("aten::item", "aten::_local_scalar_dense")
_INTEGERS = ("long int", "int", "short int")
_LOADING = r"(^|/)torch/utils/data/"
_NO_TENSOR = (
    "",
    "Scalar",
    "ScalarList",
    "TensorList",
    "GenericList",
    "OptionalTensorList",
)
# A Python number becomes a tensor of these without a dim.
_NUMBERS = ("double", "long int")


def host_calls(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the host calls of steady-state steps, with the columns of ``SCHEMA``.

    Ops are those that the program or autograd calls, not those inside them, which
    differ from device to device. What the optimizer's step does is of a kind of its
    own: on the CPU it is another implementation. A cast is a copy into another dtype,
    of a tensor with dims, wherever it happens.
    """
    return (
        _calls(trace, steady)
        .group_by(*KEY, "step")
        .agg(pl.col("line").min(), pl.col("call_line"), count=pl.len())
        .group_by(KEY)
        .agg(
            pl.col("line").min(),
            call_lines=pl.col("call_line").explode().drop_nulls().unique().sort(),
            count=pl.col("count").sum() / steady.count,
            **_ends(steady),
        )
        .select(list(SCHEMA))
        .cast({"count": pl.Float64, "min": pl.Float64, "max": pl.Float64})
        .sort("kind", "what", pl.col("dtypes").list.join(","), "file", "function")
    )


def calls_by_step(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the number of calls of each ``kind`` per step, with columns of steps.

    A step without any has no row.
    """
    return _calls(trace, steady).group_by("kind", "step").agg(count=pl.len())


def _ends(steady: SteadySteps) -> dict[str, pl.Expr]:
    """Return the smallest and largest count of a step; null if all are equal."""
    everywhere = pl.len() == steady.count
    least = pl.when(everywhere).then(pl.col("count").min()).otherwise(0)
    most = pl.col("count").max()
    return {
        "min": pl.when(least != most).then(least),
        "max": pl.when(least != most).then(most),
    }


@cached_per_trace
def _calls(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    ops = _with_called(trace)
    steps = in_steps(ops.filter(~pl.col("compiling")), trace, steady)
    return pl.concat(
        [_called(steps), _moved(steps), _synced(steps), _read(trace, steps)]
    )


def value_reads(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the ops of steady-state steps that need a tensor's value on the host.

    ``what`` is the op that the program calls. What the data loader and the optimizer
    read is left out: with a GPU they read nothing of it, or another implementation
    runs. So is an integer that no method was called to read: it may index data that
    stays on the host, as ``tokens[i]`` of an array.
    """
    ran = _with_called(trace).filter("syncs", ~pl.col("compiling"))
    reads = in_steps(ran, trace, steady).with_columns(what="outer")
    loading = innermost_calls(trace.frames, reads)["inner_file"].str.contains(_LOADING)
    return reads.filter(
        ~_BY_OPTIMIZER,
        ~known(pl.col("phase") == "data"),
        ~known(loading),
        ~_may_index(trace, reads),
        pl.col("file").is_not_null(),
    )


def _may_index(trace: Trace, reads: pl.DataFrame) -> pl.Series:
    """Return which reads are of an integer for which no method is called."""
    if not trace.frames.height:
        return constant(value=False, count=reads.height, dtype=pl.Boolean)
    calls = trace.frames.filter(named_like(trace.frames, _READ_BY_METHOD)).select(
        "thread", until=END, begun="ts"
    )
    around = asof(reads.select("thread", "ts"), calls, "ts", "begun", by="thread")
    by_method = known(around["until"] > around["ts"])
    integer = reads.select(known(nth("types", 0).is_in(_INTEGERS))).to_series()
    return integer & ~by_method & known(reads["what"].is_in(_ITEM))


def _with_called(trace: Trace) -> pl.DataFrame:
    """Return the ops with their inputs, and the outermost op around each."""
    ops = trace.host_ops
    names = ops["name"].cast(pl.String)
    torch_op = names.str.contains("::") & ~names.str.contains(r"^(torch::)?autograd::")
    nested = nearest(ops["parent"], torch_op).gather(ops["parent"]).is_not_null()
    called = nearest(ops["parent"], torch_op & ~nested)
    inputs = trace.inputs.select("dims", "types", inputs="id")
    return ops.with_columns(
        text("name"),
        called=called,
        outer=names.gather(called),
        copies=named(ops, ("aten::copy_",)),
        syncs=named(ops, _SYNCING),
    ).join(inputs, on="inputs", how="left", maintain_order="left")


def _rows(
    ops: pl.DataFrame, kind: pl.Expr, what: pl.Expr, dtypes: pl.Expr
) -> pl.DataFrame:
    return ops.select(
        kind.alias("kind"),
        what.alias("what"),
        dtypes.alias("dtypes"),
        text("file"),
        text("function"),
        pl.col("line", "call_line").cast(pl.Int64),
        "step",
    )


_BY_OPTIMIZER = known(pl.col("phase") == "optimizer")
_NONE = pl.lit([], dtype=pl.List(pl.String))


def _called(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that the program or autograd calls."""
    called = ops.filter(pl.col("called") == pl.col("id"))
    kind = pl.when(_BY_OPTIMIZER).then(pl.lit(OPTIMIZER)).otherwise(pl.lit(OP))
    return _rows(
        called.with_columns(taken=_dtypes(called)),
        kind,
        pl.col("name"),
        pl.col("taken"),
    )


def _dtypes(ops: pl.DataFrame) -> pl.Series:
    """Return the dtypes of the tensors that ops take, without Python's numbers."""
    inputs = (
        ops.select("types", "dims", row=pl.int_range(pl.len()))
        .drop_nulls("types")
        .filter(pl.col("types").list.len() == pl.col("dims").list.len())
        .explode("types", "dims")
        .filter(
            ~pl.col("types").is_in(_NO_TENSOR),
            (pl.col("dims").list.len() > 0) | ~pl.col("types").is_in(_NUMBERS),
        )
        .group_by("row", maintain_order=True)
        .agg(taken=_dtype("types"))
    )
    rows = pl.DataFrame({"row": pl.int_range(ops.height, eager=True)})
    taken = rows.join(
        inputs.cast({"row": pl.Int64}), on="row", how="left", maintain_order="left"
    )
    return taken["taken"].fill_null(pl.Series([[]], dtype=pl.List(pl.String)))


def _dtype(column: str) -> pl.Expr:
    return pl.col(column).map_elements(dtype_name, return_dtype=pl.String)


def _moved(ops: pl.DataFrame) -> pl.DataFrame:
    """Return casts, and the copies that the program asks for; not the optimizer's."""
    copies = ops.filter(
        "copies",
        ~_BY_OPTIMIZER,
        nth("dims", 1).list.len() > 0,
    ).with_columns(to=nth("types", 0), source=nth("types", 1))
    cast = copies["to"] != copies["source"]
    words = _dtype("source") + " to " + _dtype("to")
    requested = copies.filter(~cast, pl.col("outer").is_in(COPYING))
    return pl.concat(
        [
            _rows(copies.filter(cast), pl.lit(CAST), words, _NONE),
            _rows(requested, pl.lit(COPY), pl.col("outer"), _NONE),
        ]
    )


def _synced(ops: pl.DataFrame) -> pl.DataFrame:
    wanted = ops.filter("syncs", ~_BY_OPTIMIZER)
    return _rows(wanted, pl.lit(SYNC), pl.col("outer"), _NONE)


def _read(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return calls of methods that read a tensor on the host, by the ops in them."""
    calls = trace.frames.filter(text("name").str.contains(_READING)).select(
        "thread", until=END, at="ts", method=text("name").str.extract(_READING)
    )
    first = asof(calls, ops, "at", "ts", by="thread", strategy="forward")
    inside = first.filter(pl.col("ts") < pl.col("until"))
    return _rows(inside, pl.lit(SYNC), "Tensor." + pl.col("method") + "()", _NONE)

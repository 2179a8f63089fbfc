"""What a step consists of, by structure: calls of one op from one place are a row.

A kernel belongs to the outermost op around its launch, and in the backward pass to the
op whose gradient it computes. So the row is the same whatever backend, kernel or number
format the op was run with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import named
from traceq.analysis.base.steady import in_steps
from traceq.diff.attribution import SPECIAL, busy_time, idle_time, wait_calls
from traceq.graph.nesting import nearest
from traceq.model.dtypes import SHORT
from traceq.words import layer_names

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.trace import Trace

KEY = ("phase", "module", "file", "function", "line", "op", "shapes", "role")
REGION = "Torch-Compiled Region"
OPTIMIZER = "Optimizer.step"
NUMBERS = ("busy", "late", "dry", "calls", "kernels", "launches", "waits")
"""Per row and step: time on the GPU, idle time before its kernels, idle time after its
waits, how many calls of the op, kernels, launches and waits."""

_RAW = ("phase", "module", "file", "function", "line", "root", "inputs", "role")
_KERNEL = ("name", "kind", "dtype")
_NODE = r"^autograd::engine::evaluate_function: "
_OVERLOAD = r"^(aten::\w+)\.\w+$"
_NUMBERED = r"^Torch-Compiled Region.*$"


@dataclass(frozen=True)
class Parts:
    """One trace's step in parts; all numbers are per step, times as recorded."""

    rows: pl.DataFrame
    """KEY and NUMBERS, with ``row``, its number."""
    kernels: pl.DataFrame
    """What a row's kernels are: ``row``, ``name``, ``kind``, ``dtype``, ``busy`` and
    ``kernels``."""
    special: dict[str, float]
    """Idle time by what the host did instead of launching."""
    on_host: bool
    """Whether these are ops on the host, for want of a GPU, and ``busy`` their time."""


def parts_of(trace: Trace, steady: SteadySteps, *, on_host: bool) -> Parts:
    """Return what the steps consist of, on the GPU or on the host."""
    steps = steady.count
    if on_host:
        found, special = _host_parts(trace, steady)
    else:
        found, special = _gpu_parts(trace, steady)
    found = found.group_by(*_RAW, *_KERNEL).agg(pl.col(NUMBERS).sum() / steps)
    named_rows = _with_names(trace, found).with_columns(pl.col("busy").cast(pl.Float64))
    rows = (
        named_rows.group_by(KEY)
        .agg(pl.col(NUMBERS).sum())
        .sort("busy", *KEY, descending=[True, *[False] * len(KEY)])
        .with_row_index("row")
    )
    kernels = (
        named_rows.filter(pl.col("kernels") > 0)
        .join(rows.select("row", *KEY), on=KEY, nulls_equal=True)
        .group_by("row", *_KERNEL)
        .agg(pl.col("busy", "kernels").sum())
        .sort("row", "busy", "name", descending=[False, True, False])
    )
    idle = {name: ns / steps for name, ns in special.items() if ns}
    return Parts(rows, kernels, idle, on_host)


def _gpu_parts(
    trace: Trace, steady: SteadySteps
) -> tuple[pl.DataFrame, dict[str, int]]:
    stretches = idle_time(trace, steady)
    by_wait = stretches.filter(pl.col("wait").is_not_null())
    by_launch = stretches.filter(pl.col("wait").is_null())
    late = by_launch.group_by(kernel="kernel").agg(late=pl.col("rest").sum())
    own = (
        trace.kernels.select(
            kernel="id",
            counted=_in_part(trace.kernels, trace, steady),
            first=pl.col("launch").is_first_distinct() & pl.col("launch").is_not_null(),
        )
        .join(busy_time(trace, steady), on="kernel", how="left")
        .join(late.drop_nulls("kernel"), on="kernel", how="left")
        .filter(pl.col("counted") | (pl.col("busy") > 0) | (pl.col("late") > 0))
        .with_columns(pl.col("busy", "late").fill_null(0))
        .sort("kernel")
    )
    rows = _owned(trace, trace.kernels[own["kernel"]]).with_columns(
        busy=own["busy"],
        late=own["late"],
        dry=pl.lit(0, pl.Int64),
        kernels=own["counted"].cast(pl.Int64),
        launches=(own["counted"] & own["first"]).cast(pl.Int64),
        waits=pl.lit(0, pl.Int64),
    )
    rows = _with_calls(rows)
    special = {name: int(stretches[name].sum()) for name in SPECIAL}
    rest = late.filter(pl.col("kernel").is_null())["late"].sum()
    special["the end of the step"] = int(rest)
    return pl.concat([rows, _waits(trace, steady, by_wait)], how="diagonal"), special


def _in_part(table: pl.DataFrame, trace: Trace, steady: SteadySteps) -> pl.Series:
    if not trace.steps.height:
        return pl.repeat(value=True, n=table.height, eager=True)
    return table["step"].is_in(steady.windows["step"].implode()).fill_null(value=False)


def _waits(trace: Trace, steady: SteadySteps, dry: pl.DataFrame) -> pl.DataFrame:
    """Return the waits of the steps, each with how long the GPU idled after it."""
    idle = dry.group_by(id="wait").agg(dry=pl.col("rest").sum())
    calls = wait_calls(trace).join(idle, on="id", how="left")
    counted = _in_part(calls, trace, steady)
    calls = calls.with_columns(pl.col("dry").fill_null(0), counted=counted)
    calls = calls.filter(pl.col("counted") | (pl.col("dry") > 0)).with_columns(
        kind=pl.lit(None, trace.kernels.schema["kind"]),
        dtype=pl.lit(None, trace.kernels.schema["dtype"]),
    )
    nothing = pl.lit(0, pl.Int64)
    return (
        _owned(trace, calls)
        .with_columns(
            busy=nothing,
            late=nothing,
            dry=calls["dry"],
            kernels=nothing,
            launches=nothing,
            waits=calls["counted"].cast(pl.Int64),
        )
        .with_columns(role=pl.lit("wait"), calls=pl.col("waits"))
        .drop("call")
    )


def _with_calls(rows: pl.DataFrame) -> pl.DataFrame:
    """Count each call of an op once, whatever it launches, and each kernel without."""
    first = pl.struct("call", "phase", "role").is_first_distinct()
    counted = (pl.col("kernels") > 0) & (first | pl.col("call").is_null())
    return rows.with_columns(calls=counted.cast(pl.Int64)).drop("call")


def _owned(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Return where kernels or calls come from: the columns of _RAW and _KERNEL."""
    ops = trace.ops
    op = events["op"]
    forward = ops["forward"].gather(op)
    owner = forward.zip_with(forward.is_not_null(), op)
    root = nearest(ops["parent"], ops["parent"].is_null()).gather(owner)
    inner = ops["inputs"].gather(op)
    known = _input_types(trace)
    copies = (events["kind"] == "copy").fill_null(value=False)
    is_copy = named(ops, ["aten::copy_"]).gather(op).fill_null(value=False)
    cast = copies & is_copy & known["cast"].gather(inner).fill_null(value=False)
    # Under autocast a cast belongs to the op that asks for it: they share a row, but
    # for what they do.
    return events.select(
        "phase",
        "module",
        "file",
        "function",
        "line",
        call=root,
        root=ops["name"].gather(root),
        inputs=ops["inputs"].gather(root),
        role=pl.select(
            pl.when(cast)
            .then(pl.lit("cast"))
            .when(copies)
            .then(pl.lit("copy"))
            .otherwise(pl.lit("compute"))
        ).to_series(),
        name="name",
        kind="kind",
        dtype=known["dtype"].gather(inner).fill_null(events["dtype"].cast(pl.String)),
    )


def _input_types(trace: Trace) -> pl.DataFrame:
    """Return for each set of inputs the first number format, and if it is a cast."""
    types = trace.inputs["types"]
    floats = types.list.eval(
        pl.element().replace_strict(SHORT, default=None, return_dtype=pl.String)
    )
    first, second = (
        floats.list.get(0, null_on_oob=True),
        floats.list.get(1, null_on_oob=True),
    )
    return pl.DataFrame(
        {
            "dtype": floats.list.drop_nulls().list.get(0, null_on_oob=True),
            "cast": (first != second).fill_null(value=False),
        }
    )


def _host_parts(
    trace: Trace, steady: SteadySteps
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the ops of the thread that has most of them, by their own time."""
    ops = in_steps(trace.ops, trace, steady)
    busiest = (
        ops.group_by("thread").agg(pl.col("self_dur").sum()).sort("self_dur", "thread")
    )
    ops = ops.filter(pl.col("thread") == pl.lit(busiest["thread"].last()))
    events = ops.with_columns(
        op="id",
        kind=pl.lit(None, trace.kernels.schema["kind"]),
        dtype=pl.lit(None, trace.kernels.schema["dtype"]),
    )
    nothing = pl.lit(0, pl.Int64)
    rows = _owned(trace, events).with_columns(
        busy=ops["self_dur"],
        late=nothing,
        dry=nothing,
        kernels=pl.lit(1, pl.Int64),
        launches=nothing,
        waits=nothing,
    )
    rows = _with_calls(rows)
    outside = max(0, steady.time - int(ops["self_dur"].sum()))
    return rows, {"outside operators": outside}


def plain_op(name: pl.Expr) -> pl.Expr:
    """Return an op's name without its overload, its node or its number of a region."""
    return (
        name.str.replace(_NODE, "")
        .str.replace(_OVERLOAD, "$1")
        .str.replace(_NUMBERED, REGION)
    )


def _with_names(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    """Write out what categories and numbers stand for, so that traces compare."""
    shapes = trace.inputs.select(inputs="id", shapes="dims_text")
    op = pl.col("root").cast(pl.String)
    kernel = pl.col("name").cast(pl.String)
    compiled = op.str.starts_with(REGION)
    return found.join(shapes, on="inputs", how="left").select(
        pl.col("phase").cast(pl.String),
        layer_names(pl.col("module")),
        pl.col("file").cast(pl.String),
        pl.col("function").cast(pl.String),
        "line",
        op=pl.when(pl.col("phase") == "optimizer")
        .then(pl.lit(OPTIMIZER))
        .otherwise(pl.coalesce(plain_op(op), kernel)),
        shapes=pl.when(pl.col("phase") != "optimizer", ~compiled).then("shapes"),
        role="role",
        name=kernel,
        kind=pl.col("kind").cast(pl.String),
        dtype="dtype",
        **{number: pl.col(number) for number in NUMBERS},
    )

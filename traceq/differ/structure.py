"""Structure of a step: calls of one op from one place are a row.

A kernel belongs to the outermost op around its launch, and in the backward pass to the
op whose gradient it computes. So the row is the same for every backend, kernel or dtype
of the op.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import named
from traceq.analysis.base.steady import are_in_steps, in_steps
from traceq.analysis.time.device_syncs import device_syncs, waits_long
from traceq.analysis.time.gpu_time import busy_time
from traceq.analysis.time.modules import OPTIMIZER
from traceq.common.expressions import known, text
from traceq.common.words import layer_names
from traceq.differ.attribution import SPECIAL, idle_time
from traceq.graph.nesting import nearest
from traceq.model.dtypes import SHORT

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace

KEY = ("phase", "module", "file", "function", "line", "op", "shapes", "role")
REGION = "Torch-Compiled Region"
END_OF_STEP = "the end of the step"
"""Idle time after the last kernel of the trace, which no launch ends."""
NUMBERS = (
    "gpu_ns",
    "hidden_ns",
    "launch_idle_ns",
    "sync_idle_ns",
    "calls",
    "kernels",
    "launches",
    "syncs",
)
"""Per row and step: time on the GPU, time in which its kernels ran beside others that
began earlier, idle time before its kernels, idle time after its syncs, how many calls
of the op, kernels, launches and syncs."""

_NO_GAPS = pl.DataFrame(
    schema={
        "start": pl.Int64,
        "end": pl.Int64,
        "rest": pl.Int64,
        "kernel": pl.UInt32,
        "sync": pl.UInt32,
    }
)
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
    """Kernels of the rows: ``row``, ``name``, ``kind``, ``dtype``, ``gpu_ns`` and
    ``kernels``."""
    special: dict[str, float]
    """Idle time by what the host did instead of launching."""
    gaps: pl.DataFrame
    """The idle gaps that launches ended: ``start``, ``end``, ``rest`` (without what is
    in ``special``) and the ``row`` that the launch is of."""
    steps: int
    on_host: bool
    """True if the rows are ops on the host, without a GPU, and ``gpu_ns`` is their
    time."""


def parts_of(trace: Trace, steady: SteadySteps, *, on_host: bool) -> Parts:
    """Return the parts of the steps, on the GPU or on the host."""
    steps = steady.count
    gaps = _NO_GAPS
    if on_host:
        parts, special = _host_parts(trace, steady)
    else:
        gaps = idle_time(trace, steady)
        parts, special = _gpu_parts(trace, steady, gaps)
    parts = parts.group_by(*_RAW, *_KERNEL).agg(pl.col(NUMBERS).sum() / steps)
    named_rows = _with_names(trace, parts).with_columns(
        pl.col("gpu_ns").cast(pl.Float64)
    )
    rows = (
        named_rows.group_by(KEY)
        .agg(pl.col(NUMBERS).sum())
        .sort("gpu_ns", *KEY, descending=[True, *[False] * len(KEY)])
        .with_row_index("row")
    )
    kernels = (
        named_rows.filter(pl.col("kernels") > 0)
        .join(rows.select("row", *KEY), on=KEY, nulls_equal=True)
        .group_by("row", *_KERNEL)
        .agg(pl.col("gpu_ns", "kernels").sum())
        .sort("row", "gpu_ns", "name", descending=[False, True, False])
    )
    idle = {name: ns / steps for name, ns in special.items() if ns}
    return Parts(rows, kernels, idle, _with_rows(trace, gaps, rows), steps, on_host)


def _with_rows(trace: Trace, gaps: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps that launches ended, with the row that each launch is of."""
    ended = gaps.filter(pl.col("sync").is_null(), pl.col("rest") > 0).drop_nulls(
        "kernel"
    )
    owned = _owned(trace, trace.kernels[ended["kernel"]]).select(*_RAW, *_KERNEL)
    # Their origin is written out once for each, not for each gap.
    distinct = owned.unique().with_row_index("number")
    nothing = dict.fromkeys(NUMBERS, pl.lit(0))
    keys = _with_names(trace, distinct.with_columns(**nothing), "number")
    joined = keys.join(rows.select("row", *KEY), on=KEY, nulls_equal=True)
    numbers = owned.join(
        distinct,
        on=[*_RAW, *_KERNEL],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )["number"]
    row = joined.sort("number")["row"][numbers]
    return ended.select("start", "end", "rest").with_columns(row)


def _gpu_parts(
    trace: Trace, steady: SteadySteps, gaps: pl.DataFrame
) -> tuple[pl.DataFrame, dict[str, int]]:
    by_launch = (
        gaps.filter(pl.col("sync").is_null())
        .group_by("kernel")
        .agg(launch_idle_ns=pl.col("rest").sum())
    )
    own = _kernels_of(trace, steady, by_launch.drop_nulls("kernel"))
    nothing = pl.lit(0, pl.Int64)
    rows = _owned(trace, trace.kernels[own["kernel"]]).with_columns(
        gpu_ns=own["gpu_ns"],
        hidden_ns=own["hidden_ns"],
        launch_idle_ns=own["launch_idle_ns"],
        sync_idle_ns=nothing,
        kernels=own["counted"].cast(pl.Int64),
        launches=(own["counted"] & own["first"]).cast(pl.Int64),
        syncs=nothing,
    )
    rows = pl.concat([_with_calls(rows), _syncs(trace, steady, gaps)], how="diagonal")
    special = {name: int(gaps[name].sum()) for name in SPECIAL}
    rest = by_launch.filter(pl.col("kernel").is_null())["launch_idle_ns"].sum()
    special[END_OF_STEP] = int(rest)
    return rows, special


def _kernels_of(
    trace: Trace, steady: SteadySteps, by_launch: pl.DataFrame
) -> pl.DataFrame:
    """Return the kernels that are part of the steps, or that their time goes to."""
    times = ("gpu_ns", "launch_idle_ns")
    is_kernel = pl.col("activity") == "kernel"
    return (
        trace.kernels.select(
            "dur",
            kernel="id",
            counted=are_in_steps(trace.kernels, trace, steady),
            # A copy or a set is not a launch.
            first=pl.struct("launch", is_kernel).is_first_distinct()
            & pl.col("launch").is_not_null()
            & is_kernel,
        )
        .join(busy_time(trace, steady), on="kernel", how="left")
        .join(by_launch, on="kernel", how="left")
        .with_columns(pl.col(times).fill_null(0))
        .with_columns(hidden_ns=_hidden())
        .filter(pl.col("counted") | (pl.max_horizontal(times) > 0))
        .sort("kernel")
    )


def _hidden() -> pl.Expr:
    """Return how long a kernel of the steps ran beside others that began earlier."""
    beside = (pl.col("dur") - pl.col("gpu_ns")).clip(0)
    return pl.when("counted").then(beside).otherwise(0)


def _syncs(trace: Trace, steady: SteadySteps, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return the syncs of the steps, each with how long the GPU idled after it."""
    idle = (
        gaps.drop_nulls("sync")
        .group_by(id="sync")
        .agg(sync_idle_ns=pl.col("rest").sum())
    )
    calls = device_syncs(trace).join(idle, on="id", how="left", maintain_order="left")
    calls = calls.with_columns(
        pl.col("sync_idle_ns").fill_null(0),
        counted=are_in_steps(calls, trace, steady) & waits_long(),
        kind=pl.lit(None, trace.kernels.schema["kind"]),
        dtype=pl.lit(None, trace.kernels.schema["dtype"]),
    ).filter(pl.col("counted") | (pl.col("sync_idle_ns") > 0))
    nothing = pl.lit(0, pl.Int64)
    return (
        _owned(trace, calls)
        .with_columns(
            gpu_ns=nothing,
            hidden_ns=nothing,
            launch_idle_ns=nothing,
            sync_idle_ns=calls["sync_idle_ns"],
            kernels=nothing,
            launches=nothing,
            syncs=calls["counted"].cast(pl.Int64),
        )
        .with_columns(role=pl.lit("sync"), calls=pl.col("syncs"))
        .drop("call")
    )


def _with_calls(rows: pl.DataFrame) -> pl.DataFrame:
    """Count each call of an op once, whatever it launches, and each kernel without."""
    first = pl.struct("call", "phase", "role").is_first_distinct()
    counted = (pl.col("kernels") > 0) & (first | pl.col("call").is_null())
    return rows.with_columns(calls=counted.cast(pl.Int64)).drop("call")


def _owned(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Return the origin of kernels or calls: the columns of _RAW and _KERNEL."""
    ops = trace.ops
    op = events["op"]
    forward = ops["forward"].gather(op)
    owner = forward.zip_with(forward.is_not_null(), op)
    root = nearest(ops["parent"], ops["parent"].is_null()).gather(owner)
    inner = ops["inputs"].gather(op)
    types = _input_types(trace)
    copies = known(events["kind"] == "copy")
    is_copy = known(named(ops, ["aten::copy_"]).gather(op))
    cast = copies & is_copy & known(types["cast"].gather(inner))
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
        dtype=_computed_in(types["dtype"].gather(inner), events["dtype"]),
    )


def _computed_in(inputs: pl.Series, kernels: pl.Series) -> pl.Series:
    """Return the dtype of an op's inputs; TF32 where its kernel computes in that."""
    kernels = kernels.cast(pl.String)
    tf32 = (kernels == "tf32") & (inputs == "fp32")
    return kernels.zip_with(tf32 | inputs.is_null(), inputs)


@cached_per_trace
def _input_types(trace: Trace) -> pl.DataFrame:
    """Return for each set of inputs the first dtype, and whether it is a cast."""
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
            "cast": known(first != second),
        }
    )


def _host_parts(
    trace: Trace, steady: SteadySteps
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the ops of the thread that has most of them, by self time."""
    ops = in_steps(trace.host_ops, trace, steady)
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
        gpu_ns=ops["self_dur"],
        hidden_ns=nothing,
        launch_idle_ns=nothing,
        sync_idle_ns=nothing,
        kernels=pl.lit(1, pl.Int64),
        launches=nothing,
        syncs=nothing,
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


def _with_names(trace: Trace, parts: pl.DataFrame, *more: str) -> pl.DataFrame:
    """Write out what categories and numbers stand for, so that traces compare."""
    shapes = trace.inputs.select(inputs="id", shapes="dims_text")
    op, kernel = text("root"), text("name")
    compiled = op.str.starts_with(REGION)
    return parts.join(shapes, on="inputs", how="left").select(
        text("phase"),
        layer_names(pl.col("module")),
        text("file"),
        text("function"),
        "line",
        op=pl.when(pl.col("phase") == "optimizer")
        .then(pl.lit(OPTIMIZER))
        .otherwise(pl.coalesce(plain_op(op), kernel)),
        shapes=pl.when(pl.col("phase") != "optimizer", ~compiled).then("shapes"),
        role="role",
        name=kernel,
        kind=text("kind"),
        dtype="dtype",
        **{number: pl.col(number) for number in (*NUMBERS, *more)},
    )

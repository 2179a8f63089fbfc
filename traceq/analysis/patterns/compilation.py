"""Activity of torch.compile in the steps: compilations, CUDA graph captures, runs.

TorchDynamo numbers the code that it compiles: F/R is version R of frame F. A frame is a
function, or the part of it between two graph breaks; version 0 is its first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import named_like, outermost_ops
from traceq.analysis.base.steady import in_steps
from traceq.common.expressions import END, asof, known, rows_where, text
from traceq.graph.nesting import nearest
from traceq.model.names import BEGIN_CAPTURE

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.run import CompiledPlace
    from traceq.model.trace import Trace

# The ids of regions of compiled autograd begin with "!": they run a backward, and are
# not matched here.
REGION = r"^Torch-Compiled Region(: [\d/]+)?$"
REGION_FRAME = r"^Torch-Compiled Region: (!?\d+)/"
LOOKUP = "TorchDynamo Cache Lookup"
CALL = "CompiledFunction"
_ID = r"compile_id=(!?[\d/]+)"
_REGION_ID = r"^Torch-Compiled Region: (!?[\d/]+)"
# A region that begins this soon after a compilation runs the compiled code. Heuristic
# threshold: in fixtures/recompile (H200, torch 2.11) it begins within 0.4 ms.
_RUNS_SOON_NS = 10_000_000
# Work of CUDA graph trees for a shape without a graph: set one up, capture it.
_SET_UP = r"^cudagraphify\.get_container( \(dynamo_timed\))?$"
_CAPTURE = r"^CUDAGraphNode\.record( \(dynamo_timed\))?$"


@cached_per_trace
def compilations(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the outermost compilations of the steps, as ops with ``compile_id``.

    The id is that of a mark inside it, which torch 2.11 and later set, or of the region
    that runs right after it; it is null where the trace has neither.
    """
    ops = trace.ops
    rows = rows_where(ops["compiling"])
    inner = known(ops["compiling"][ops["parent"][rows]])
    roots = in_steps(ops[rows.filter(~inner)], trace, steady)
    if not roots.height:
        return roots.with_columns(compile_id=pl.lit(None, pl.String))
    host = trace.annotations.filter(~pl.col("on_gpu"))
    ids = pl.concat(
        [
            table.select(
                "thread", at="ts", compile_id=text("name").str.extract(pattern)
            )
            for table, pattern in ((host, _ID), (ops, _REGION_ID))
        ]
    ).drop_nulls("compile_id")
    matched = asof(roots, ids, "ts", "at", by="thread", strategy="forward")
    near = pl.col("at") <= END + _RUNS_SOON_NS
    return matched.with_columns(pl.when(near).then("compile_id").alias("compile_id"))


def graph_breaks(trace: Trace) -> tuple[CompiledPlace, ...]:
    """Return the graph breaks that the recording counted, each with its reason."""
    compiled = trace.rank.compiled if trace.rank else None
    return compiled.graph_breaks if compiled else ()


def recompiles(trace: Trace) -> tuple[CompiledPlace, ...]:
    """Return the functions that the recording saw compiled again, with the guards."""
    compiled = trace.rank.compiled if trace.rank else None
    return compiled.recompiles if compiled else ()


def captures(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the runs of compiled code that set up or captured CUDA graphs.

    Each is the outermost op around it, with ``set_up`` and ``captured``, the number of
    graphs, ``region``, the outermost op of its forward, and ``within``, the ops of
    compiled code that are slow for it. Captures that the program itself makes, outside
    of ops, are not included.
    """
    return in_steps(all_captures(trace), trace, steady)


@cached_per_trace
def all_captures(trace: Trace) -> pl.DataFrame:
    """Return the same as :func:`captures`, of the whole trace."""
    ops = trace.ops
    seen = pl.concat(
        [
            _outer_timers(ops, _SET_UP, "set_up"),
            _outer_timers(ops, _CAPTURE, "captured"),
            _begun_captures(trace),
        ],
        how="diagonal",
    )
    if not seen.height:
        nothing = pl.lit(None, pl.UInt32)
        return ops.clear().with_columns(
            set_up=nothing, captured=nothing, region=nothing, within=pl.lit([])
        )
    roots = outermost_ops(trace)
    counts = (
        seen.with_columns(root=roots[seen["id"]], within=_capturing(ops, seen["id"]))
        .group_by("root")
        .agg(
            set_up=pl.col("set_up").sum(),
            # A capture shows as a timer, as a runtime call, or as both.
            captured=pl.max_horizontal(pl.col("captured").sum(), pl.col("begun").sum()),
            within=pl.coalesce("within", "root").unique().sort(),
        )
        .sort("root")
    )
    # An op's id is its row.
    captured = ops.drop("captured")[counts["root"]].hstack(counts.drop("root"))
    region = roots[captured["forward"]].alias("region")
    return captured.with_columns(region.fill_null(captured["id"]))


def _capturing(ops: pl.DataFrame, inside: pl.Series) -> pl.Series:
    """Return the compiled code around each of these ops, without what calls it.

    That is the innermost call of compiled code, else the innermost region: a function
    that breaks runs the rest of itself, with Python in between, inside its region.
    """
    call, region = (
        nearest(ops["parent"], named_like(ops, pattern))[inside]
        for pattern in (f"^{CALL}$", REGION)
    )
    return call.zip_with(call.is_not_null(), region)


def without_capture(trace: Trace) -> pl.Series:
    """Return for each kernel whether a graph replays it whose capture is not known.

    Nothing tells then which op it is of.
    """
    launches_graph = trace.runtime["call"] == "graph launch"
    replayed = known(launches_graph[trace.kernels["launch"]])
    if not replayed.any():
        return replayed
    return replayed & ~known(trace.ops["captured"][trace.kernels["op"]])


def changing_inputs(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the inputs whose shape differs between calls: ``position``, ``shapes``.

    The calls have the columns of their inputs. Shapes of parameters do not differ.
    """
    return (
        calls.drop_nulls("dims")
        .select("ts", "dims", position=pl.int_ranges(pl.col("dims").list.len()))
        .explode("dims", "position")
        .filter(pl.col("dims").list.len() > 0)
        .sort("ts")
        .group_by("position", maintain_order=True)
        .agg(shapes=pl.col("dims").unique(maintain_order=True))
        .filter(pl.col("shapes").list.len() > 1)
        .sort("position")
    )


def sized_inputs(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the inputs all of whose dims are inputs too: ``position``, ``shapes``.

    Code compiled with dynamic shapes is passed each dynamic dim as a number: given the
    inputs ``352, 2, [2,352], [512,512]``, it is ``[2,352]``.
    """
    inputs = (
        calls.drop_nulls("dims")
        .with_columns(
            sizes=pl.col("values").list.eval(
                pl.element().cast(pl.Int64, strict=False).drop_nulls()
            ),
            position=pl.int_ranges(pl.col("dims").list.len()),
        )
        .select("ts", "sizes", "dims", "position")
        .explode("dims", "position")
    )
    outside = pl.col("dims").list.set_difference("sizes").list.len()
    return (
        inputs.filter(pl.col("dims").list.len() > 0, outside == 0)
        .sort("ts")
        .group_by("position", maintain_order=True)
        .agg(shapes=pl.col("dims").unique(maintain_order=True))
        .sort("position")
    )


def settled(rows: pl.DataFrame, steady: SteadySteps) -> pl.DataFrame:
    """Return the rows, or none if only the first of several steps has them.

    That is warm-up in a step which is not long enough to be recognised as such.
    """
    steps = steady.windows["step"]
    if steady.count > 1 and rows["step"].n_unique() == 1:
        return rows.filter(pl.col("step") != steps.sort()[0])
    return rows


def _outer_timers(ops: pl.DataFrame, pattern: str, label: str) -> pl.DataFrame:
    """Return the ops of a name, without timers of the same name inside them."""
    marked = named_like(ops, pattern)
    # There are few of them: only these are asked for what is around them.
    rows = rows_where(marked)
    inner = known(marked[ops["parent"][rows]])
    outer = ops["id"][rows].filter(~inner).to_frame()
    return outer.with_columns(pl.lit(value=True).alias(label))


def _begun_captures(trace: Trace) -> pl.DataFrame:
    """Return the ops that call ``cudaStreamBeginCapture``."""
    ops = trace.runtime["op"].filter(named_like(trace.runtime, BEGIN_CAPTURE))
    return ops.drop_nulls().to_frame("id").with_columns(begun=True)

"""What torch.compile did in the steps: compiling, recording CUDA graphs, running.

``TorchDynamo`` numbers what it compiles: F/R is version R of frame F, a function or
the part of it between two graph breaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import outermost_ops
from traceq.analysis.base.steady import in_steps
from traceq.model.names import BEGIN_CAPTURE

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.trace import Trace

# A region of compiled autograd has a "!" in its id: it runs a backward.
REGION = r"^Torch-Compiled Region(: [\d/]+)?$"
LOOKUP = "TorchDynamo Cache Lookup"
CALL = "CompiledFunction"
_ID = r"compile_id=(!?[\d/]+)"
_REGION_ID = r"^Torch-Compiled Region: (!?[\d/]+)"
# What was compiled runs right after it.
_AT_ONCE = 10_000_000
# A new graph is set up for a shape that had none yet, or is recorded.
_SET_UP = r"^cudagraphify\.get_container( \(dynamo_timed\))?$"
_RECORD = r"^CUDAGraphNode\.record( \(dynamo_timed\))?$"


@cached_per_trace
def compilations(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the outermost compilations of the steps, as ops with ``compile_id``.

    The id is that of a mark inside it, as newer torch sets, or of the region that was
    compiled and runs right after it; none where the trace has neither.
    """
    ops = trace.ops
    around = ops["compiling"].gather(ops["parent"]).fill_null(value=False)
    roots = in_steps(ops.filter(ops["compiling"] & ~around), trace, steady)
    marks = trace.annotations.filter(~pl.col("on_gpu")).select(
        "thread", at="ts", compile_id=pl.col("name").cast(pl.String).str.extract(_ID)
    )
    regions = ops.select(
        "thread",
        at="ts",
        compile_id=pl.col("name").cast(pl.String).str.extract(_REGION_ID),
    )
    known = pl.concat([marks, regions]).drop_nulls("compile_id").sort("at")
    found = roots.sort("ts").join_asof(
        known,
        left_on="ts",
        right_on="at",
        by="thread",
        strategy="forward",
        check_sortedness=False,
    )
    near = pl.col("at") <= pl.col("ts") + pl.col("dur") + _AT_ONCE
    return found.with_columns(pl.when(near).then("compile_id").alias("compile_id"))


def recordings(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the runs of compiled code in which CUDA graphs were set up or recorded.

    These are the outermost ops around such a thing, with ``set_up`` and ``recorded``,
    how many graphs were, and ``region``, the outermost op of their forward. Captures
    outside of ops, by hand, are not here.
    """
    return in_steps(all_recordings(trace), trace, steady)


@cached_per_trace
def all_recordings(trace: Trace) -> pl.DataFrame:
    """Return what :func:`recordings` does, of the whole trace."""
    ops = trace.ops
    seen = pl.concat(
        [
            _once(ops, _SET_UP, "set_up"),
            _once(ops, _RECORD, "recorded"),
            _captures(trace),
        ],
        how="diagonal",
    )
    roots = outermost_ops(trace)
    counts = (
        seen.with_columns(root=roots.gather(seen["id"]))
        .group_by("root")
        .agg(
            set_up=pl.col("set_up").sum(),
            recorded=pl.max_horizontal(
                pl.col("recorded").sum(), pl.col("captured").sum()
            ),
        )
    )
    found = ops.join(counts, left_on="id", right_on="root", maintain_order="left")
    region = roots.gather(found["forward"]).alias("region")
    return found.with_columns(region.fill_null(found["id"]))


def changing_inputs(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the inputs whose shape differs between calls: ``position``, ``shapes``.

    The calls have the columns of their inputs. Of parameters the shapes stay.
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
    """Return the inputs made of sizes that are inputs too: ``position``, ``shapes``.

    Code compiled for shapes that change gets each changing size as a number.
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


def settled(found: pl.DataFrame, steady: SteadySteps) -> pl.DataFrame:
    """Return what was found, or none if only the first of several steps has it.

    That is warm-up, too short to stand out by its length.
    """
    steps = steady.windows["step"]
    if steady.count > 1 and found["step"].n_unique() == 1:
        return found.filter(pl.col("step") != steps.sort()[0])
    return found


def _once(ops: pl.DataFrame, pattern: str, label: str) -> pl.DataFrame:
    """Return the ops of a name, without the timers of the same name inside them."""
    marked = ops["name"].cast(pl.String).str.contains(pattern)
    around = marked.gather(ops["parent"]).fill_null(value=False)
    return ops.filter(marked & ~around).select("id", pl.lit(value=True).alias(label))


def _captures(trace: Trace) -> pl.DataFrame:
    begun = pl.col("name").cast(pl.String).str.contains(BEGIN_CAPTURE)
    return trace.runtime.filter(begun, pl.col("op").is_not_null()).select(
        id="op", captured=pl.lit(value=True)
    )

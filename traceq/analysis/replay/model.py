"""Dependency model of the steps of a trace, which the replay runs.

The host works through a sequence of calls; some of them launch work on the GPU, and
some block until work is done. Work on the GPU begins when the work before it on its
stream is done, when its launch has reached the GPU, and when the work of other streams
that it depends on is done. Each latency is read off the trace where the work waited for
it, and is the median of those elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct, structs

from traceq.analysis.base.assumptions import (
    LAUNCH_LATENCY_NS,
    LEAST_BETWEEN_OPS,
    LONGEST_LAUNCH_LATENCY_NS,
    SMOOTHING_NS,
    STREAM_WAIT_NS,
)
from traceq.analysis.base.profiler_overhead import graph_launches, recorder_stalls
from traceq.analysis.base.steady import in_steps
from traceq.analysis.base.sync_calls import FULL_QUEUE, blocking_calls, stream_waits
from traceq.analysis.replay.compile_wrappers import wrapper_time
from traceq.analysis.replay.host_costs import ASSUMED_COSTS, HostCosts
from traceq.common.expressions import END, asof, constant
from traceq.common.intervals import Cover, overlap, spans
from traceq.graph.nesting import INDEX, counts_between, row_numbers
from traceq.model.run import HostCost

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace

_SIDES = ("start", "end")
_NEVER = -(1 << 62)


class StepModel(Struct, frozen=True):
    """The steps as work of the host and of the GPU, with dependencies."""

    work: pl.DataFrame
    """GPU work, in the order of each stream: ``id`` (of the kernel), ``lane`` (its
    stream), ``launched_at`` (when the host launched it), ``start``, ``end``, ``dur``,
    ``latency`` (from its launch to its start on an idle stream), ``gap`` (from the end
    of what it waits for to its start), ``after`` (the row of another stream that it
    waits for), ``before`` (when the work before it on its stream was done)."""
    waits: pl.DataFrame
    """Calls that block the host, in order: ``id`` (of the call), ``start``, ``end``,
    ``waits_for`` (the row of the work it waits for; none if that is of an earlier
    step), ``resume`` (how long the host takes to go on after that)."""
    host: pl.DataFrame
    """The host's time in pieces: ``start``, ``end`` and ``own``, what each would take
    without the profiler, estimated from the events that were recorded in it."""
    steps: int
    repeats: bool
    """True if another such step follows; False in a trace without steps."""


def build_model(
    trace: Trace, steady: SteadySteps, costs: HostCosts = ASSUMED_COSTS
) -> StepModel:
    """Return the model of the steps."""
    work = _work(trace, steady)
    steps = trace.steps.filter("averaged")
    window = spans(steps) if steps.height else steady.windows
    waits = _waits(trace, steady, work)
    return StepModel(
        work=work,
        waits=waits,
        host=_host(trace, _moments(trace, window, work, waits), costs),
        steps=steady.count,
        repeats=steps.height > 0,
    )


def with_costs(model: StepModel, trace: Trace, costs: HostCosts) -> StepModel:
    """Return the model of a trace with the host's time estimated by other costs."""
    moments = pl.concat([model.host["start"][:1], model.host["end"]])
    return structs.replace(model, host=_host(trace, moments, costs))


def _work(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the GPU's work with what each piece waited for, and how long it took."""
    work = _with_launches(trace, _in_lanes(trace, steady))
    after = pl.col("start") - pl.col("launched_at")
    latency = (after - pl.col("held")).clip(lower_bound=0)
    gap = pl.col("start") - pl.col("before")
    usual_latency = _usual_latency(work, latency)
    work = work.with_columns(
        launched_at=pl.col("launched_at").fill_null(pl.col("start") - usual_latency)
    ).with_columns(
        # The stream was idle when the launch arrived: the launch decided the start.
        by_launch=(pl.col("launched_at") + usual_latency > pl.col("before")).fill_null(
            value=True
        )
    )
    usual_gap = round(
        work.select(gap.filter(~pl.col("by_launch")).median()).item() or 0
    )
    # Of launch and stream, the one that did not decide was over earlier, so that the
    # trace shows an upper limit of its delay.
    latency_limit = pl.min_horizontal(latency, usual_latency)
    gap_limit = pl.min_horizontal(gap.fill_null(0), usual_gap)
    work = _with_other_streams(work, latency_limit, stream_waits(trace))
    by_launch = pl.col("by_launch") & pl.col("after").is_null()
    return work.select(
        "id",
        "lane",
        "launched_at",
        "start",
        "end",
        "dur",
        "after",
        "before",
        latency=pl.when(by_launch).then(latency).otherwise(latency_limit),
        gap=pl.coalesce(
            pl.col("start") - pl.col("after_end"),
            pl.when("by_launch").then(gap_limit).otherwise(gap),
        ),
    )


def _in_lanes(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the work of the steps in the order of its streams, one lane for each.

    ``before`` is when the work before it on its stream was done, of whatever step.
    """
    # Kernels are in the order of their starts.
    everything = trace.kernels.select(
        "id", "device", "stream", "dur", "launch", start="ts", end=END
    ).sort("device", "stream", maintain_order=True)
    before = pl.col("end").cum_max().shift(1).over("lane")
    work = everything.with_columns(lane=_lanes()).with_columns(before=before)
    if steady.kernels.height < trace.kernels.height:
        chosen = pl.repeat(value=False, n=work.height, eager=True)
        chosen = chosen.scatter(steady.kernels["id"], values=True)
        # Streams that have no work in the steps are no lanes.
        work = work.filter(chosen[work["id"]]).with_columns(lane=_lanes())
    return work.with_row_index("row")


def _lanes() -> pl.Expr:
    """Return the number of each stream, of work in the order of its streams."""
    device, stream = pl.col("device"), pl.col("stream")
    begins = device.ne_missing(device.shift(1)) | stream.ne_missing(stream.shift(1))
    return begins.cum_sum() - begins.first()


def _with_launches(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Add when each piece of work was launched: in the order of its stream.

    ``held`` is how long the profiler held up the call that launched it.
    """
    calls, launch = trace.runtime, work["launch"]
    held = overlap(spans(calls), recorder_stalls(trace))
    return work.with_columns(
        launched_at=calls["ts"][launch], held=held[launch].fill_null(0)
    ).with_columns(
        launched_at=pl.min_horizontal(
            pl.col("launched_at").cum_max().over("lane"), "start"
        )
    )


def _usual_latency(work: pl.DataFrame, latency: pl.Expr) -> int:
    """Return the median latency of a launch to an idle stream."""
    idle = pl.col("launched_at") > pl.col("before")
    median = work.select(latency.filter(idle).median()).item()
    return round(min(median or LAUNCH_LATENCY_NS, LONGEST_LAUNCH_LATENCY_NS))


def _with_other_streams(
    work: pl.DataFrame, latency: pl.Expr, known_waits: pl.DataFrame | None
) -> pl.DataFrame:
    """Add ``after`` and ``after_end``: what another stream had to do before.

    Where waits of streams were recorded, only work behind one waited for another
    stream.
    """
    ready = pl.max_horizontal("before", pl.col("launched_at") + latency)
    work = work.with_columns(ready=ready)
    late = work.filter(pl.col("start") - pl.col("ready") > STREAM_WAIT_NS)
    if work["lane"].n_unique() < 2:  # noqa: PLR2004 - one stream waits for no other
        late = late.clear()
    if known_waits is not None:
        late = _behind_waits(work, late, known_waits)
    ended = work.select(
        "device",
        after_end="end",
        after="row",
        after_lane="lane",
        after_launch="launched_at",
    )
    earlier = asof(late, ended, "start", "after_end", by="device").filter(
        pl.col("after_lane") != pl.col("lane"),
        pl.col("after_end") > pl.col("ready"),
        pl.col("after_launch") <= pl.col("launched_at"),
    )
    return work.join(
        earlier.select("row", "after", "after_end"),
        on="row",
        how="left",
        maintain_order="left",
    )


def _behind_waits(
    work: pl.DataFrame, late: pl.DataFrame, waits: pl.DataFrame
) -> pl.DataFrame:
    """Return the late work whose stream was told to wait since the work before it."""
    earlier = work.select(
        "row", previous=pl.col("launched_at").shift(1).over("lane").fill_null(_NEVER)
    )
    requested = (
        late.select("row", "device", "launched_at", "id")
        .join(earlier, on="row", how="left", maintain_order="left")
        .with_columns(work.select("row", "stream")["stream"][late["row"]])
    )
    behind = requested.sort("launched_at").join_asof(
        waits.sort("at"),
        left_on="launched_at",
        right_on="at",
        by=["device", "stream"],
        check_sortedness=False,
    )
    rows = behind.filter(pl.col("at") >= pl.col("previous"))["row"]
    return late.filter(pl.col("row").is_in(rows.implode()))


def _waits(trace: Trace, steady: SteadySteps, work: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that block, each with the work that it ended after."""
    calls = in_steps(blocking_calls(trace), trace, steady)
    # All work of the trace: calls also wait for what was launched before these steps.
    row = constant(None, trace.kernels.height, INDEX)
    row = row.scatter(work["id"], row_numbers(work.height))
    ended = trace.kernels.select(done=END, began="ts").with_columns(
        row.alias("waits_for"), work["launched_at"][row].alias("launched_at")
    )
    return (
        asof(calls.select("id", start="ts", end=END), ended, "end", "done")
        .filter(
            pl.col("done") > pl.col("start"),
            pl.coalesce("launched_at", "began") <= pl.col("start"),
        )
        .sort("start", "id")
        .select(
            "id", "start", "end", "waits_for", resume=pl.col("end") - pl.col("done")
        )
    )


def _moments(
    trace: Trace, window: pl.DataFrame, work: pl.DataFrame, waits: pl.DataFrame
) -> pl.Series:
    """Return the moments at which the host's time is cut into pieces, in order."""
    ops = trace.host_ops[["ts", "dur", "parent"]]
    roots = spans(ops.filter(pl.col("parent").is_null()))
    tables = (window, waits, roots, _of_recorder(trace))
    sides = (table[side] for table in tables for side in _SIDES)
    begin, end = window.select(pl.min("start"), pl.max("end")).row(0)
    # A host that does nothing still has an instant.
    edges = pl.Series([begin or 0, max(end or 0, (begin or 0) + 1)])
    moments = pl.concat([*sides, work["launched_at"]])
    inside = moments.filter(moments.is_between(*edges))
    cuts = pl.concat([inside, edges]).sort()
    return cuts.filter(cuts.ne_missing(cuts.shift(1)))


def _host(trace: Trace, moments: pl.Series, costs: HostCosts) -> pl.DataFrame:
    """Return the host's time between moments: as recorded, and without the profiler.

    An event's time is not spent at the instant it begins, but around it: events and
    time are compared in windows of SMOOTHING_NS, and each piece gets its share.
    """
    start, end = moments[:-1], moments[1:]
    number = start // SMOOTHING_NS
    begins = number.ne_missing(number.shift(1))
    windows = pl.concat([start.filter(begins), moments[-1:]])
    window, quiet = begins.cum_sum() - 1, _quiet(trace, windows)
    # Room in the launch queue may come at another moment than the end of work: then no
    # wait is known, and the time is still not the host's.
    full = spans(blocking_calls(trace).filter(pl.col("kind") == FULL_QUEUE))
    graphs = graph_launches(trace).select("start", end="done")
    stalled = Cover(pl.concat([full, _of_recorder(trace), graphs]))
    until = _slowed_until(trace)
    slowed, took = (
        (until(edges) - stalled.until(edges)).diff()[1:] for edges in (moments, windows)
    )
    share = _share(took, *_expected(trace, windows, quiet, costs), quiet, costs)
    own = slowed * share[window] + Cover(graphs).until(moments).diff()[1:]
    if not trace.frames.height:
        between = [(edges - until(edges)).diff()[1:] for edges in (moments, windows)]
        python = _python(trace, windows, between[1], quiet, costs.outside_op_ns)
        own += between[0] * python[window]
    return pl.DataFrame([start, end, own], ["start", "end", "own"])


def _of_recorder(trace: Trace) -> pl.DataFrame:
    """Return the spans in which the host works only for the profiler."""
    return pl.concat([recorder_stalls(trace), wrapper_time(trace)])


def _slowed_until(trace: Trace) -> Callable[[pl.Series], pl.Series]:
    """Return a function: the time before each moment that recording slows down.

    With stacks that is all of it. Without them Python runs as fast as ever between the
    operators and calls.
    """
    if trace.frames.height:
        return lambda moments: moments
    ops = trace.host_ops[["ts", "dur", "parent"]]
    outermost = ops.filter(pl.col("parent").is_null())
    slowed = [spans(outermost), spans(trace.runtime), recorder_stalls(trace)]
    return Cover(pl.concat(slowed)).until


def _quiet(trace: Trace, windows: pl.Series) -> pl.Series:
    """Return in which windows nothing is asked of the GPU, nor in one beside it.

    In a trace without the calls that ask it is not known of any.
    """
    calls = trace.runtime["ts"]
    none = (counts_between(windows, calls) == 0) & (len(calls) > 0)
    beside = none.shift(1, fill_value=False) | none.shift(-1, fill_value=False)
    return none & beside


def _python(
    trace: Trace,
    windows: pl.Series,
    between: pl.Series,
    quiet: pl.Series,
    outside_op_ns: int,
) -> pl.Series:
    """Return the fraction of the time between operators that is Python, by window.

    The rest is of recording operators, outside of them. Where they ask something of the
    GPU, it is in what they cost.
    """
    ops = trace.host_ops[["ts", "parent"]]
    count = counts_between(windows, ops["ts"].filter(ops["parent"].is_null()))
    python = (1 - count * outside_op_ns / between).clip(lower_bound=LEAST_BETWEEN_OPS)
    return pl.select(
        pl.when(quiet & (between > 0)).then(python).otherwise(1.0)
    ).to_series()


def _share(
    took: pl.Series,
    plain: pl.Series,
    recorded: pl.Series,
    quiet: pl.Series,
    costs: HostCosts,
) -> pl.Series:
    """Return the host's time without the profiler, as a fraction, in each window.

    ``plain`` and ``recorded`` are what its events should take.
    """
    # A slow machine is slow with the profiler and without; what takes much longer than
    # its events is work that recording does not slow down. Where nothing is asked of
    # the GPU, all that takes longer is.
    tolerated = pl.when(quiet).then(1.0).otherwise(costs.tolerated)
    own = (
        pl.when(took < tolerated * recorded)
        .then(took * plain / recorded)
        .otherwise(took - tolerated * (recorded - plain))
    )
    return pl.select(pl.when(took > 0).then(own / took).otherwise(0.0)).to_series()


def _expected(
    trace: Trace, edges: pl.Series, quiet: pl.Series, costs: HostCosts
) -> tuple[pl.Series, pl.Series]:
    """Return the cost of the events between edges, without and with the profiler."""
    quiet_op = costs.quiet_op
    if trace.facts.shapes:
        quiet_op = HostCost(quiet_op.plain_ns, quiet_op.overhead_ns + costs.shapes_ns)
    tables = (
        (trace.frames, costs.frame, costs.quiet_frame),
        (trace.host_ops, costs.op, quiet_op),
        (trace.runtime, costs.call, costs.call),
    )
    plain = recorded = pl.repeat(0, len(edges) - 1, dtype=pl.Int64, eager=True)
    for table, cost, quiet_cost in tables:
        count = counts_between(edges, table["ts"])
        there = count * quiet
        each = count * cost.plain_ns + there * (quiet_cost.plain_ns - cost.plain_ns)
        more = quiet_cost.overhead_ns - cost.overhead_ns
        plain += each
        recorded += each + count * cost.overhead_ns + there * more
    return plain, recorded

"""Cost of a token: the iterations of a serving trace by phase, and the gaps between.

All times are as recorded. A phase is measured without the first iteration of the trace,
which may be slower than the others, unless that is the only one of its phase.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.device import used_gpu
from traceq.analysis.base.gpu_idle import queued_ns
from traceq.analysis.base.sync_calls import DEVICE_SYNCS, blocking_calls
from traceq.analysis.patterns.attention import FUSED_ARGUMENTS
from traceq.analysis.patterns.iteration_marks import DECODE
from traceq.analysis.patterns.iterations import PHASES, iterations
from traceq.analysis.patterns.matmul import MATMULS
from traceq.analysis.time.device_syncs import device_syncs
from traceq.analysis.time.host_activity import (
    BLOCKING,
    CAPTURING,
    COMPILING,
    LAUNCHES,
    SYNC,
    describe,
)
from traceq.analysis.time.host_segments import host_segments
from traceq.analysis.time.roofline import roofline
from traceq.common.expressions import END, known, text
from traceq.common.intervals import overlap
from traceq.common.units import NS_PER_S
from traceq.graph.devices import busiest_device
from traceq.graph.nesting import row_numbers

if TYPE_CHECKING:
    from traceq.analysis.time.host_segments import HostSegments
    from traceq.model.trace import Trace

SYNCING = "sync"
SAMPLING = "sampling"
DETOKENISING = "detokenising"
SCHEDULING = "scheduling"
PREPARING = "preparing inputs"
LAUNCHING = "launching"
GRAPHS = "capturing graphs"
OPERATORS = "other operators"
PYTHON = "other Python"
NO_STACKS = "Python (stacks were not recorded)"
ACTIVITIES = (
    *(SYNCING, SAMPLING, DETOKENISING, SCHEDULING, PREPARING, LAUNCHING, GRAPHS),
    *(OPERATORS, PYTHON, NO_STACKS),
)
"""Host activities between two iterations."""

# Activities by the name of the innermost enclosing function that matches; of an engine,
# of transformers, or the user's. Heuristic patterns.
_FUNCTIONS = {
    DETOKENISING: r"(?i)detok|(^|_)tokeni[sz]|batch_decode|convert_ids|_text(s)?$"
    r"|streamer|incremental_decode",
    SAMPLING: r"(?i)sampl|logits_(process|warp)|argmax|multinomial|penalt|top_[kp]",
    SCHEDULING: r"(?i)schedul"  # codespell:ignore
    r"|next_batch|process_batch_result|update_from_output"
    r"|stopping_criteria|check_(stop|finish)|is_finished|engine_core|(^|_)step_fn",
    PREPARING: r"(?i)prepare_(input|model|pos|attn|cache)|_update_model_kwargs"
    r"|init_forward_metadata|replay_prepare|populate_from|build_(input|metadata)"
    r"|create_(causal_)?mask|_update_states|get_seq_length",
}
_OPS = {
    SYNCING: r"^aten::(item|_local_scalar_dense|is_nonzero|equal|nonzero)$",
    SAMPLING: r"^aten::(argmax|multinomial|exponential_|_?softmax|topk|sort|cumsum)$",
}
# Below this share of matmul and attention time with known shapes, bytes are not known.
_MOST_KNOWN = 0.9


class Serving(Struct, frozen=True):
    """The iterations of a serving trace; all times are nanoseconds as recorded."""

    iterations: pl.DataFrame
    """Each of them, as ITERATIONS, with ``gap``, how long the GPU idled before it (none
    where it decodes more than once), and ``bytes``, the weights and the KV cache that
    it has to read at least."""
    phases: pl.DataFrame
    """By ``phase``: how many ``iterations``, all decodes of a step if it makes several
    tokens for each request, each with its part of that step; ``time`` of one at the
    median, from ``least`` to ``most``; ``requests`` and ``tokens`` of one, so as well;
    ``per_token`` time and ``tokens_per_s``; ``gap`` before one at the median and
    ``gap_share`` of all time; ``graphs``, the share of their GPU time that graphs run;
    ``padding``, the share of the graphs' tokens that no request has; ``bandwidth`` in
    bytes per second, and its share ``of_peak``; ``known_by``; ``only_first``, whether
    the first iteration of the trace is all there is."""
    between: pl.DataFrame
    """Host activity before decode iterations while the GPU idles: ``activity``, mean
    ``time`` per iteration, the ``name`` that takes most of it, and whether that is a
    function (``by_function``)."""
    peak: float | None
    """Bytes per second that the GPU's memory can move."""


@cached_per_trace
def serving(trace: Trace) -> Serving | None:
    """Return the cost of a token; None if the trace is not of serving."""
    iteration_rows = iterations(trace)
    if not iteration_rows["phase"].is_not_null().any():
        return None
    gaps = gaps_before(trace, iteration_rows)
    iteration_rows = iteration_rows.join(
        gaps.select("step", gap=pl.col("end") - pl.col("start")),
        on="step",
        how="left",
        maintain_order="left",
    ).join(_bytes(trace, iteration_rows), on="step", how="left", maintain_order="left")
    # Idle time between the decodes of one step is ignored.
    iteration_rows = iteration_rows.with_columns(
        gap=pl.when(times_of() == 1).then("gap")
    )
    peak = used_gpu(trace).peak
    bandwidth = peak.bandwidth if peak else None
    return Serving(
        iteration_rows,
        _phases(iteration_rows, bandwidth, queued=queued_ns(trace) > 0),
        _between(trace, iteration_rows, gaps),
        bandwidth,
    )


def times_of() -> pl.Expr:
    """Return the number of iterations in a step: its decodes, where it has several."""
    decodes = (pl.col("phase") == DECODE) & (pl.col("decodes") > 1)
    return pl.when(decodes).then("decodes").otherwise(1)


def gaps_before(trace: Trace, iteration_rows: pl.DataFrame) -> pl.DataFrame:
    """Return the GPU's idle gap before each iteration: ``step``, ``start``, ``end``.

    That is from the end of all earlier work to the start of its own; of the first
    iteration nothing is known. Where the GPU did not idle both are the same.
    """
    work = (
        busiest_device(trace.kernels)
        .drop_nulls("step")
        .group_by("step")
        .agg(first=pl.col("ts").min(), last=END.max())
    )
    done = pl.col("last").cum_max().shift(1)
    return (
        iteration_rows.select("step")
        .join(work, on="step", how="inner", maintain_order="left")
        .with_columns(start=done)
        .drop_nulls("start")
        .select("step", "start", end=pl.max_horizontal("start", "first"))
    )


def _phases(
    iteration_rows: pl.DataFrame, peak: float | None, *, queued: bool
) -> pl.DataFrame:
    """Return what ``Serving.phases`` has.

    Where the GPU was ``queued`` with unrecorded work, the first iteration shows what
    the GPU takes for it, but not how long its tokens took.
    """
    alone = ~(~pl.col("first")).any().over("phase")
    rows = iteration_rows.drop_nulls("phase").filter(~pl.col("first") | alone)
    tokens, time = pl.col("tokens").sum(), pl.col("time").sum()
    each = pl.col("time") // pl.col("times")
    all_told = pl.col("tokens").is_not_null().all()
    if queued:
        all_told &= ~pl.col("first").any()
    # Tokens are compared with tokens, requests with requests.
    filled = pl.coalesce(
        pl.col("tokens") / pl.col("times") / pl.col("graph_tokens"),
        pl.col("requests") / pl.col("graph_batch"),
    ).clip(upper_bound=1.0)
    rate = pl.col("bytes") / pl.col("time") * NS_PER_S
    return (
        rows.with_columns(times=times_of())
        .group_by("phase")
        .agg(
            iterations=pl.col("times").sum(),
            time=each.median(),
            least=each.min(),
            most=each.max(),
            requests=pl.col("requests").median(),
            tokens=(pl.col("tokens") / pl.col("times")).median(),
            per_token=pl.when(all_told & (tokens > 0)).then(time / tokens),
            tokens_per_s=pl.when(all_told & (time > 0)).then(tokens / time * NS_PER_S),
            gap=pl.col("gap").median(),
            gap_share=pl.when(pl.col("gap").is_not_null().any()).then(
                pl.col("gap").sum() / time
            ),
            graphs=pl.col("graph_share").mean(),
            padding=(1 - filled).mean(),
            bandwidth=rate.median(),
            known_by=pl.col("known_by").cast(pl.String).mode().first(),
            only_first=pl.col("first").all(),
        )
        .with_columns(of_peak=pl.col("bandwidth") / pl.lit(peak, pl.Float64))
        .sort(
            pl.col("phase")
            .cast(pl.String)
            .replace_strict({one: at for at, one in enumerate(PHASES)})
        )
    )


def _bytes(trace: Trace, iteration_rows: pl.DataFrame) -> pl.DataFrame:
    """Return the weights and the KV cache that each iteration reads at least.

    Of a cache that is longer than the context only the context has to be read.
    """
    if not iteration_rows["phase"].is_in([DECODE]).any() or not trace.facts.gpu:
        return pl.DataFrame(schema={"step": pl.Int64, "bytes": pl.Float64})
    attends = text("name").is_in(list(FUSED_ARGUMENTS))
    judged = roofline(trace).ops.filter(text("name").is_in(list(MATMULS)) | attends)
    step = trace.ops["step"].gather(judged["op"])
    kinds = ("gemm", "attention")
    whole = (
        trace.kernels.filter(text("kind").is_in(kinds))
        .group_by("step")
        .agg(pl.col("dur").sum())
    )
    filled = pl.col("context") / (pl.col("requests") * pl.col("cache"))
    share = pl.when(filled < 1).then(filled).otherwise(1.0)
    return (
        judged.select("bytes", "gpu", step=step, attends=attends)
        .join(
            iteration_rows.select("step", share=share.fill_null(1.0)),
            on="step",
            how="inner",
        )
        .group_by("step")
        .agg(
            bytes=(
                pl.when("attends")
                .then(pl.col("bytes") * pl.col("share"))
                .otherwise("bytes")
            ).sum(),
            gpu=pl.col("gpu").sum(),
        )
        .join(whole, on="step")
        .filter(pl.col("gpu") >= _MOST_KNOWN * pl.col("dur"))
        .select("step", "bytes")
    )


def _between(
    trace: Trace, iteration_rows: pl.DataFrame, gaps: pl.DataFrame
) -> pl.DataFrame:
    """Return the host's activity in the gaps before decode iterations."""
    decodes = iteration_rows.filter(pl.col("phase") == DECODE).select("step")
    pieces = host_in_gaps(trace, gaps.join(decodes, on="step", how="semi"))
    steps = max(1, pieces["step"].n_unique())
    named = (
        pieces.group_by("activity", "name", "by_function")
        .agg(pl.col("time").sum())
        .sort("time", "name", descending=[True, False])
    )
    return (
        named.group_by("activity", maintain_order=True)
        .agg(pl.col("time").sum() / steps, pl.col("name", "by_function").first())
        .filter(pl.col("time") > 0)
        .sort("time", "activity", descending=[True, False])
    )


@cached_per_trace
def host_in_gaps(trace: Trace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return the host's activity in gaps, which do not overlap, piece by piece.

    ``start``, ``end``, ``step`` (the iteration behind the gap), ``time`` inside of the
    gap, ``activity``, ``name`` (of the function or the op) and ``by_function``.
    """
    host = host_segments(trace)
    windows = gaps.filter(pl.col("end") > pl.col("start")).select(
        "step", begin="start", close="end"
    )
    pieces = (
        host.segments.with_columns(
            time=overlap(host.segments, windows.select(start="begin", end="close"))
        )
        .filter(pl.col("time") > 0)
        .join_asof(windows.sort("begin"), left_on="end", right_on="begin")
    )
    described = _described(trace, host)
    nothing = PYTHON if trace.frames.height else NO_STACKS
    return (
        pieces.join(described, on="at", how="left", maintain_order="left")
        .with_columns(pl.col("activity").fill_null(nothing))
        .select("start", "end", "step", "time", "at", "activity", "name", "by_function")
    )


def _described(trace: Trace, host: HostSegments) -> pl.DataFrame:
    """Return for each row of the host's tree, ``at``, which activity it is part of."""
    waits = blocking_calls(trace).filter(pl.col("kind").is_in(DEVICE_SYNCS))["id"]
    described = describe(trace, host, waits)
    # Rows that are the same, in the same, are one: it says what all of them are.
    contexts = described.contexts
    kinds = described.activities.select("kind", "name", "called")
    activity = described.activity[contexts.tree["first"]]
    rows = kinds.select(pl.all().gather(activity)).with_columns(contexts.op.alias("op"))
    function = trace.frames["function"].gather(contexts.rows_of("frames"))
    function = function.cast(pl.String)
    by_name = _of_names(function, _FUNCTIONS)
    around = contexts.nearest(by_name.is_not_null())
    op_name = trace.ops["name"].gather(rows["op"]).cast(pl.String)
    kind = pl.col("kind")
    by_kind = (
        pl.when(kind.is_in([SYNC, BLOCKING]))
        .then(pl.lit(SYNCING))
        .when(kind == CAPTURING)
        .then(pl.lit(GRAPHS))
        .when(kind == COMPILING)
        .then(pl.lit(COMPILING))
    )
    nothing = PYTHON if trace.frames.height else NO_STACKS
    rest = (
        pl.when(kind.str.contains(LAUNCHES))
        .then(pl.lit(LAUNCHING))
        .when(pl.col("op").is_not_null())
        .then(pl.lit(OPERATORS))
        .otherwise(pl.lit(nothing))
    )
    of_contexts = rows.with_columns(
        by_frame=by_name.gather(around),
        frame_name=function.gather(around),
        by_op=_of_names(op_name, _OPS),
        op_name=op_name,
    ).select(
        activity=pl.coalesce(by_kind, "by_op", "by_frame", rest),
        name=pl.when(
            by_kind.is_null()
            & pl.col("by_op").is_null()
            & pl.col("by_frame").is_not_null()
        )
        .then("frame_name")
        .otherwise(
            # The name of a region tells nothing of what is done in it.
            pl.coalesce("op_name", pl.when(pl.col("called").is_not_null()).then("name"))
        ),
        by_function=known(
            pl.col("by_frame").is_not_null() | pl.col("op_name").is_null()
        ),
    )
    number = contexts.number[: host.nothing]
    return of_contexts.select(pl.all().gather(number)).with_columns(
        at=row_numbers(len(number))
    )


def _of_names(names: pl.Series, patterns: dict[str, str]) -> pl.Series:
    """Return the activity of each name; each distinct name is matched once."""
    distinct = names.unique().drop_nulls().to_frame("name")
    activities = distinct.with_columns(
        told=pl.coalesce(
            pl.when(pl.col("name").str.contains(pattern)).then(pl.lit(activity))
            for activity, pattern in patterns.items()
        )
    ).drop_nulls("told")
    return names.to_frame("name").join(
        activities, on="name", how="left", maintain_order="left"
    )["told"]


# Heuristic threshold: a smaller fraction of decode is not worth a finding.
LEAST_GAP = 0.1
# Activities in a gap that are not the program's work: any program has them.
_NO_WORK = (SYNCING, LAUNCHING, GRAPHS, COMPILING)
# A wait is for the token if it is there in most gaps.
_MOST_GAPS = 0.5


class TokenGaps(Struct, frozen=True):
    """The GPU's idle time between decode iterations, and its cause."""

    gaps: pl.DataFrame
    """``step``, ``start`` and ``end`` of those that are before steady decodes."""
    share: float
    """Their share of these iterations' time."""
    work: pl.DataFrame
    """Host work in these gaps: pieces as ``host_in_gaps`` returns them."""
    work_share: float
    """Its share of these iterations' time."""
    syncs: pl.DataFrame
    """Waits of the host, as ``device_syncs`` returns them, that end as the GPU runs out
    of work, in most gaps: the next iteration is not launched before."""
    iterations: int

    @property
    def by_work(self) -> bool:
        """True if the host works in the gaps, so that a sync alone is not the cause."""
        return self.share >= LEAST_GAP and self.work_share >= LEAST_GAP

    @property
    def by_sync(self) -> bool:
        """True if the gaps are there because the host waits for each token."""
        return self.share >= LEAST_GAP and not self.by_work and self.syncs.height > 0


@cached_per_trace
def token_gaps(trace: Trace) -> TokenGaps | None:
    """Return the idle time between steady decode iterations and its cause, if any."""
    iteration_rows = iterations(trace)
    if not iteration_rows.height:
        return None
    steady = trace.steps.filter("averaged").select("step")
    decodes = iteration_rows.filter(pl.col("phase") == DECODE).join(
        steady, on="step", how="semi"
    )
    if not decodes.height or not trace.facts.gpu:
        return None
    whole = max(1, int(decodes["time"].sum()))
    gaps = gaps_before(trace, iteration_rows).join(decodes, on="step", how="semi")
    gaps = gaps.filter(pl.col("end") > pl.col("start"), ~_captures_in(trace, gaps))
    pieces = host_in_gaps(trace, gaps)
    work = pieces.filter(~pl.col("activity").is_in(_NO_WORK))
    return TokenGaps(
        gaps,
        int((gaps["end"] - gaps["start"]).sum()) / whole,
        work,
        int(work["time"].sum()) / whole,
        _token_syncs(trace, gaps, decodes.height),
        decodes.height,
    )


def _token_syncs(trace: Trace, gaps: pl.DataFrame, count: int) -> pl.DataFrame:
    """Return the waits during which the gaps begin."""
    syncs = device_syncs(trace).sort("end")
    nearest_sync = gaps.sort("start").join_asof(
        syncs.select("id", "ts", at="end"),
        left_on="start",
        right_on="at",
        strategy="forward",
    )
    inside = nearest_sync.filter(
        pl.col("ts") <= pl.col("start"), pl.col("at") <= pl.col("end")
    )
    if inside.height < _MOST_GAPS * count:
        return syncs.clear()
    # Before the first gap it waits as well.
    same = ("name", "file", "line", "function")
    known_by = syncs.join(inside, on="id", how="semi").select(same).unique()
    served = syncs.filter(pl.col("step").is_in(gaps["step"].implode()))
    alike = served.join(known_by, on=same, how="semi", nulls_equal=True)
    return syncs.filter(
        pl.col("id").is_in(pl.concat([alike["id"], inside["id"]]).implode())
    )


def _captures_in(trace: Trace, gaps: pl.DataFrame) -> pl.Series:
    """Return in which gaps a graph is captured: they say nothing of the others."""
    moments = trace.runtime.filter(pl.col("call") == "capture")["ts"].sort()
    before, until = (moments.search_sorted(gaps[side]) for side in ("start", "end"))
    return until > before


def token_syncs(trace: Trace) -> pl.Series:
    """Return the calls by which the host waits for tokens, if gaps are their fault.

    They are the ids of ``device_syncs``; findings on serving report them.
    """
    gaps = token_gaps(trace)
    if gaps is None or not (gaps.by_work or gaps.by_sync):
        return pl.Series(dtype=pl.UInt32)
    return gaps.syncs["id"]


def token_work(trace: Trace) -> pl.Series:
    """Return the starts of the host work that findings on token gaps report."""
    gaps = token_gaps(trace)
    if gaps is None or not gaps.by_work:
        return pl.Series(dtype=pl.Int64)
    return gaps.work["start"]

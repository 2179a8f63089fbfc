"""The iterations of a serving or generation loop: phase, requests, tokens, context.

A prefill reads whole prompts, a decode makes one more token for each request; an
engine may do both at once. What an iteration does is known by what its engine writes
into its name; else by the shapes of its attention and embedding, of captured ops too
where a graph is replayed; else it is a guess, from the kernels' names or from the
prefill before it. Training has no such phases, nor has a loop that never decodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.ownership import has_like, has_named, named, outermost_ops
from traceq.analysis.patterns.attention import FUSED_ARGUMENTS, SDPA
from traceq.analysis.patterns.iteration_marks import (
    COLUMNS,
    DECODE,
    DIFFUSION,
    MIXED,
    PREFILL,
    marked_iterations,
)
from traceq.analysis.patterns.matmul import MATMULS
from traceq.common.expressions import known, nth, text
from traceq.model.schema import NS, NUMBER, Column, Table
from traceq.model.tables import COPY

if TYPE_CHECKING:
    from traceq.model.trace import Trace

PHASES = (PREFILL, DECODE, MIXED, DIFFUSION)
RUNS = ("graph", "in parts", "eager")
KNOWN_BY = ("annotation", "shapes", "guess")

ITERATIONS = Table(
    "The iterations of a serving or generation loop; none for training.",
    {
        "step": Column(NUMBER, "Number of the step that it is."),
        "decodes": Column(
            NUMBER,
            "How often the model decodes in it: more than once where a step makes"
            " several tokens for each request; none if unknown.",
        ),
        "phase": Column(
            pl.Enum(PHASES),
            "prefill reads prompts, decode makes a token for each request, mixed does"
            " both, diffusion is a denoising step; none if unknown.",
        ),
        "requests": Column(NUMBER, "Requests, or sequences, in the batch."),
        "tokens": Column(NUMBER, "New tokens: of prompts, and one a decoding request."),
        "context": Column(
            NUMBER, "Sum of the KV lengths of all requests, new tokens included."
        ),
        "prefill_requests": Column(NUMBER, "Requests whose prompt is read."),
        "prefill_tokens": Column(NUMBER, "Tokens of these prompts."),
        "cache": Column(
            NUMBER, "Keys of a request that attention goes over, padding included."
        ),
        "graph_batch": Column(
            NUMBER,
            "Requests that the replayed CUDA graph was captured for; none if its tokens"
            " are not one a request.",
        ),
        "graph_tokens": Column(
            NUMBER, "Tokens that the replayed CUDA graph was captured for."
        ),
        "run": Column(
            pl.Enum(RUNS),
            "Whether a CUDA graph runs all its kernels, some, or none.",
        ),
        "graph_share": Column(pl.Float64(), "Share of its GPU time that graphs run."),
        "known_by": Column(
            pl.Enum(KNOWN_BY),
            "What tells the phase: the engine's annotation, shapes, or a guess from"
            " kernel names and the iterations before.",
        ),
        "start": Column(NS, "When the GPU is done with earlier steps.", "ns"),
        "end": Column(NS, "When host and GPU are done with this one.", "ns"),
        "time": Column(NS, "How long it took, as recorded.", "ns"),
        "first": Column(
            pl.Boolean(), "The first of the trace, which may be slower for it."
        ),
    },
)
"""Every column of an iteration, and what it means."""

# The share of an iteration's GPU time that a graph runs if it runs all of it, or none.
_ALL_BY_GRAPH, _MOST_BY_GRAPH, _NONE_BY_GRAPH = 0.9, 0.5, 0.1
# A decode takes the GPU this many times less than the prefill before it, at least.
_SHORTER = 2
# Calls that are fewer than this share of the most frequent ones are of no layer.
_MOST_LAYERS = 0.5
_RANK = 4
# The source of steps that the profiler marks: they may be whole generations.
_MARKED = "ProfilerStep"
_ATTENTION = (SDPA, *(name for name in FUSED_ARGUMENTS if "backward" not in name))
# Attention of other libraries, on packed tokens or pages of the cache.
_OTHER_ATTENTION = r"(?i)::.*(attn|attention|mha|mla|paged)|^flash_attn|flashinfer"
_TORCH = "aten::"
_EMBEDDING = ("aten::embedding",)
# Names of kernels and ops that run in one phase only.
_DECODES = (
    r"(?i)paged_attention|decode|splitkv|split_kv|_stage[12]\b|grouped_kernel_stage"
)
_PREFILLS = r"(?i)prefill|context_attention|extend_attention"
_TRAINS = r"[Bb]ackward|_bwd|bwd_|dgrad|wgrad|[Aa]dam(W|_|\b)"  # codespell:ignore
_TRAINING = ("backward", "optimizer")


@cached_per_trace
def iterations(trace: Trace) -> pl.DataFrame:
    """Return the iterations of a serving trace, as ITERATIONS; none for training."""
    none = pl.DataFrame(schema=ITERATIONS.dtypes)
    if not trace.steps.height or _trains(trace):
        return none
    marked = marked_iterations(trace)
    if not marked.height and not _attends_or_embeds(trace):
        return none
    seen = _by_shapes(trace)
    # Else it may be any loop that runs forward passes.
    if not marked.height and not (seen["phase"] == DECODE).any():
        return none
    rows = _with_context(_together(trace, marked, seen))
    # Now that it has said how long the prompts are.
    rows = rows.filter(pl.col("step") != _before(trace))
    if trace.facts.steps_from != _MARKED:
        # Steps that were found as what repeats, or by their names, are iterations.
        once = (pl.col("phase") == DECODE).cast(pl.Int64)
        rows = rows.with_columns(pl.col("decodes").fill_null(once))
    return ITERATIONS.shaped(rows.with_columns(first=pl.int_range(pl.len()) == 0))


def _attends_or_embeds(trace: Trace) -> bool:
    """Return whether any op or kernel can tell the phase of a step."""
    return (
        has_named(trace.ops, (*_ATTENTION, *_EMBEDDING))
        or has_like(trace.ops, _OTHER_ATTENTION)
        or (trace.kernels["kind"] == "attention").any()
    )


def _before(trace: Trace) -> int:
    """Return the number of what is before the first step, as if it were one.

    Where steps are replays of a graph, that may be the prefill.
    """
    return int(trace.steps["step"][0]) - 1


def _stepped(trace: Trace, table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that are of a step, or of what is before the first one."""
    early = pl.col("step").is_null() & pl.col("ts").is_between(
        0, int(trace.steps["ts"][0]), closed="left"
    )
    step = pl.when(early).then(_before(trace)).otherwise("step").alias("step")
    return table.with_columns(step).drop_nulls("step")


def _all_steps(trace: Trace) -> pl.DataFrame:
    """Return the steps, and before them what is before the first one."""
    kernels = trace.kernels.filter(
        pl.col("step").is_null(), pl.col("ts") < int(trace.steps["ts"][0])
    )
    columns = ("step", "start", "end", "time", "gpu_busy")
    busy = int(kernels["dur"].sum())
    before = pl.DataFrame([(_before(trace), 0, 0, 0, busy)], columns, orient="row")
    steps = trace.steps.select(columns)
    return pl.concat([before.cast(steps.schema), steps])


def _trains(trace: Trace) -> bool:
    """Return whether the trace is of training: it has a backward or an optimizer."""
    for table in (trace.ops, trace.kernels):
        if table["phase"].is_in(_TRAINING).any():
            return True
    names = trace.kernels["name"].unique().cast(pl.String)
    return bool(known(names.str.contains(_TRAINS)).any())


def _together(trace: Trace, marked: pl.DataFrame, seen: pl.DataFrame) -> pl.DataFrame:
    """Return all steps with what is known of them, annotations before shapes."""
    shaped = seen.rename(
        {name: f"seen_{name}" for name in seen.columns if name != "step"}
    )
    rows = (
        _all_steps(trace)
        .join(marked, on="step", how="left", maintain_order="left")
        .join(shaped, on="step", how="left", maintain_order="left")
        .join(_runs(trace), on="step", how="left", maintain_order="left")
    )
    by_name = pl.col("phase").is_not_null()
    graphed = pl.col("graph_share") > _NONE_BY_GRAPH
    # The shapes of a graph are those of its capture, not those of its use.
    counts = {
        name: pl.when(by_name).then(name).otherwise(f"seen_{name}")
        for name in ("requests", "tokens", "prefill_requests", "prefill_tokens")
    }
    wide = pl.when(graphed & pl.col("seen_captured")).then("seen_rows")
    phase = pl.coalesce("phase", "seen_phase")
    decodes = pl.when(by_name).then("decodes").otherwise("seen_decodes")
    times = pl.max_horizontal(decodes.fill_null(1), 1)
    one_each = (phase == DECODE) & (
        counts["tokens"].fill_null(0) <= counts["requests"].fill_null(0) * times
    )
    return rows.with_columns(
        phase=phase,
        **counts,
        decodes=decodes,
        said=pl.col("context"),
        context=pl.coalesce("context", "seen_context"),
        cache=pl.col("seen_cache"),
        masked=pl.col("seen_masked"),
        graph_batch=pl.coalesce("graph_batch", pl.when(one_each).then(wide)),
        graph_tokens=wide,
        known_by=pl.when(by_name)
        .then(pl.lit("annotation"))
        .when(pl.col("seen_phase").is_not_null())
        .then("seen_known_by"),
        run=pl.when(pl.col("graph_share") >= _ALL_BY_GRAPH)
        .then(pl.lit("graph"))
        .when(graphed)
        .then(pl.lit("in parts"))
        .otherwise(pl.lit("eager")),
        graph_share=pl.col("graph_share").fill_null(0.0),
    )


def _runs(trace: Trace) -> pl.DataFrame:
    """Return the fraction of each step's GPU time that runs in CUDA graphs."""
    launched = trace.runtime["call"].cast(pl.String).gather(trace.kernels["launch"])
    return (
        trace.kernels.select("step", "dur", graph=known(launched == "graph launch"))
        .drop_nulls("step")
        .group_by("step")
        .agg(graph_share=pl.col("dur").filter("graph").sum() / pl.col("dur").sum())
    )


def _by_shapes(trace: Trace) -> pl.DataFrame:
    """Return the iterations by their shapes; without shapes, by names and guesses.

    ``phase``, ``known_by``, the counts of ITERATIONS, ``rows`` (of most matmuls),
    ``masked`` (attention has a mask) and ``captured`` (shapes are of a graph).
    """
    ran = (~pl.col("captured") | COPY) & ~pl.col("compiling")
    ops = _stepped(trace, trace.ops).select(
        "id", "name", "inputs", "step", ran=ran, copy=COPY
    )
    ops = ops.filter("ran")
    steps = (
        _all_steps(trace)
        .select("step", "gpu_busy")
        .join(_attention(trace, ops), on="step", how="left", maintain_order="left")
        .join(_embedding(trace, ops), on="step", how="left", maintain_order="left")
        .join(_rows(trace, ops), on="step", how="left", maintain_order="left")
        .join(_named(trace, ops), on="step", how="left", maintain_order="left")
    )
    return _guessed(trace, _phases_by_shapes(steps))


def _shapes(trace: Trace, ops: pl.DataFrame, chosen: pl.Series) -> pl.DataFrame:
    """Return the chosen ops with their ``dims`` and ``types``."""
    return ops.filter(chosen).join(
        trace.inputs.select("dims", "types", inputs="id"), on="inputs"
    )


def _attention(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the attention calls of each step, as most layers make them.

    ``decoding`` (requests with one query), ``reading`` (others), ``queries`` (of all),
    ``read`` (of those that read prompts), ``cache`` (most keys of a request),
    ``keys`` (of all requests), ``masked``.
    """
    outermost = outermost_ops(trace, _ATTENTION).gather(ops["id"])
    calls = _shapes(trace, ops, known(outermost == ops["id"])).select(
        "step",
        query=nth("dims", 0),
        key=nth("dims", 1),
        masked=(nth("types", 3).fill_null("") != "")
        & (nth("dims", 3).list.len().fill_null(0) > 0),
    )
    groups = (
        calls.filter(pl.col("query").list.len() == _RANK)
        .select(
            "step",
            "masked",
            batch=pl.col("query").list.get(0),
            length=pl.col("query").list.get(2),
            keys=pl.col("key").list.get(2, null_on_oob=True),
        )
        .group_by("step", "batch", "length")
        .agg(pl.len().alias("calls"), pl.col("keys").max(), pl.col("masked").any())
        .filter(pl.col("calls") >= _MOST_LAYERS * pl.col("calls").max().over("step"))
    )
    expression = pl.col("length") == 1
    batch, queries = pl.col("batch"), pl.col("batch") * pl.col("length")
    return groups.group_by("step").agg(
        decoding=batch.filter(expression).sum(),
        reading=batch.filter(~expression).sum(),
        queries=queries.sum(),
        read=queries.filter(~expression).sum(),
        cache=pl.col("keys").max(),
        keys=(pl.col("keys") * batch).sum(),
        looks_back=(pl.col("keys") > pl.col("length")).any(),
        masked=pl.col("masked").any(),
    )


def _embedding(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the ids that each step embeds: ``batch``, ``length``, and how often.

    Where a step runs the model several times, as a generation does, they are those that
    it embeds most often, and ``passes`` is how often that is.
    """
    indices = nth("dims", 1)
    calls = _shapes(trace, ops, named(ops, _EMBEDDING)).select(
        "step", indices=indices, table=nth("dims", 0).list.get(0, null_on_oob=True)
    )
    # Without a batch they are the ids of all requests in one row, or positions.
    rank = pl.col("indices").list.len()
    batched = rank == 2  # noqa: PLR2004 - batch and length
    return (
        calls.filter(rank.is_in([1, 2]))
        .filter(rank == rank.max().over("step"))
        # Of several tables the vocabulary is the largest.
        .filter(pl.col("table") == pl.col("table").max().over("step"))
        .select(
            "step",
            batch=pl.when(batched).then(pl.col("indices").list.first()),
            length=pl.col("indices").list.last(),
        )
        .group_by("step", "batch", "length", maintain_order=True)
        .agg(passes=pl.len().cast(pl.Int64))
        .sort("passes", descending=True, maintain_order=True)
        .group_by("step", maintain_order=True)
        .agg(pl.col("batch", "length", "passes").first())
    )


def _rows(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the row count of most matmuls of each step, and whether it is captured."""
    plain = [name for name in MATMULS if "bmm" not in name]
    calls = _shapes(trace, ops, named(ops, plain))
    first = pl.when(text("name").str.contains("addmm")).then(nth("dims", 1))
    rows = first.otherwise(nth("dims", 0)).list.get(0, null_on_oob=True)
    return (
        calls.select("step", "copy", rows=rows)
        .drop_nulls()
        .group_by("step", "rows")
        .agg(pl.len(), captured=pl.col("copy").any())
        .sort("len", "rows", descending=True)
        .group_by("step", maintain_order=True)
        .agg(pl.col("rows", "captured").first())
    )


def _named(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the phase that the names of a step's attention kernels and ops show."""
    other = ops.select("step", text("name")).filter(
        pl.col("name").str.contains(_OTHER_ATTENTION),
        ~pl.col("name").str.starts_with(_TORCH),
    )
    kernels = trace.kernels.filter(pl.col("kind") == "attention")
    names = pl.concat([other, kernels.select("step", text("name"))]).drop_nulls("step")
    decodes = pl.col("name").str.contains(_DECODES)
    prefills = pl.col("name").str.contains(_PREFILLS)
    return names.group_by("step").agg(
        named_decode=decodes.any(), named_prefill=prefills.any(), attends=pl.len() > 0
    )


def _phases_by_shapes(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the phase by the shapes of attention, or of the embedded ids."""
    flat = pl.col("batch").is_null() | (pl.col("batch") == 1)
    ids = pl.col("batch").fill_null(1) * pl.col("length")
    # Ids of a batch say it all, unless requests of several lengths are packed in one.
    split = (pl.col("queries") == ids) | pl.col("length").is_null()
    by_attention = pl.col("queries").is_not_null() & (
        split | (flat & (pl.col("decoding") > 0))
    )
    by_ids = pl.col("batch").is_not_null() & known(
        pl.col("attends") | pl.col("queries").is_not_null()
    )
    expression = pl.col("length") == 1
    looks = known(pl.col("looks_back")) | pl.col("queries").is_null()
    decoding, reading, read = (
        pl.when(by_attention).then(name).when(by_ids & is_it).then(count).fill_null(0)
        for name, is_it, count in (
            ("decoding", expression, pl.col("batch")),
            ("reading", ~expression, pl.col("batch")),
            ("read", ~expression, ids),
        )
    )
    phase = (
        pl.when(~(by_attention | by_ids))
        .then(None)
        .when((decoding > 0) & (reading > 0))
        .then(pl.lit(MIXED))
        .when(reading > 0)
        .then(pl.lit(PREFILL))
        .when((decoding > 0) & looks)
        .then(pl.lit(DECODE))
    )
    captured = known(pl.col("captured"))
    in_row = pl.col("batch").is_null() & (pl.col("length") == pl.col("decoding"))
    times = pl.when((expression & pl.col("batch").is_not_null()) | in_row).then(
        "passes"
    )
    decodes = pl.when(decoding > 0).then(times).otherwise(0)
    requests, tokens = decoding + reading, decoding * decodes.fill_null(1) + read
    has_phase = phase.is_not_null()
    return steps.with_columns(
        phase=phase,
        decodes=pl.when(has_phase).then(decodes),
        known_by=pl.when(has_phase).then(pl.lit("shapes")),
        requests=pl.when(has_phase).then(requests),
        tokens=pl.when(has_phase).then(tokens),
        prefill_requests=pl.when(has_phase).then(reading),
        prefill_tokens=pl.when(has_phase).then(read),
        context=pl.when(has_phase & by_attention).then("keys"),
        masked=known(pl.col("masked")),
        captured=captured,
    )


def _guessed(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Add a guess if shapes are not conclusive, from names or the prefill before.

    A step that a graph runs, behind one that reads prompts by itself, decodes.
    """
    steps = steps.join(_runs(trace), on="step", how="left", maintain_order="left")
    read = known(pl.col("phase") == PREFILL)
    before, busy = (
        pl.when(read).then(name).forward_fill() for name in ("requests", "gpu_busy")
    )
    # A graph that does as much as the pass before it may be any model's.
    graphed = (pl.col("graph_share") >= _MOST_BY_GRAPH) & (
        _SHORTER * pl.col("gpu_busy") < busy
    )
    by_name = (
        pl.when(known(pl.col("named_decode")) & known(pl.col("named_prefill")))
        .then(pl.lit(MIXED))
        .when(known(pl.col("named_decode")))
        .then(pl.lit(DECODE))
        .when(known(pl.col("named_prefill")))
        .then(pl.lit(PREFILL))
    )
    follows = pl.when(graphed).then(pl.lit(DECODE))
    unknown = pl.col("phase").is_null()
    guess = pl.coalesce(by_name, follows)
    of_guess = pl.when(unknown & (guess == DECODE))
    rows = pl.coalesce(before, pl.when(pl.col("captured")).then("rows"))
    return steps.with_columns(
        phase=pl.coalesce("phase", guess),
        known_by=pl.when(unknown & guess.is_not_null())
        .then(pl.lit("guess"))
        .otherwise("known_by"),
        requests=of_guess.then(rows).otherwise("requests"),
        tokens=of_guess.then(rows).otherwise("tokens"),
        prefill_requests=of_guess.then(0).otherwise("prefill_requests"),
        prefill_tokens=of_guess.then(0).otherwise("prefill_tokens"),
    ).select(
        "step",
        *(name for name in COLUMNS if name != "graph_batch"),
        *("known_by", "decodes", "cache", "masked", "rows", "captured"),
    )


def _with_context(rows: pl.DataFrame) -> pl.DataFrame:
    """Correct the context where keys are those of a cache that is longer than it.

    Behind a mask, keys that do not grow are a static cache; then the context is the
    prompts of the prefill before, and a token of each request for each decode since.
    """
    decodes = known(pl.col("phase") == DECODE)
    reads = known(pl.col("phase") == PREFILL)
    since = pl.col("is_decode").cast(pl.Int64).cum_sum()
    grows = pl.col("cache").filter("is_decode").diff() > 0
    static = pl.col("masked") & ~known(grows.any())
    counted = pl.col("prefill_tokens").first() + since * pl.col("requests")
    loops = rows.with_columns(is_decode=decodes, loop=reads.cum_sum()).with_columns(
        static=static.over("loop"), counted=counted.over("loop")
    )
    keys = pl.when(~pl.col("static") | reads).then("context")
    # Before the first prefill nothing says how long the prompts were.
    counted = pl.when(pl.col("is_decode") & (pl.col("loop") > 0)).then("counted")
    return loops.with_columns(context=pl.coalesce("said", keys, counted))

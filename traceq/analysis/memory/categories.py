"""What each allocation of a memory snapshot is for, as far as it can be told.

Three things tell it: the stack at which it was allocated, the part of the step in which
it was allocated and given back, and sizes, as weights, their gradients and the
optimizer's state have the same. How sure it is, is said with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.memory.curve import memory_curve, memory_peaks
from traceq.analysis.memory.lifetimes import LIFETIMES, live_at, memory_lifetimes
from traceq.analysis.memory.phases import event_phases
from traceq.analysis.memory.stacks import SOURCE, stack_sources
from traceq.model.schema import Column, Table
from traceq.model.snapshot_names import FLAGS

if TYPE_CHECKING:
    from traceq.model.snapshot import Snapshot

CATEGORIES = (
    "weights",
    "gradients",
    "optimizer state",
    "activations",
    "attention scores",
    "logits and loss",
    "temporaries",
    "communication buffers",
    "CUDA-graph pools",
    "unknown",
)
SURE = ("sure", "likely", "guess")
"""A stack or a lifetime shows it; its size fits nothing else; it may be another."""

ALLOCATIONS = Table(
    "Every allocation with what it is for.",
    {
        **LIFETIMES.columns,
        "category": Column(
            pl.Enum(CATEGORIES), "What it is for: " + ", ".join(CATEGORIES) + "."
        ),
        "sure": Column(pl.Enum(SURE), "How sure that is: " + ", ".join(SURE) + "."),
        **SOURCE,
    },
)

_DEFAULT_POOL = "0.0"
# The same elements in another number format.
_FORMATS = (1.0, 2.0, 0.5)
# The same, or a mask of them with a byte for each.
_FORMATS_AND_MASKS = (*_FORMATS, 0.25)
# What cuBLAS and cuBLASLt keep for themselves on a stream: Hopper, and other GPUs.
_WORKSPACES = (32 << 20, 4 * (2 << 20) + 8 * (16 << 10))
_FEW = 2
# So many allocations before the loss are looked at for the logits.
_BEFORE_LOSS = 8
# What comes between the logits' product and the loss, if anything does.
_LOGIT_OPS = (
    *("linear", "matmul", "mm", "addmm", "bmm", "einsum", "to", "_to_copy", "float"),
    *("contiguous", "clone", "reshape", "div", "mul", "tanh", "index", "slice"),
)
# Through these the gradient of attention's scores goes.
_SCORE_NODES = (
    r"^(Softmax|SafeSoftmax|Bmm|Baddbmm|MaskedFill|Where|Div|Mul|Add|NativeDropout"
    r"|FusedDropout|ToCopy)Backward"
)


def memory_allocations(snapshot: Snapshot) -> pl.DataFrame:
    """Return every allocation with its category; ``ALLOCATIONS`` has the columns."""
    sources = stack_sources(snapshot)
    lives = memory_lifetimes(snapshot, event_phases(snapshot, sources))
    rows = lives.join(sources, on="stack", how="left", maintain_order="left")
    rows = rows.with_columns(
        pl.col(FLAGS).fill_null(value=False),
        kept=(pl.col("free_stretch") > pl.col("stretch")).fill_null(value=True),
        recorded=pl.col("alloc").is_not_null(),
        phase_told=_phase(),
    )
    rows = _with_scores(_with_logits(_with_graph_pools(rows)))
    rows = _with_persistent(rows.with_columns(_gradient()))
    return ALLOCATIONS.shaped(rows.with_columns(_judged()).unnest("judged"))


def live_at_peak(snapshot: Snapshot, allocations: pl.DataFrame) -> pl.DataFrame:
    """Return what lived at each device's peak, of ``memory_allocations``."""
    peaks = memory_peaks(memory_curve(snapshot))
    live = [
        live_at(allocations.filter(pl.col("device") == device), event)
        for device, event in peaks.select("device", "event").iter_rows()
    ]
    return pl.concat([allocations.clear(), *live])


def _phase() -> pl.Expr:
    """Return what the stack says, or else the events around."""
    told = (
        pl.when("optimizer")
        .then(pl.lit("optimizer"))
        .when("backward")
        .then(pl.lit("backward"))
        .when("forward")
        .then(pl.lit("forward"))
    )
    return pl.coalesce(told, pl.col("phase").cast(pl.String))


def _is_of(size: pl.Expr, other: pl.Expr, ratios: tuple[float, ...]) -> pl.Expr:
    return (size / other).is_in(ratios).fill_null(value=False)


def _with_graph_pools(rows: pl.DataFrame) -> pl.DataFrame:
    """Mark what is in a pool that CUDA graphs allocate from; programs make pools, too.

    Of a pool without any stack there is no telling: most are of graphs.
    """
    own = pl.col("pool").cast(pl.String) != _DEFAULT_POOL
    pool = ["device", "pool"]
    seen = pl.col("stack").is_not_null().any().over(pool)
    captured = pl.col("capture").any().over(pool)
    return rows.with_columns(graph=own & (captured | ~seen), captured=captured)


def _with_logits(rows: pl.DataFrame) -> pl.DataFrame:
    """Mark what the loss is computed from: of the same elements, right before it."""
    group = ["device", "stretch"]
    loss = rows.filter("loss", "recorded", pl.col("phase_told") != "backward")
    loss = loss.group_by(group).agg(of_loss=pl.max("size"), loss_begins=pl.min("alloc"))
    rows = rows.join(loss, on=group, how="left", maintain_order="left")
    before = (pl.col("alloc") < pl.col("loss_begins")).fill_null(value=False)
    nth = before.cast(pl.Int64).reverse().cum_sum().reverse().over(group)
    return rows.with_columns(
        logits=before
        & (nth <= _BEFORE_LOSS)
        & pl.col("op").cast(pl.String).is_in(_LOGIT_OPS)
        & _is_of(pl.col("size"), pl.col("of_loss"), _FORMATS)
    ).drop("of_loss", "loss_begins")


def _with_scores(rows: pl.DataFrame) -> pl.DataFrame:
    """Mark the scores of attention: from a batched product over a softmax to the next.

    A softmax that is not computed from a batched product of its size is no attention.
    """
    forward = pl.col("recorded") & (pl.col("phase_told") != "backward")
    product = (forward & pl.col("batched_product")).fill_null(value=False)
    rows = rows.with_columns(turn=product.cast(pl.Int64).cum_sum().over("device"))
    group = ["device", "turn"]
    softmax = rows.filter(forward, "softmax").group_by(group)
    begins = rows.filter(product).select(*group, of_product="size")
    turns = (
        softmax.agg(of_softmax=pl.max("size"))
        .join(begins, on=group)
        .filter(_is_of(pl.col("of_product"), pl.col("of_softmax"), _FORMATS))
        .drop("of_product")
    )
    rows = rows.join(turns, on=group, how="left", maintain_order="left")
    sizes = turns["of_softmax"].unique()
    sizes = pl.concat([sizes.cast(pl.Float64) * ratio for ratio in _FORMATS])
    node = pl.col("node").cast(pl.String).str.contains(_SCORE_NODES)
    return rows.with_columns(
        scores=forward
        & _is_of(pl.col("size"), pl.col("of_softmax"), _FORMATS_AND_MASKS),
        score_gradient=(pl.col("phase_told") == "backward")
        & (pl.col("softmax") | node.fill_null(value=False))
        & pl.col("size").cast(pl.Float64).is_in(sizes.implode()),
    ).drop("of_softmax", "turn")


def _gradient() -> pl.Expr:
    """Mark what is allocated in a backward and outlives it."""
    backward = (pl.col("phase_told") == "backward") & ~pl.col("optimizer")
    return (
        (backward & pl.col("kept") & ~pl.col("loss") & ~pl.col("score_gradient"))
        .fill_null(value=False)
        .alias("gradient")
    )


def _with_persistent(rows: pl.DataFrame) -> pl.DataFrame:
    """Tell weights from the optimizer's state where the history has no stack of either.

    A weight and each of its states have the same size. What is left of a size when
    there are as many as there are weights are states; those in 32 bits of weights in
    16 are twice as large.
    """
    key = ["device", "size"]
    unseen = ~pl.col("recorded") & pl.col("stack").is_null()
    rows = rows.with_columns(
        unseen=unseen,
        persistent=unseen & pl.col("free").is_null(),
        trained=(pl.col("phase_told") == "backward").any().over("device"),
        any_seen=(pl.col("stack").is_not_null() | pl.col("recorded")).any(),
    ).with_columns(nth=pl.col("persistent").cast(pl.Int64).cum_sum().over(key))
    # What the history shows being kept for good may have been kept before it, too.
    kept = (
        rows.filter("recorded", "kept", pl.col("free").is_null(), ~pl.col("gradient"))
        .group_by(key)
        .agg(kept_too=pl.lit(value=True))
    )
    persistent = rows.filter("persistent").group_by(key).agg(alike=pl.len())
    weights = (
        _weights_by_size(rows)
        .join(persistent, on=key, how="left")
        .with_columns(
            # As many of a size as there are for each weight, itself among them.
            each=(pl.sum("alike") // pl.sum("weights")).over("device").fill_null(0)
        )
    )
    halves = weights.filter(pl.col("each") <= 1).select(
        "device", pl.col("size") * 2, of_half=pl.lit(value=True)
    )
    for part in (persistent, weights.drop("alike"), halves, kept):
        rows = rows.join(part, on=key, how="left", maintain_order="left")
    return rows


def _weights_by_size(rows: pl.DataFrame) -> pl.DataFrame:
    """Return how many weights of each size there are, as ``weights``.

    There is one gradient for each, of the same size. Where gradients are not seen,
    as they come from a CUDA graph, an operation of the optimizer makes one temporary
    for each.
    """
    key = ["device", "size"]
    gradients = rows.filter("gradient", "recorded")
    of_optimizer = rows.filter("optimizer", "recorded", ~pl.col("kept"))
    seen, instead = (
        found.group_by(*key, *inside).len().group_by(key).agg(weights=pl.max("len"))
        for found, inside in (
            (gradients, ["stretch"]),
            (of_optimizer, ["stretch", "stack"]),
        )
    )
    return pl.concat([seen, instead.join(seen, on=key, how="anti")])


def _judged() -> pl.Expr:
    """Return category and sureness; the first case that fits decides."""
    col, backward = pl.col, pl.col("phase_told") == "backward"
    forward = pl.col("phase_told") == "forward"
    in_passes = col("recorded") & (
        (col("stretch") > 0) | col("free_stretch").gt(col("stretch"))
    )
    chain = [
        (col("graph") & col("captured"), "CUDA-graph pools", "sure"),
        (col("graph"), "CUDA-graph pools", "guess"),
        (col("communication"), "communication buffers", "sure"),
        (col("optimizer") & ~col("kept"), "temporaries", "sure"),
        (col("optimizer"), "optimizer state", "sure"),
        (col("workspace"), "temporaries", "sure"),
        (col("loss"), "logits and loss", "sure"),
        (col("logits"), "logits and loss", "likely"),
        (col("scores") & col("softmax"), "attention scores", "sure"),
        (col("scores") | col("score_gradient"), "attention scores", "likely"),
        *_unseen(),
        (col("gradient"), "gradients", "sure"),
        (backward, "temporaries", "sure"),
        (~col("forward") & (col("parameters") | col("moved")), "weights", "sure"),
        (forward & ~col("kept"), "temporaries", "sure"),
        (forward & col("free").is_not_null(), "activations", "sure"),
        (forward, "activations", "likely"),
        # Outside of modules and passes, as a batch that is copied to the GPU.
        (in_passes & col("kept"), "activations", "guess"),
        (in_passes, "temporaries", "guess"),
    ]
    judged: pl.Expr = pl.struct(category=pl.lit("unknown"), sure=pl.lit("guess"))
    for case, category, sure in reversed(chain):
        mark = pl.struct(category=pl.lit(category), sure=pl.lit(sure))
        judged = pl.when(case.fill_null(value=False)).then(mark).otherwise(judged)
    return judged.alias("judged")


def _unseen() -> list[tuple[pl.Expr, str, str]]:
    """Return the cases of what was there before the history, without a stack."""
    persistent, unseen = pl.col("persistent"), pl.col("unseen")
    weights, alike = pl.col("weights").fill_null(0), pl.col("alike")
    weight = persistent & (pl.col("nth") <= weights)
    state = persistent & (pl.col("nth") <= weights * pl.col("each"))
    # Weights that got no gradient, as of an expert without tokens, make for others.
    others = alike - weights * pl.col("each")
    fits = others.is_between(0, _FEW)
    workspace = pl.col("size").is_in(_WORKSPACES) & (others.fill_null(alike) <= _FEW)
    left = pl.col("free_phase").cast(pl.String) == "optimizer"
    return [
        (weight & fits, "weights", "likely"),
        (weight, "weights", "guess"),
        (state & fits, "optimizer state", "likely"),
        (state, "optimizer state", "guess"),
        (persistent & pl.col("of_half"), "optimizer state", "likely"),
        (persistent & pl.col("kept_too"), "activations", "likely"),
        (persistent & workspace, "temporaries", "guess"),
        (persistent & ~pl.col("trained") & pl.col("any_seen"), "weights", "guess"),
        (unseen & ~persistent & left & (weights > 0), "gradients", "likely"),
        (unseen, "unknown", "guess"),
    ]

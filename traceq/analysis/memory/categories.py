"""Categories of the allocations of a memory snapshot, each with its confidence.

What the program says itself decides (``labels``). Otherwise three signals do: the stack
of the allocation, the phases of the step in which it was allocated and freed, and its
size, because a weight, its gradient and each optimizer state have the same size.
``_cases`` lists all cases, with an example of each.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from traceq.analysis.memory.labels import LABELLED
from traceq.analysis.memory.lifetimes import LIFETIMES
from traceq.analysis.memory.stacks import SOURCE
from traceq.common.expressions import known, text
from traceq.model.schema import Column, Table
from traceq.model.snapshot import DEFAULT_POOL
from traceq.model.snapshot_names import FLAGS

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
CONFIDENCE = ("certain", "likely", "guess")
"""A stack or a lifetime shows it; its size fits nothing else; it may be another."""

CATEGORISED = Table(
    "Every allocation with what it is for.",
    {
        **LIFETIMES.columns,
        "category": Column(
            pl.Enum(CATEGORIES), "What it is for: " + ", ".join(CATEGORIES) + "."
        ),
        "confidence": Column(
            pl.Enum(CONFIDENCE), "How certain that is: " + ", ".join(CONFIDENCE) + "."
        ),
        **SOURCE,
    },
)

ALLOCATIONS = Table(
    "Every allocation: from when to when, where, and what it is for.",
    {
        **CATEGORISED.columns,
        "module": Column(
            pl.String(),
            "Module that made it, without the numbers of layers; the trace knows it.",
        ),
    },
)

# Size ratios of the same elements in another dtype.
_DTYPES = (1.0, 2.0, 0.5)
# The same, or a mask of them with a byte for each.
_DTYPES_AND_MASKS = (*_DTYPES, 0.25)
# Workspaces of cuBLAS and cuBLASLt per stream: Hopper, and other GPUs.
_WORKSPACES = (32 << 20, 4 * (2 << 20) + 8 * (16 << 10))
# Weights that got no gradient, as of an expert without tokens, and others by chance.
_FEW = 2
# Number of allocations before the loss that may be the logits.
_BEFORE_LOSS = 8
# Ops between the logits' matmul and the loss, if there are any.
_LOGIT_OPS = (
    *("linear", "matmul", "mm", "addmm", "bmm", "einsum", "to", "_to_copy", "float"),
    *("contiguous", "clone", "reshape", "div", "mul", "tanh", "index", "slice"),
)
# The gradient of attention's scores flows through these.
_SCORE_NODES = (
    r"^(Softmax|SafeSoftmax|Bmm|Baddbmm|MaskedFill|Where|Div|Mul|Add|NativeDropout"
    r"|FusedDropout|ToCopy)Backward"
)


class Case(NamedTuple):
    """The category of an allocation if a condition holds."""

    category: str
    confidence: str
    when: pl.Expr


def categorise(
    lifetimes: pl.DataFrame, sources: pl.DataFrame, labelled: pl.Series
) -> pl.DataFrame:
    """Return every allocation with its category; ``CATEGORISED`` has the columns.

    ``lifetimes`` are those of ``memory_lifetimes``, ``sources`` of ``stack_sources``,
    and ``labelled`` the categories of ``labels``.
    """
    rows = lifetimes.with_columns(labelled).join(
        sources, on="stack", how="left", maintain_order="left"
    )
    rows = rows.with_columns(
        known(pl.col(FLAGS)),
        in_history=pl.col("alloc").is_not_null(),
        outlives_phase=(pl.col("free_stretch") > pl.col("stretch")).fill_null(
            value=True
        ),
        during=_during(),
    )
    rows = _with_scores(_with_logits(_with_graph_pools(rows)))
    rows = _with_sizes(rows.with_columns(_gradient()))
    return CATEGORISED.shaped(
        rows.with_columns(_decided([*_labelled(), *_cases()])).unnest("decided")
    )


def _during() -> pl.Expr:
    """Return the phase: as the stack shows it, else as the events around it do."""
    by_stack = (
        pl.when("optimizer")
        .then(pl.lit("optimizer"))
        .when("backward")
        .then(pl.lit("backward"))
        .when("forward")
        .then(pl.lit("forward"))
    )
    return pl.coalesce(by_stack, text("phase"))


def _is_times(size: pl.Expr, other: pl.Expr, ratios: tuple[float, ...]) -> pl.Expr:
    return known((size / other).is_in(ratios))


def _with_graph_pools(rows: pl.DataFrame) -> pl.DataFrame:
    """Mark what is in a pool that CUDA graphs allocate from; programs make pools, too.

    Of a pool without any stack nothing shows it: most are of graphs.
    """
    pool = ["device", "pool"]
    has_stacks = pl.col("stack").is_not_null().any().over(pool)
    captured = pl.col("capture").any().over(pool)
    private = text("pool") != DEFAULT_POOL
    return rows.with_columns(
        in_graph_pool=private & (captured | ~has_stacks), pool_captured=captured
    )


def _with_logits(rows: pl.DataFrame) -> pl.DataFrame:
    """Mark what the loss is computed from: the same elements, right before it."""
    group = ["device", "stretch"]
    loss = rows.filter("loss", "in_history", pl.col("during") != "backward")
    loss = loss.group_by(group).agg(
        loss_size=pl.max("size"), loss_begins=pl.min("alloc")
    )
    rows = rows.join(loss, on=group, how="left", maintain_order="left")
    before = known(pl.col("alloc") < pl.col("loss_begins"))
    nth_before = before.cast(pl.Int64).reverse().cum_sum().reverse().over(group)
    return rows.with_columns(
        logits=before
        & (nth_before <= _BEFORE_LOSS)
        & text("op").is_in(_LOGIT_OPS)
        & _is_times(pl.col("size"), pl.col("loss_size"), _DTYPES)
    ).drop("loss_size", "loss_begins")


def _with_scores(rows: pl.DataFrame) -> pl.DataFrame:
    """Mark attention scores: from a batched matmul over a softmax to the next matmul.

    A softmax that is not computed from a batched matmul of its size is not attention.
    """
    forward = pl.col("in_history") & (pl.col("during") != "backward")
    matmul = known(forward & pl.col("batched_matmul"))
    rows = rows.with_columns(matmul=matmul.cast(pl.Int64).cum_sum().over("device"))
    group = ["device", "matmul"]
    softmax = rows.filter(forward, "softmax").group_by(group)
    matmuls = rows.filter(matmul).select(*group, matmul_size="size")
    attention = (
        softmax.agg(softmax_size=pl.max("size"))
        .join(matmuls, on=group)
        .filter(_is_times(pl.col("matmul_size"), pl.col("softmax_size"), _DTYPES))
        .drop("matmul_size")
    )
    rows = rows.join(attention, on=group, how="left", maintain_order="left")
    sizes = attention["softmax_size"].unique()
    sizes = pl.concat([sizes.cast(pl.Float64) * ratio for ratio in _DTYPES])
    node = known(text("node").str.contains(_SCORE_NODES))
    return rows.with_columns(
        scores=forward
        & _is_times(pl.col("size"), pl.col("softmax_size"), _DTYPES_AND_MASKS),
        score_gradient=(pl.col("during") == "backward")
        & (pl.col("softmax") | node)
        & pl.col("size").cast(pl.Float64).is_in(sizes.implode()),
    ).drop("softmax_size", "matmul")


def _gradient() -> pl.Expr:
    """Mark allocations that are made in a backward and outlive it."""
    backward = (pl.col("during") == "backward") & ~pl.col("optimizer")
    other = pl.col("loss") | pl.col("score_gradient")
    return known(backward & pl.col("outlives_phase") & ~other).alias("gradient")


def _with_sizes(rows: pl.DataFrame) -> pl.DataFrame:
    """Count sizes, which distinguish weights from states that have no stack.

    A weight and each of its states have the same size. What is left of a size when
    there are as many as there are weights are states; 32-bit ones of 16-bit weights
    are twice as large.
    """
    key = ["device", "size"]
    from_before = ~pl.col("in_history") & pl.col("stack").is_null()
    rows = rows.with_columns(
        from_before=from_before,
        permanent=from_before & pl.col("free").is_null(),
        has_backward=(pl.col("during") == "backward").any().over("device"),
        has_history=(pl.col("stack").is_not_null() | pl.col("in_history")).any(),
    ).with_columns(nth_of_size=pl.col("permanent").cast(pl.Int64).cum_sum().over(key))
    # Sizes that the history keeps for good may have been kept before it, too.
    retained = (
        rows.filter(
            "in_history",
            "outlives_phase",
            pl.col("free").is_null(),
            ~pl.col("gradient"),
        )
        .group_by(key)
        .agg(kept_in_history=pl.lit(value=True))
    )
    permanent = rows.filter("permanent").group_by(key).agg(of_this_size=pl.len())
    weights = (
        _weights_by_size(rows)
        .join(permanent, on=key, how="left")
        .with_columns(per_weight=_per_weight())
    )
    twice = weights.filter(pl.col("per_weight") <= 1).select(
        "device", pl.col("size") * 2, twice_a_weight=pl.lit(value=True)
    )
    for part in (permanent, weights.drop("of_this_size"), twice, retained):
        rows = rows.join(part, on=key, how="left", maintain_order="left")
    return rows


def _per_weight() -> pl.Expr:
    """Return the number of lasting blocks per weight of the same size, itself included.

    It is the number that holds for most bytes of weights: sizes of gradients that
    belong to no weight, and of blocks that are there for another reason, differ.
    """
    blocks = pl.col("of_this_size").fill_null(0) // pl.col("weights")
    held = pl.col("size") * pl.col("weights") * (blocks > 0)
    most = held.sum().over("device", blocks)
    return blocks.sort_by(most, blocks, descending=True).first().over("device")


def _weights_by_size(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the number of weights of each size, as ``weights``.

    There is one gradient for each, of the same size. Where gradients are not seen,
    as they come from a CUDA graph, an operation of the optimizer makes one temporary
    for each.
    """
    key = ["device", "size"]
    gradients = rows.filter("gradient", "in_history")
    of_optimizer = rows.filter("optimizer", "in_history", ~pl.col("outlives_phase"))
    seen, instead = (
        table.group_by(*key, *inside).len().group_by(key).agg(weights=pl.max("len"))
        for table, inside in (
            (gradients, ["stretch"]),
            (of_optimizer, ["stretch", "stack"]),
        )
    )
    return pl.concat([seen, instead.join(seen, on=key, how="anti")])


def _decided(cases: list[Case]) -> pl.Expr:
    """Return category and confidence, from the first case that holds."""
    decided: pl.Expr = pl.struct(category=pl.lit("unknown"), confidence=pl.lit("guess"))
    for case in reversed(cases):
        outcome = pl.struct(
            category=pl.lit(case.category), confidence=pl.lit(case.confidence)
        )
        decided = pl.when(known(case.when)).then(outcome).otherwise(decided)
    return decided.alias("decided")


def _labelled() -> list[Case]:
    """Return the cases of what the program has labelled, which come first."""
    return [Case(name, "certain", pl.col("label") == name) for name in LABELLED]


def _cases() -> list[Case]:
    """Return all cases in order; what fits none of them is unknown.

    An example of each:

    1.  In pool 0.1; a stack of that pool has torch/cuda/graphs.py on it.
    2.  In pool 0.1, which has no stack at all.
    3.  ``c10d::Reducer`` allocates a bucket.
    4.  ``AdamW.step`` allocates a square root and frees it before the next forward.
    5.  ``AdamW.step`` allocates ``exp_avg`` and keeps it.
    6.  ``getCUDABlasLtWorkspace`` is on the stack.
    7.  ``log_softmax`` allocates 500 MiB inside of ``cross_entropy``.
    8.  ``linear`` allocates 500 MiB right before that; or 250 MiB, in 16-bit.
    9.  ``bmm`` allocates 192 MiB, then ``softmax`` 192 MiB: the softmax.
    10. The ``bmm``; a dropout mask of 96 MiB; 192 MiB in ``SoftmaxBackward0``.

    11 to 19 are those of ``_cases_from_before``.

    20. ``MmBackward0`` allocates 8 MiB, which are freed after the backward.
    21. ``MmBackward0`` allocates 3 MiB, which are freed before the backward ends.
    22. ``Module.to`` allocates 8 MiB.
    23. ``linear`` allocates 3 MiB, which are freed before the forward ends.
    24. ``linear`` allocates 8 MiB, which are freed in the backward.
    25. ``linear`` allocates 5 MiB, which are not freed by the end.
    26. A batch is copied to the GPU outside of modules, and freed a phase later.
    27. The same, freed in the same phase.
    """
    col = pl.col
    forward, backward = (col("during") == name for name in ("forward", "backward"))
    outlives, freed = col("outlives_phase"), col("free").is_not_null()
    in_a_phase = col("in_history") & (
        (col("stretch") > 0) | (col("free_stretch") > col("stretch"))
    )
    makes_weights = ~col("forward") & (col("parameters") | col("moved"))
    captured = col("in_graph_pool") & col("pool_captured")
    return [
        Case("CUDA-graph pools", "certain", captured),
        Case("CUDA-graph pools", "guess", col("in_graph_pool")),
        Case("communication buffers", "certain", col("communication")),
        Case("temporaries", "certain", col("optimizer") & ~outlives),
        Case("optimizer state", "certain", col("optimizer")),
        Case("temporaries", "certain", col("workspace")),
        Case("logits and loss", "certain", col("loss")),
        Case("logits and loss", "likely", col("logits")),
        Case("attention scores", "certain", col("scores") & col("softmax")),
        Case("attention scores", "likely", col("scores") | col("score_gradient")),
        *_cases_from_before(),
        Case("gradients", "certain", col("gradient")),
        Case("temporaries", "certain", backward),
        Case("weights", "certain", makes_weights),
        Case("temporaries", "certain", forward & ~outlives),
        Case("activations", "certain", forward & freed),
        Case("activations", "likely", forward),
        Case("activations", "guess", in_a_phase & outlives),
        Case("temporaries", "guess", in_a_phase),
    ]


def _cases_from_before() -> list[Case]:
    """Return the cases of what was there before the history, without a stack.

    All that is known of it is its size and when it is freed. In the examples, the
    backward leaves 4 gradients of 8 MiB: there are 4 weights of this size.

    11. 12 blocks of 8 MiB that stay, 3 for each weight: the first 4.
    12. 11 blocks of 8 MiB that stay, 2 for each weight and 3 left over: the first 4.
    13. Blocks 5 to 12 of the 12.
    14. Blocks 5 to 8 of the 11.
    15. 8 blocks of 16 MiB that stay, and 4 of 8 MiB: 32-bit states, 16-bit weights.
    16. A block of 5 MiB that stays, and the forward allocates and keeps 5 MiB, too.
    17. A block of 32 MiB that stays: cuBLAS's workspace.
    18. A block that stays, and no backward: a model that is only evaluated.
    19. A block of 8 MiB that is freed in the optimizer's phase, as by ``zero_grad``.
    """
    permanent, from_before = pl.col("permanent"), pl.col("from_before")
    weights, of_this_size = pl.col("weights").fill_null(0), pl.col("of_this_size")
    of_weights = weights * pl.col("per_weight")
    weight = permanent & (pl.col("nth_of_size") <= weights)
    state = permanent & (pl.col("nth_of_size") <= of_weights)
    left_over = of_this_size - of_weights
    adds_up = left_over.is_between(0, _FEW)
    few = left_over.fill_null(of_this_size) <= _FEW
    workspace = pl.col("size").is_in(_WORKSPACES) & few
    evaluated = ~pl.col("has_backward") & pl.col("has_history")
    by_optimizer = text("free_phase") == "optimizer"
    return [
        Case("weights", "likely", weight & adds_up),
        Case("weights", "guess", weight),
        Case("optimizer state", "likely", state & adds_up),
        Case("optimizer state", "guess", state),
        Case("optimizer state", "likely", permanent & pl.col("twice_a_weight")),
        Case("activations", "likely", permanent & pl.col("kept_in_history")),
        Case("temporaries", "guess", permanent & workspace),
        Case("weights", "guess", permanent & evaluated),
        Case(
            "gradients",
            "likely",
            from_before & ~permanent & by_optimizer & (weights > 0),
        ),
    ]

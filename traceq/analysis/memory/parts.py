"""Parts of a model that memory is of: attention, FFN, norm, embedding.

The module that the trace names decides; else the ATen op or the autograd node of the
allocation; else the user's line, if an activation function of an FFN, or attention, is
computed on that line or the op is a matmul next to it.
"""

from __future__ import annotations

import polars as pl

from traceq.analysis.base.callers import PLACE
from traceq.common.expressions import known, text

ATTENTION, FFN, NORM, EMBEDDING, OTHER = (
    *("attention", "FFN", "norm", "embedding"),
    "other",
)
PARTS = (ATTENTION, FFN, NORM, EMBEDDING, OTHER)
"""The parts; what shows none of the first four is other."""

# The last word of a module's path that fits decides: an MLP has a norm in it.
_MODULES = {
    NORM: r"(?i)norm|(^|/)ln_?\w*$",
    EMBEDDING: r"(?i)embed|(^|/)wte|(^|/)wpe",
    ATTENTION: r"(?i)attn|attention|mha",
    FFN: r"(?i)mlp|ffn|feed_?forward|expert|moe|swiglu|geglu",
}
_OPS = {
    NORM: r"layer_norm|rms_norm|group_norm|batch_norm|instance_norm",
    EMBEDDING: r"^_?embedding",
    ATTENTION: r"attention",
    FFN: r"^(gelu|silu|swiglu|glu|mish|relu|leaky_relu|hardswish)_?(_backward)?$",
}
_NODES = {
    NORM: r"Norm\w*Backward",
    EMBEDDING: r"EmbeddingBackward",
    ATTENTION: r"Attention\w*Backward",
    FFN: r"^(Gelu|Silu|Glu|Mish|Relu|LeakyRelu|Hardswish)Backward",
}
_SCORES = "attention scores"


def with_parts(allocations: pl.DataFrame) -> pl.DataFrame:
    """Return allocations, as ``ALLOCATIONS``, with the ``part`` of the model."""
    by_name = pl.coalesce(
        _first("module", _MODULES),
        pl.when(text("category") == _SCORES).then(pl.lit(ATTENTION)),
        _first("op", _OPS),
        _first("node", _NODES),
    )
    rows = allocations.with_columns(part=by_name)
    # A line that computes an activation function has the matmuls around it, too.
    lines = (
        rows.filter(
            pl.col("part").is_in([FFN, ATTENTION]), pl.col("file").is_not_null()
        )
        .group_by(*PLACE)
        .agg(of_line=pl.col("part").unique())
        .filter(pl.col("of_line").list.len() == 1)
        .with_columns(pl.col("of_line").list.first())
    )
    rows = rows.join(
        lines, on=list(PLACE), how="left", nulls_equal=False, maintain_order="left"
    )
    return rows.with_columns(part=pl.coalesce("part", "of_line", pl.lit(OTHER))).drop(
        "of_line"
    )


def _first(column: str, patterns: dict[str, str]) -> pl.Expr:
    return pl.coalesce(
        pl.when(known(text(column).str.contains(pattern))).then(pl.lit(part))
        for part, pattern in patterns.items()
    )


def by_part(live: pl.DataFrame) -> pl.DataFrame:
    """Return live memory by ``category`` and ``part``, with the ``largest`` of each.

    ``op`` is that of the largest allocation. Categories of which no part is known have
    no rows.
    """
    size = pl.col("size")
    groups = (
        with_parts(live)
        .sort("size", descending=True, maintain_order=True)
        .group_by(text("category"), "part", maintain_order=True)
        .agg(
            size.sum(),
            pl.col(*PLACE).first(),
            count=pl.len(),
            largest=size.first(),
            op=pl.coalesce(text("op"), text("node")).first(),
        )
    )
    parted = (pl.col("part") != OTHER).any().over("category")
    whole = size.sum().over("category")
    return groups.filter(parted).sort(
        whole, "category", "size", "part", descending=[True, False, True, False]
    )

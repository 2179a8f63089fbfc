"""Categories that the program itself named: what it attached to its allocations.

torch keeps a text with an allocation (``user_metadata``), and since 2.14 more of them
as ``annotate`` events while it lives; ``traceq collect`` labels parameters, gradients,
optimizer state and buffers so. The last label that names a category counts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import orjson
import polars as pl

if TYPE_CHECKING:
    from traceq.model.snapshot import Snapshot

_WORDS = {
    "weights": r"parameters?|params?|weights?|buffers?",
    "gradients": r"gradients?|grads?",
    "optimizer state": r"optimi[sz]er(?:[ _-]states?)?",
    "activations": r"activations?",
}
LABELLED = tuple(_WORDS)
"""Categories that a label can name."""
_LABEL = {
    category: re.compile(rf"(?:traceq: )?(?:{words})(?![\w.])", re.IGNORECASE)
    for category, words in _WORDS.items()
}
# Fields of a label that is a dict, which say what the allocation is for.
_FIELDS = ("category", "kind", "type")
_KEY = ["device", "address"]


def category_of(label: str) -> str | None:
    """Return the category that a label begins with; nothing for any other text.

    >>> category_of("traceq: gradients of Linear.weight"), category_of("grad_proj.out")
    ('gradients', None)
    >>> category_of('{"kind": "optimizer state", "step": 3}')
    'optimizer state'
    """
    text = label.strip()
    if text.startswith("{"):
        try:
            fields = orjson.loads(text)
        except orjson.JSONDecodeError:
            return None
        named = (fields.get(name) for name in _FIELDS)
        text = next((name for name in named if isinstance(name, str)), "")
    return next((name for name, words in _LABEL.items() if words.match(text)), None)


def labels(snapshot: Snapshot, lifetimes: pl.DataFrame) -> pl.Series:
    """Return the category that a label of each allocation names, as ``label``."""
    annotated = _annotated_allocations(snapshot)
    if annotated.is_empty():
        return pl.repeat(None, lifetimes.height, dtype=pl.String, eager=True).alias(
            "label"
        )
    # What was there before the history began before its first event.
    lives = lifetimes.select(
        *_KEY,
        pl.int_range(pl.len()).alias("row"),
        pl.col("free").cast(pl.Int64),
        begin=pl.col("alloc").cast(pl.Int64).fill_null(-1),
    )
    joined = annotated.sort("id").join_asof(
        lives.sort("begin"),
        left_on="id",
        right_on="begin",
        by=_KEY,
        check_sortedness=False,
    )
    last = (
        joined.filter((pl.col("free") > pl.col("id")).fill_null(value=True))
        .drop_nulls("row")
        .unique("row", keep="last", maintain_order=True)
    )
    rows = lives.select("row").join(
        last.select("row", "label"), on="row", how="left", maintain_order="left"
    )
    return rows["label"]


def _annotated_allocations(snapshot: Snapshot) -> pl.DataFrame:
    """Return the events whose text names a category."""
    text = pl.col("user_metadata").cast(pl.String)
    events = snapshot.events.filter(
        pl.col("action").is_in(("alloc", "annotate")), text.is_not_null()
    ).select(*_KEY, pl.col("id").cast(pl.Int64), text=text)
    texts = events["text"].unique().to_list()
    categories = {item: category_of(item) for item in texts}
    label = pl.col("text").replace_strict(categories, return_dtype=pl.String)
    return events.with_columns(label=label).drop_nulls("label")

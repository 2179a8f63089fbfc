"""Obstacles to a CUDA graph: their kinds, and where each is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from traceq.linter import (
    dataclass,
    text,
)

if TYPE_CHECKING:
    import polars as pl

Reason = Literal[
    "shapes",
    "launches",
    "values",
    "branches",
    "cache",
    "replaced",
    "sparse",
    "passes",
    "between",
    "syncs",
    "copies",
    "backwards",
    "rnn",
    "loop",
]
HARD: tuple[Reason, ...] = (
    *("shapes", "launches", "values", "branches", "cache", "replaced", "sparse"),
    *("passes", "between"),
)
"""With these a step is another one every time, its passes overwrite each other, or the
host decides in the middle of one: no graph of it can be replayed."""
UNCOMPILED: tuple[Reason, ...] = ("backwards", "rnn", "loop")
"""With these torch.compile replays no graph, but make_graphed_callables does."""
PLACE = ("name", "file", "line", "function")


@dataclass(frozen=True)
class Obstacle:
    """One reason why a step cannot be replayed as one CUDA graph."""

    reason: Reason
    """New shapes in every step, another number of launches, data-dependent sizes, many
    branches on values of the GPU's (an adaptive solver), a KV cache that grows, weights
    that lie elsewhere in every step, sparse gradients, several backward passes that are
    not alike (a GAN), syncs between modules of one pass, other syncs in the model,
    copies from the host in the model, several backward passes of one kind (gradient
    accumulation), a layer that torch.compile does not capture, or a loop of the model
    that it unrolls."""
    count: float
    """Number per step; of launches, by how many steps differ; of a loop, how
    many iterations it has."""
    name: str = ""
    """The op that most of them are of."""
    file: str | None = None
    line: int | None = None
    function: str | None = None


def largest_place(
    reason: Reason, rows: pl.DataFrame, name: pl.Expr, steps: int
) -> Obstacle | None:
    """Return an obstacle of these rows, with what most of them are."""
    if not rows.height:
        return None
    groups = (
        rows.group_by(text("file"), "line", text("function"), name=name)
        .len()
        .sort("len", "name", "file", "line", descending=[True, False, False, False])
    )
    file, line, function, op, _ = groups.row(0)
    return Obstacle(reason, rows.height / steps, op or "", file, line, function)

"""MEM006: attention keeps scores that grow with the square of the sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.memory.peak_without import peak_savings
from traceq.lint import Bad, Good, Need, Rule
from traceq.words import counted, share, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding, SnapshotView

_PLACE = ("file", "line", "function")
_DRAWN = """
    product = at::_ops::bmm::call, model.py:20 attention, train.py:9 step
    then = at::_ops::{then}::call, model.py:21 attention, train.py:9 step
    gradient = torch::autograd::Engine::evaluate_function
    region       [ProfilerStep#1                    ]
    region        [forward            ][backward   ]
    weights     <100M
    product        [64M   ]
    then               [64M                     ]
    gradient                            [1M  ]
"""


@dataclass(frozen=True)
class KeptAttentionScores(Rule):
    """Attention keeps its scores, which grow with the square of the sequence.

    ## What it does

    Looks among what is allocated at the peak for the scores of attention that is
    written out: what comes from the product of queries and keys, from masking, softmax
    and dropout, for every pair of positions.

    ## Why is this bad?

    Batch × heads × length² of them are kept for the backward pass, in each layer.
    ``F.scaled_dot_product_attention`` keeps one number for each query, and computes the
    rest again.

    ## How to fix it

    ``F.scaled_dot_product_attention`` with ``is_causal=True``, or FlexAttention for
    other masks and biases; for weights that must be seen, compute them in evaluation
    only.

    ## When it is wrong

    A softmax over a product of matrices that is no attention looks the same. The saving
    assumes that all scores go and nothing else changes.
    """

    code = "MEM006"
    since = "0.1.0"
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY, Need.OPERATORS})
    advice = (
        "use F.scaled_dot_product_attention (is_causal=True for a causal mask), or"
        " FlexAttention for other masks and biases: they keep one number a query"
    )

    examples = (
        Bad(
            "",
            history=_DRAWN.format(then="softmax_int"),
            finds=("attention scores hold 128 MiB at the peak of 228 MiB",),
        ),
        Good("", history=_DRAWN.format(then="gelu")),
    )

    def check_snapshot(self, view: SnapshotView) -> Iterator[Finding]:
        """Take all scores at a device's peak together, and name the largest's line."""
        peak = view.at_peak.select("device", "alloc")
        scores = view.scores.join(peak, on=["device", "alloc"], how="semi")
        for (device,), mine in scores.group_by("device", maintain_order=True):
            yield self._finding(view, int(str(device)), mine)

    def _finding(self, view: SnapshotView, device: int, mine: pl.DataFrame) -> Finding:
        curve = view.curve.filter(pl.col("device") == device)
        kind = view.scores.filter(pl.col("device") == device)
        held, peak = int(mine["size"].sum()), view.peak(device)
        lines = (
            mine.group_by(_PLACE)
            .agg(
                pl.col("chain").first(),
                pl.col("op").cast(pl.String).drop_nulls().unique().sort(),
                held=pl.sum("size"),
                count=pl.len(),
                each=pl.max("size"),
            )
            .sort(pl.col("file").is_null(), -pl.col("held"), "file", "line")
        )
        first = lines.row(0, named=True)
        return self.finding(
            f"attention scores hold {size(held)} at the peak of {size(peak)}",
            subject="attention scores",
            place=view.place(first, first["each"]),
            count=mine.height,
            cost_bytes=peak_savings(curve, kind),
            evidence=[
                (
                    "scores",
                    f"{counted(mine.height, 'allocation')}, the largest"
                    f" {size(first['each'])}; {share(held, peak)} of the peak",
                ),
                *view.lines(first, first["each"]),
            ],
            data={"device": device, "held_bytes": held, "peak_bytes": peak},
        )

"""MEM006: attention materialises scores that grow with the sequence length squared."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    counted,
    dataclass,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, SnapshotView

_FUNCTION = "multi_head_attention_forward"
_NO_WEIGHTS = (
    "pass need_weights=False to nn.MultiheadAttention, which then calls fused attention"
    " and keeps one number per query, where its kernels take the head dim: in float32 a"
    " multiple of 4, in 16 bits of 8"
)
_DRAWN = """
    matmul = at::_ops::bmm::call, model.py:20 attention, train.py:9 step
    then = at::_ops::{then}::call, model.py:21 attention, train.py:9 step
    gradient = torch::autograd::Engine::evaluate_function
    region       [ProfilerStep#1                    ]
    region        [forward            ][backward   ]
    weights     <100M
    matmul         [64M   ]
    then               [64M                     ]
    gradient                            [1M  ]
"""


@dataclass(frozen=True)
class KeptAttentionScores(Rule):
    """Attention materialises its scores, which grow with the sequence length squared.

    ## What it does

    Looks among the allocations at the peak for the scores of handwritten attention: the
    matmul of queries and keys, and what masking, softmax and dropout make of it, for
    every pair of positions.

    ## Why is this bad?

    Batch × heads × length² scores are kept for the backward pass, in each layer.
    ``F.scaled_dot_product_attention`` keeps one number per query and recomputes the
    rest.

    ## How to fix it

    ``F.scaled_dot_product_attention`` with the mask that the program adds, with
    ``is_causal=True`` where that is the lower triangle and nothing else, or
    FlexAttention for biases. If the attention weights are needed, compute them in
    evaluation only. ``nn.MultiheadAttention`` computes them unless it is told not to.

    ```diff
    - weights = (q @ k.transpose(-2, -1) * scale + mask).softmax(-1)
    - out = weights @ v
    + out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    ```

    ```diff
    - out, _ = self.attention(x, x, x)  # an nn.MultiheadAttention
    + out, _ = self.attention(x, x, x, need_weights=False)
    ```

    ## When it is wrong

    A softmax over a batched matmul that is not attention looks the same. The saving
    assumes that all scores go and nothing else changes. Where the trace says how much
    memory the GPU has, and most of it is not reserved, nobody lacks what scores hold,
    and the finding is minor; so it is where ATT003 has the same edit.
    """

    code = "MEM006"
    since = "0.1.0"
    see = ("torch.nn.functional.scaled_dot_product_attention",)
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY, Need.OPERATORS})
    advice = (
        "use F.scaled_dot_product_attention with the same mask (is_causal=True for the"
        " lower triangle alone), or FlexAttention: they keep one number per query,"
        " where their kernels take the head dim: in float32 a multiple of 4, in 16 bits"
        " of 8"
    )

    seen = Seen(
        of="fixtures/attn_manual",
        text="""
        MEM006 kept-attention-scores  768 MiB (17%)
          attention scores hold 768 MiB of the 3.98 GiB peak
          at       dev_cases.py:54 manual
          scores   4 allocations 19% of the peak
          largest  192 MiB
          from     dev_cases.py:26 forward, dev_cases.py:40 forward, dev_cases.py:70
                   step and 2 more
          op       aten::softmax
          fix      use F.scaled_dot_product_attention with the same mask
                   (is_causal=True for the lower triangle alone), or FlexAttention:
                   they keep one number per query, where their kernels take the head
                   dim: in float32 a multiple of 4, in 16 bits of 8
        """,
    )

    examples = (
        Bad(
            "",
            history=_DRAWN.format(then="softmax_int"),
            finds=("attention scores hold 128 MiB of the 228 MiB peak",),
        ),
        Good("", history=_DRAWN.format(then="gelu")),
    )

    def check_snapshot(self, view: SnapshotView) -> Iterator[Finding]:
        """Take all scores at a device's peak together, and name the largest's line."""
        peak = view.at_peak.select("device", "alloc")
        scores = view.scores.join(peak, on=["device", "alloc"], how="semi")
        for (device,), rows in scores.group_by("device", maintain_order=True):
            yield self._finding(view, int(str(device)), rows)

    def _finding(self, view: SnapshotView, device: int, table: pl.DataFrame) -> Finding:
        from ._minor import room, severity_of
        from ._peak_without import peak_savings

        here = pl.col("device") == device
        saved = peak_savings(view.curve.filter(here), view.scores.filter(here))
        held, peak = int(table["size"].sum()), view.peak_bytes(device)
        first, by_torch = view.by_line(table)[0], _by_torch(view, table)
        allocations = counted(table.height, "allocation")
        enough = room(view, device)
        finding = self.finding(
            f"attention scores hold {size(held)} of the {size(peak)} peak",
            subject="attention scores",
            place=view.place(first, first["largest"]),
            count=table.height,
            cost_bytes=saved,
            severity=Severity.info if enough else severity_of(saved, peak),
            evidence=[
                Evidence(
                    "scores", allocations, held / peak, "share", note="of the peak"
                ),
                Evidence("largest", value=first["largest"], unit="bytes"),
                *view.lines(first, first["largest"]),
            ],
            data={"device": device, "held_bytes": held, "peak_bytes": peak},
            advice=_NO_WEIGHTS if by_torch else None,
            example=self.example(int(by_torch)),
        )
        return replace(finding, minor=enough)


def _by_torch(view: SnapshotView, scores: pl.DataFrame) -> bool:
    """Return whether most of the scores are of ``nn.MultiheadAttention``."""
    frames = view.snapshot.frames
    calls = frames["id"].filter(frames["function"].cast(pl.String) == _FUNCTION)
    stacks = view.snapshot.stacks.filter(
        pl.col("frames").list.eval(pl.element().is_in(calls.implode())).list.any()
    )
    theirs = scores.filter(pl.col("stack").is_in(stacks["id"].implode()))
    return 2 * int(theirs["size"].sum()) > int(scores["size"].sum())

"""MEM008: the optimizer's fp32 state is the largest part of the memory."""

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
    counted,
    dataclass,
    option,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, SnapshotView

_STATE = "optimizer state"
_ADVICE = (
    "keep the state in 8-bit (torchao.optim.AdamW8bit, bitsandbytes), which saves three"
    " quarters of it,{} or use an optimizer with less state (Adafactor, Muon)"
)
_SHARDED = " shard it over GPUs (FSDP, ZeroRedundancyOptimizer),"
# Of 32 bits, 8 stay.
_SAVED = 0.75
_DRAWN = """
    linear = {op}, at::_ops::linear::call, model.py:12 forward, train.py:9 step
    gradient = torch::autograd::Engine::evaluate_function
    region       [ProfilerStep#1                          ]
    region        [forward      ][backward   ][optimizer ]
    weights     <64M
    momentum    <64M
    variance    <64M
    linear         [32M                    ]
    gradient                        [64M             ]
"""


@dataclass(frozen=True)
class Float32OptimizerState(Rule):
    """The optimizer's fp32 state is the largest part of the memory.

    ## What it does

    Adds up the optimizer's state, and reports it if it is at least ``min-share`` of the
    peak, more than any other category, and known to be fp32: it is twice as large as
    the weights, or as large as weights that are cast to 16-bit.

    ## Why is this bad?

    Adam keeps two numbers for each weight, 8 bytes in fp32: four times what a weight in
    bf16 takes. It stays in memory through the forward and the backward pass.

    ## How to fix it

    An optimizer with 8-bit state (``torchao.optim.AdamW8bit``,
    ``bitsandbytes.optim.AdamW8bit``), one with less state (Adafactor, Muon), or state
    that is sharded over GPUs (FSDP, ``ZeroRedundancyOptimizer``) or kept on the host.

    ```diff
    - optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    + optimizer = torchao.optim.AdamW8bit(model.parameters(), lr=3e-4)
    ```

    ## When it is wrong

    Where memory is not short, fp32 is the safe choice. State that was there before the
    history began is distinguished from weights by number and size.
    """

    code = "MEM008"
    since = "0.1.0"
    see = ("torch.optim.Adafactor", "torch.optim.AdamW")
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY, Need.OPERATORS})
    advice = _ADVICE.format("")

    min_share: float = option(1 / 3, "A smaller share of the peak is not reported.")

    seen = Seen(
        text="""
        MEM008 float32-optimizer-state  96.0 MiB (33%)
          fp32 optimizer state holds 128 MiB of the 288 MiB peak
          state    2 tensors 44% of the peak
          weights  64.0 MiB
          dtype    fp32: weights of the same sizes are cast to 16-bit
          fix      keep the state in 8-bit (torchao.optim.AdamW8bit, bitsandbytes),
                   which saves three quarters of it, or use an optimizer with less
                   state (Adafactor, Muon)
        """,
    )

    examples = (
        Bad(
            "",
            history=_DRAWN.format(op="at::autocast::cached_cast"),
            finds=("fp32 optimizer state holds 128 MiB of the 288 MiB peak",),
        ),
        Good("", history=_DRAWN.format(op="at::_ops::addmm::call")),
    )

    def check_snapshot(self, view: SnapshotView) -> Iterator[Finding]:
        """Look at the categories of each device's peak."""
        from ._minor import has_ranks

        groups = view.at_peak.group_by("device", maintain_order=True)
        for (device,), live in groups:
            parts = live.group_by("category").agg(pl.sum("size"))
            state = live.filter(pl.col("category") == _STATE)
            held, peak = int(state["size"].sum()), int(live["size"].sum())
            largest = int(str(parts["size"].max()))
            if held == largest and held >= self.min_share * peak:
                why = _why_float32(view, live, state)
                if why:
                    finding = self._finding(int(str(device)), live, state, why)
                    if has_ranks(view):
                        finding = replace(finding, advice=_ADVICE.format(_SHARDED))
                    yield finding

    def _finding(
        self, device: int, live: pl.DataFrame, state: pl.DataFrame, why: str
    ) -> Finding:
        held, peak = int(state["size"].sum()), int(live["size"].sum())
        weights = int(live.filter(pl.col("category") == "weights")["size"].sum())
        tensors = counted(state.height, "tensor")
        return self.finding(
            f"fp32 optimizer state holds {size(held)} of the {size(peak)} peak",
            subject=_STATE,
            count=state.height,
            cost_bytes=_SAVED * held,
            evidence=[
                Evidence("state", tensors, held / peak, "share", note="of the peak"),
                Evidence("weights", value=weights, unit="bytes"),
                Evidence("dtype", f"fp32: {why}"),
            ],
            data={"device": device, "state_bytes": held, "weights_bytes": weights},
        )


def _why_float32(view: SnapshotView, live: pl.DataFrame, state: pl.DataFrame) -> str:
    """Return what shows that most of the state is fp32; empty if nothing does."""
    from traceq.analysis.memory.weight_copies import weight_copies

    weights = live.filter(pl.col("category") == "weights")
    sizes = state["size"]
    twice = sizes.is_in((2 * weights["size"]).implode())
    twice &= ~sizes.is_in(weights["size"].implode())
    if 2 * sizes.filter(twice).sum() > sizes.sum():
        return "its tensors are twice as large as the weights"
    copies = weight_copies(weights, view.casts)
    cast = sizes.is_in(copies["copies_of"].implode())
    if 2 * sizes.filter(cast).sum() > sizes.sum():
        return "weights of the same sizes are cast to 16-bit"
    return ""

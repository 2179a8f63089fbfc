"""MEM008: the optimizer's state in 32 bits is the largest part of the memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.memory.weight_copies import weight_copies
from traceq.lint import Bad, Good, Need, Rule, option
from traceq.words import counted, share, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding, SnapshotView

_STATE = "optimizer state"
# 8 bits for each number instead of 32.
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
    """The optimizer's state, in 32 bits, is the largest part of the memory.

    ## What it does

    Adds up what the optimizer keeps, and reports it if it is at least ``min-share`` of
    the peak, more than anything else, and known to be in 32 bits: it is twice as large
    as the weights, or as large as weights that are cast to 16 bits.

    ## Why is this bad?

    Adam keeps two numbers for each weight, 8 bytes in 32 bits: four times what a weight
    in bfloat16 takes. It lies there in the forward and backward pass, too.

    ## How to fix it

    An optimizer with state in 8 bits (``torchao.optim.AdamW8bit``,
    ``bitsandbytes.optim.AdamW8bit``), one with less state (Adafactor, Muon), or state
    that is sharded over GPUs (FSDP, ``ZeroRedundancyOptimizer``) or kept on the host.

    ## When it is wrong

    Where memory is not short, 32 bits are the safe choice. State is told from weights
    by number and size where it was there before the history began.
    """

    code = "MEM008"
    since = "0.1.0"
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY, Need.OPERATORS})
    advice = (
        "keep the state in 8 bits (torchao.optim.AdamW8bit, bitsandbytes), which saves"
        " three quarters of it, shard it over GPUs (FSDP, ZeroRedundancyOptimizer), or"
        " take an optimizer with less state (Adafactor, Muon)"
    )

    min_share: float = option(1 / 3, "A smaller part of the peak is not reported.")

    examples = (
        Bad(
            "",
            history=_DRAWN.format(op="at::autocast::cached_cast"),
            finds=("the optimizer's state in 32 bits holds 128 MiB of 288 MiB",),
        ),
        Good("", history=_DRAWN.format(op="at::_ops::addmm::call")),
    )

    def check_snapshot(self, view: SnapshotView) -> Iterator[Finding]:
        """Look at the parts of each device's peak."""
        groups = view.at_peak.group_by("device", maintain_order=True)
        for (device,), live in groups:
            parts = live.group_by("category").agg(pl.sum("size"))
            state = live.filter(pl.col("category") == _STATE)
            held, peak = int(state["size"].sum()), int(live["size"].sum())
            most = int(str(parts["size"].max()))
            if held == most and held >= self.min_share * peak:
                why = _why_32_bits(view, live, state)
                if why:
                    yield self._finding(int(str(device)), live, state, why)

    def _finding(
        self, device: int, live: pl.DataFrame, state: pl.DataFrame, why: str
    ) -> Finding:
        held, peak = int(state["size"].sum()), int(live["size"].sum())
        weights = int(live.filter(pl.col("category") == "weights")["size"].sum())
        return self.finding(
            f"the optimizer's state in 32 bits holds {size(held)} of {size(peak)}",
            subject=_STATE,
            count=state.height,
            cost_bytes=_SAVED * held,
            evidence=[
                (
                    "state",
                    f"{counted(state.height, 'tensor')},"
                    f" {share(held, peak)} of the peak",
                ),
                ("weights", size(weights)),
                ("32 bits", why),
            ],
            data={"device": device, "state_bytes": held, "weights_bytes": weights},
        )


def _why_32_bits(view: SnapshotView, live: pl.DataFrame, state: pl.DataFrame) -> str:
    """Say what shows that most of the state is in 32 bits; empty if nothing does."""
    weights = live.filter(pl.col("category") == "weights")
    sizes = state["size"]
    twice = sizes.is_in((2 * weights["size"]).implode())
    twice &= ~sizes.is_in(weights["size"].implode())
    if 2 * sizes.filter(twice).sum() > sizes.sum():
        return "its tensors are twice as large as the weights"
    copies = weight_copies(weights, view.casts)
    known = sizes.is_in(copies["copies_of"].implode())
    if 2 * sizes.filter(known).sum() > sizes.sum():
        return "weights of the same sizes are cast to 16 bits"
    return ""

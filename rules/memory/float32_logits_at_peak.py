"""MEM007: logits in 32 bits are a part of the peak."""

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

_LOGITS = "logits and loss"
_DRAWN = """
    head = at::_ops::linear::call, model.py:41 forward, train.py:9 step
    loss = {op}, at::_ops::cross_entropy_loss::call, train.py:10 step
    back = at::_ops::nll_loss_backward::call, torch::autograd::Engine::evaluate_function
    region       [ProfilerStep#1                    ]
    region        [forward            ][backward   ]
    weights     <100M
    head           [64M                             ]
    loss               [128M                     ]
    back                                [128M]
"""


@dataclass(frozen=True)
class Float32LogitsAtPeak(Rule):
    """Logits in 32 bits are a part of the peak.

    ## What it does

    Looks among what is allocated at the peak for logits and for what the loss makes of
    them, of which some are twice as large as others and come from a cast: the same
    numbers in 16 bits and in 32. The saving is what the peak falls by if none of them
    has to be there whole.

    ## Why is this bad?

    tokens × vocabulary is often the largest tensor of all. It is there as logits, as
    log-probabilities, and as the gradient of each; in 32 bits, each is twice as large.

    ## How to fix it

    A loss that never has all logits at once: ``F.linear_cross_entropy`` (torch 2.13),
    Liger's fused linear cross entropy, or a loop over chunks of tokens with
    ``torch.utils.checkpoint``. Without ``.float()`` on the logits, half of it goes.

    ## When it is wrong

    The number format is concluded from sizes: logits that are all in 32 bits, as in a
    model without any 16 bits, look like logits that are all in 16, and are not
    reported.
    """

    code = "MEM007"
    since = "0.1.0"
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY, Need.OPERATORS})
    advice = (
        "use a loss that never has all logits at once: F.linear_cross_entropy (torch"
        " 2.13), Liger's fused linear cross entropy, or chunks of tokens under"
        " torch.utils.checkpoint; without a cast to float32 half of this goes"
    )

    examples = (
        Bad(
            "",
            history=_DRAWN.format(op="at::_ops::_to_copy::call"),
            finds=(
                "logits in 32 bits hold 256 MiB at the peak of 420 MiB, and 64.0 MiB in"
                " 16 bits",
            ),
        ),
        Good("", history=_DRAWN.format(op="at::_ops::log_softmax_int::call")),
    )

    def check_snapshot(self, view: SnapshotView) -> Iterator[Finding]:
        """Tell 32 from 16 bits by the sizes at each device's peak."""
        logits = view.at_peak.filter(pl.col("category") == _LOGITS)
        for (device,), mine in logits.group_by("device", maintain_order=True):
            half = mine.filter((2 * pl.col("size")).is_in(mine["size"].implode()))
            whole = mine.filter(pl.col("size").is_in((2 * half["size"]).implode()))
            # Logits of twice the tokens, in the same format, are as large.
            if whole.join(view.casts, on=["device", "alloc"], how="semi").height:
                yield self._finding(view, int(str(device)), mine, whole)

    def _finding(
        self,
        view: SnapshotView,
        device: int,
        mine: pl.DataFrame,
        whole: pl.DataFrame,
    ) -> Finding:
        of_device = pl.col("device") == device
        kind = view.allocations.filter(of_device, pl.col("category") == _LOGITS)
        saved = peak_savings(view.curve.filter(of_device), kind)
        wide, peak = int(whole["size"].sum()), view.peak(device)
        rest = int(mine["size"].sum()) - wide
        first = whole.sort(pl.col("file").is_null(), -pl.col("size"), "alloc").row(
            0, named=True
        )
        return self.finding(
            f"logits in 32 bits hold {size(wide)} at the peak of {size(peak)}, and"
            f" {size(rest)} in 16 bits",
            subject="logits",
            place=view.place(first, first["size"]),
            count=whole.height,
            cost_bytes=saved,
            evidence=[
                (
                    "logits",
                    f"{counted(mine.height, 'allocation')}, {share(wide + rest, peak)}"
                    f" of the peak; the largest is {size(first['size'])}",
                ),
                ("saved", f"the peak falls by {size(saved)} if they are never whole"),
                *view.lines(first, first["size"]),
            ],
            data={
                "device": device,
                "float32_bytes": wide,
                "other_bytes": rest,
                "peak_bytes": peak,
            },
        )

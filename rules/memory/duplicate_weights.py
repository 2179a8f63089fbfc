"""MEM009: weights live twice, in 32 and in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.memory.peak_without import peak_savings
from traceq.analysis.memory.weight_copies import weight_copies
from traceq.lint import Bad, Good, Need, Rule, option
from traceq.words import counted, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding, SnapshotView

_PLACE = ("file", "line", "function")
_MOST_LINES = 4
_DRAWN = """
    linear = {op}, at::_ops::linear::call, model.py:12 forward, train.py:9 step
    gradient = torch::autograd::Engine::evaluate_function
    region       [ProfilerStep#1                          ]
    region        [forward      ][backward   ][optimizer ]
    weights     <64M
    linear         [32M                    ]
    gradient                        [64M             ]
"""


@dataclass(frozen=True)
class DuplicateWeights(Rule):
    """Weights live twice at the peak, in 32 and in 16 bits.

    ## What it does

    Looks among what is allocated at the peak for what a change of the number format has
    made, by autocast or by the program, that is half as large as a weight. No more
    copies of a size count than there are weights to copy.

    ## Why is this bad?

    Autocast keeps a copy in 16 bits of each weight in 32 from its first use in the
    forward pass until its gradient is done: half of the weights' bytes once more, and
    the time to make them in each step.

    ## How to fix it

    Weights in bfloat16, and 32-bit copies in the optimizer only, or sharded (FSDP
    ``MixedPrecisionPolicy``). With large batches it may not be worth it.

    ## When it is wrong

    Weights are told from others by their sizes where they were there before the history
    began. A cast activation of just such a size would count as a copy.
    """

    code = "MEM009"
    since = "0.1.0"
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY, Need.OPERATORS})
    advice = (
        "keep the weights in 16 bits and 32-bit copies in the optimizer only (an"
        " optimizer with master weights, or FSDP's MixedPrecisionPolicy, which shards"
        " them); copies that the program makes itself: make them once, drop the others"
    )

    min_mib: int = option(1, "Copies of less than this together are not reported.")

    examples = (
        Bad(
            "",
            history=_DRAWN.format(op="at::autocast::cached_cast"),
            finds=("1 weight lives twice at the peak: copies of 32.0 MiB",),
        ),
        Good("", history=_DRAWN.format(op="at::_ops::addmm::call")),
    )

    def check_snapshot(self, view: SnapshotView) -> Iterator[Finding]:
        """Take the copies at a device's peak together: they have the same cure."""
        live = view.at_peak.select("device", "alloc").drop_nulls()
        cast = view.casts.join(live, on=["device", "alloc"], how="semi")
        copies = weight_copies(view.at_peak, cast)
        for (device,), mine in copies.group_by("device", maintain_order=True):
            if mine["size"].sum() >= self.min_mib << 20:
                yield self._finding(view, int(str(device)), mine)

    def _finding(self, view: SnapshotView, device: int, mine: pl.DataFrame) -> Finding:
        curve = view.curve.filter(pl.col("device") == device)
        held, weights = int(mine["size"].sum()), int(mine["copies_of"].sum())
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
        first, *others = lines.head(_MOST_LINES).to_dicts()
        lives = "1 weight lives" if mine.height == 1 else f"{mine.height} weights live"
        return self.finding(
            f"{lives} twice at the peak: copies of {size(held)}",
            subject="weights",
            place=view.place(first, first["each"]),
            count=mine.height,
            # In another step the same copies are others.
            cost_bytes=peak_savings(curve, _in_all_steps(view, mine)),
            evidence=[
                ("weights", f"{size(weights)}, and {size(held)} of copies"),
                *view.lines(first, first["each"]),
                *(
                    (
                        "also",
                        f"{one['file']}:{one['line']} {one['function']}:"
                        f" {counted(one['count'], 'copy')}, {size(one['held'])}",
                    )
                    for one in others
                    if one["file"]
                ),
            ],
            data={"device": device, "copies": mine.height, "held_bytes": held},
        )


def _in_all_steps(view: SnapshotView, copies: pl.DataFrame) -> pl.DataFrame:
    """Return what the same stacks allocate of the same size, whenever."""
    key = ["device", "stack", "size"]
    return view.allocations.join(copies, on=key, how="semi")

"""MEM007: logits are held in fp32 at the peak."""

from __future__ import annotations

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
    size,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, SnapshotView

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
    """Logits are held in fp32 at the memory peak.

    ## What it does

    Looks among the allocations at the peak for logits, and for what the loss makes of
    them, of which some are twice as large as others and come from a cast: the same
    elements in 16-bit and in fp32. The saving is what the peak falls by if none of
    them is ever materialised as a whole.

    ## Why is this bad?

    tokens × vocabulary is often the largest tensor of all. It is held as logits, as
    log-probabilities, and as the gradient of each; in fp32, each is twice as large.

    ## How to fix it

    A loss that never materialises all logits: Liger's fused linear cross entropy, under
    autocast ``F.linear_cross_entropy`` with ``torch.nn.LinearCrossEntropyOptions()``
    (torch 2.13), or a loop over chunks of tokens with ``torch.utils.checkpoint``.
    Without ``.float()`` on the logits, half of it goes, and the loss itself is rounded
    to 16 bits.

    ```diff
    - loss = F.cross_entropy(head(hidden).float(), targets)
    + loss = sum(
    +     checkpoint(chunk_loss, h, t, use_reentrant=False)
    +     for h, t in zip(hidden.split(1024), targets.split(1024), strict=True)
    + ) / len(targets)  # chunk_loss: cross_entropy(head(h).float(), t, reduction="sum")
    ```

    ## When it is wrong

    The dtype is inferred from sizes: logits that are all in fp32, as in a model without
    any 16-bit tensors, look like logits that are all 16-bit, and are not reported.
    """

    code = "MEM007"
    since = "0.1.0"
    see = (
        "torch.nn.functional.cross_entropy",
        "torch.nn.functional.linear_cross_entropy",
        "torch.utils.checkpoint.checkpoint",
    )
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY, Need.OPERATORS})
    advice = (
        "use a loss that never materialises all logits: Liger's fused linear cross"
        " entropy, chunks of tokens under torch.utils.checkpoint, or under autocast"
        " F.linear_cross_entropy with options=torch.nn.LinearCrossEntropyOptions()"
        " (torch 2.13); without the upcast to float32 half of this goes, but the loss"
        " itself is rounded to 16 bits"
    )

    seen = Seen(
        of="fixtures/captures/norm_mismatch.snapshot.pickle.gz",
        text="""
        MEM007 float32-logits-at-peak  2.44 GiB (46%)
          fp32 logits hold 1.95 GiB of the 4.84 GiB peak, 16-bit logits 1,000 MiB
          at       dev_cases.py:71 step
          logits   6 allocations 61% of the peak
          largest  1,000 MiB
          saves    2.44 GiB of the peak if they are never materialised
          from     dev_cases.py:207 main, dev_cases.py:217 <module>
          op       aten::cross_entropy_loss
          fix      use a loss that never materialises all logits: Liger's fused
                   linear cross entropy, chunks of tokens under
                   torch.utils.checkpoint, or under autocast F.linear_cross_entropy
                   with options=torch.nn.LinearCrossEntropyOptions() (torch 2.13);
                   without the upcast to float32 half of this goes, but the loss
                   itself is rounded to 16 bits
        """,
    )

    examples = (
        Bad(
            "",
            history=_DRAWN.format(op="at::_ops::_to_copy::call"),
            finds=(
                "fp32 logits hold 256 MiB of the 420 MiB peak, 16-bit logits 64.0 MiB",
            ),
        ),
        Good("", history=_DRAWN.format(op="at::_ops::log_softmax_int::call")),
    )

    def check_snapshot(self, view: SnapshotView) -> Iterator[Finding]:
        """Look for two sizes at each device's peak, one twice the other."""
        logits = view.at_peak.filter(pl.col("category") == _LOGITS)
        for (device,), rows in logits.group_by("device", maintain_order=True):
            half = rows.filter((2 * pl.col("size")).is_in(rows["size"].implode()))
            wide = rows.filter(pl.col("size").is_in((2 * half["size"]).implode()))
            # Logits of twice the tokens, in the same dtype, are as large.
            if wide.join(view.casts, on=["device", "alloc"], how="semi").height:
                yield self._finding(view, int(str(device)), rows, wide)

    def _finding(
        self, view: SnapshotView, device: int, table: pl.DataFrame, wide: pl.DataFrame
    ) -> Finding:
        from ._peak_without import peak_savings

        here = pl.col("device") == device
        kind = view.allocations.filter(here, pl.col("category") == _LOGITS)
        saved = peak_savings(view.curve.filter(here), kind)
        held, peak = int(wide["size"].sum()), view.peak_bytes(device)
        rest = int(table["size"].sum()) - held
        first = wide.sort(pl.col("file").is_null(), -pl.col("size"), "alloc").row(
            0, named=True
        )
        allocations = counted(table.height, "allocation")
        return self.finding(
            f"fp32 logits hold {size(held)} of the {size(peak)} peak, 16-bit logits"
            f" {size(rest)}",
            subject="logits",
            place=view.place(first, first["size"]),
            count=wide.height,
            cost_bytes=saved,
            evidence=[
                Evidence(
                    "logits",
                    allocations,
                    (held + rest) / peak,
                    "share",
                    note="of the peak",
                ),
                Evidence("largest", value=first["size"], unit="bytes"),
                Evidence(
                    "saves",
                    value=saved,
                    unit="bytes",
                    note="of the peak if they are never materialised",
                ),
                *view.lines(first, first["size"]),
            ],
            data={
                "device": device,
                "float32_bytes": held,
                "other_bytes": rest,
                "peak_bytes": peak,
            },
        )

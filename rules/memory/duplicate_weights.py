"""MEM009: weights are held twice, in fp32 and in 16-bit."""

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
    option,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, SnapshotView

_MOST_LINES = 4
_ADVICE = (
    "keep the weights in 16-bit and fp32 copies in the optimizer only (an optimizer"
    " with master weights{}); if the program makes the copies itself, make them once"
    " and drop the fp32 ones"
)
_SHARDED = ", or FSDP's MixedPrecisionPolicy, which shards them"
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
    """Weights are held twice at the peak, in fp32 and in 16-bit.

    ## What it does

    Looks among the allocations at the peak for casts, by autocast or by the program,
    that are half as large as a weight. No more copies of a size count than there are
    weights of twice that size.

    ## Why is this bad?

    Autocast keeps a 16-bit copy of each fp32 weight from its first use in the forward
    pass until its gradient is done: half of the weights' bytes again, and the time to
    make the copies in every step.

    ## How to fix it

    Weights in bf16, with fp32 copies in the optimizer only. With large batches it may
    not be worth it.

    ```diff
    - with torch.autocast("cuda", torch.bfloat16):
    -     loss = model(batch)
    + model = model.to(torch.bfloat16)  # its optimizer has float32 copies
    + loss = model(batch)
    ```

    On several GPUs FSDP shards the fp32 weights and casts what it gathers:

    ```diff
    - model = fully_shard(model)  # under autocast
    + policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    + model = fully_shard(model, mp_policy=policy)
    ```

    ## When it is wrong

    Weights that were there before the history began are distinguished from other
    allocations by their sizes. A cast activation of exactly such a size counts as a
    copy.
    """

    code = "MEM009"
    since = "0.1.0"
    see = ("torch.autocast",)
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY, Need.OPERATORS})
    advice = _ADVICE.format("")

    min_mib: int = option(1, "Copies of less than this in total are not reported.")

    seen = Seen(
        of="fixtures/captures/norm_mismatch.snapshot.pickle.gz",
        text="""
        MEM009 duplicate-weights  101 MiB (2%)
          17 weights are held twice at the peak: 101 MiB of 16-bit copies
          at       dev_cases.py:41 forward
          weights  202 MiB in fp32
          copies   101 MiB in 16-bit
          from     dev_cases.py:70 step, dev_cases.py:207 main, dev_cases.py:217
                   <module>
          op       aten::linear
          also     dev_cases.py:27 forward: 36.0 MiB in 8 copies
          also     dev_cases.py:25 forward: 13.5 MiB in 4 copies
          also     dev_cases.py:26 forward: 4.50 MiB in 4 copies
          fix      keep the weights in 16-bit and fp32 copies in the optimizer only
                   (an optimizer with master weights); if the program makes the
                   copies itself, make them once and drop the fp32 ones
        """,
    )

    examples = (
        Bad(
            "",
            history=_DRAWN.format(op="at::autocast::cached_cast"),
            finds=("1 weight is held twice at the peak: 32.0 MiB of 16-bit copies",),
        ),
        Good("", history=_DRAWN.format(op="at::_ops::addmm::call")),
    )

    def check_snapshot(self, view: SnapshotView) -> Iterator[Finding]:
        """Take the copies at a device's peak together: they have the same fix."""
        copies = view.weight_copies
        for (device,), rows in copies.group_by("device", maintain_order=True):
            if rows["size"].sum() >= self.min_mib << 20:
                yield self._finding(view, int(str(device)), rows)

    def _finding(self, view: SnapshotView, device: int, table: pl.DataFrame) -> Finding:
        from ._minor import has_ranks, severity_of
        from ._peak_without import peak_savings

        curve = view.curve.filter(pl.col("device") == device)
        held, weights = int(table["size"].sum()), int(table["copies_of"].sum())
        # Every step makes its own copies.
        saved = peak_savings(curve, _in_all_steps(view, table))
        first, *others = view.by_line(table)[:_MOST_LINES]
        ranks = has_ranks(view)
        held_twice = "is held twice" if table.height == 1 else "are held twice"
        return self.finding(
            f"{counted(table.height, 'weight')} {held_twice} at the peak:"
            f" {size(held)} of 16-bit copies",
            subject="weights",
            place=view.place(first, first["largest"]),
            count=table.height,
            cost_bytes=saved,
            severity=severity_of(saved, view.peak_bytes(device)),
            advice=_ADVICE.format(_SHARDED) if ranks else None,
            example=self.example(int(ranks)),
            evidence=[
                Evidence("weights", value=weights, unit="bytes", note="in fp32"),
                Evidence("copies", value=held, unit="bytes", note="in 16-bit"),
                *([_less(saved)] if saved < held else []),
                *view.lines(first, first["largest"]),
                *(
                    Evidence(
                        "also",
                        f"{other['file']}:{other['line']} {other['function']}:",
                        other["held"],
                        "bytes",
                        note=f"in {counted(other['count'], 'copy')}",
                    )
                    for other in others
                    if other["file"]
                ),
            ],
            data={"device": device, "copies": table.height, "held_bytes": held},
        )


def _in_all_steps(view: SnapshotView, copies: pl.DataFrame) -> pl.DataFrame:
    """Return what the same stacks allocate of the same size, as often in each step."""
    key = ["device", "stack", "size"]
    often = copies.group_by(key).agg(copies=pl.len())
    nth = pl.int_range(pl.len(), dtype=pl.Int64).over(*key, "step")
    same = view.allocations.join(often, on=key, maintain_order="left")
    return same.sort("alloc").filter(nth < pl.col("copies"))


def _less(saved: int) -> Evidence:
    return Evidence(
        "saves",
        value=saved,
        unit="bytes",
        note="of the peak: another moment is the highest then",
    )

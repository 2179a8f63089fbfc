"""RNK007: experts get unequal numbers of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
)

from ._shared import EXPERTS, TOKENS, TOKENS_EVEN, ranks, saving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding


@dataclass(frozen=True)
class ExpertImbalance(Rule):
    """The ranks get unequal numbers of tokens for their experts.

    ## What it does

    Reads from the split sizes of all-to-alls how many tokens each rank receives, layer
    by layer. Balancedness is the mean over the ranks divided by the most. The saving is
    by replay with the compute of all ranks at the median of their peers, and so the
    most that balance can save.

    ## Why is this bad?

    All ranks wait for the one whose experts are asked most, in each layer, twice: at
    the all-to-all back, and in the backward.

    ## How to fix it

    Place experts by their load, and copy the ones that are asked most: that leaves the
    results as they are. A balance loss of more weight, a bias per expert and a cap on
    tokens per expert balance too, but change what the model learns: check its loss.

    ```diff
    - expert_of_slot = list(range(64))
    + expert_of_slot = balanced(tokens_per_expert, ranks=8)  # hot ones apart
    ```

    ## When it is wrong

    Batches that are all of one kind ask for the same experts, and the next ones may
    ask for others: look at more than a few steps.
    """

    code = "RNK007"
    since = "0.2.0"
    see = ("torch.distributed.all_to_all_single",)
    needs = frozenset({Need.JOB})
    advice = (
        "place experts by their load and copy those that are asked most; a balance"
        " loss, a bias for each expert or a cap on tokens change what the model learns:"
        " check its loss"
    )

    min_balance: float = option(
        0.8, "Layers with at least this balancedness (mean ÷ max) are not reported."
    )

    seen = Seen(
        text="""
        RNK007 expert-imbalance
          rank 1 gets most tokens in 1 all-to-all of a step
          balance  62% mean ÷ max, at the median of these
          worst    62%
          fix      place experts by their load and copy those that are asked most; a
                   balance loss, a bias for each expert or a cap on tokens change
                   what the model learns: check its loss
        """,
    )

    examples = (
        Bad(
            "",
            finds="rank 1 gets most tokens in 1 all-to-all of a step",
            args=TOKENS,
            ranks=EXPERTS,
        ),
        Good("", args=TOKENS_EVEN, ranks=EXPERTS),
    )

    def check_job(self, job: Any) -> Iterator[Finding]:  # noqa: ANN401 - see Rule
        """Report the layers whose tokens are spread unevenly, together."""
        if job.experts is None:
            return
        uneven = job.experts.layers.filter(pl.col("balancedness") < self.min_balance)
        if not uneven.height:
            return
        most = int(uneven["rank"].mode().sort()[0])
        compute = [change for change in job.changes if change.name == "compute"]
        layers = uneven["module"].drop_nulls().unique(maintain_order=True).to_list()
        finding = self.finding(
            f"{ranks(job, [most])} gets most tokens in"
            f" {counted(uneven.height, 'all-to-all')} of a step",
            subject="experts",
            count=uneven.height,
            evidence=[
                Evidence(
                    "balance",
                    value=float(uneven["balancedness"].median() or 0.0),
                    unit="share",
                    note="mean ÷ max, at the median of these",
                ),
                Evidence("worst", value=float(uneven["worst"].min()), unit="share"),
                Evidence("modules", ", ".join(layers[:3])),
            ],
        )
        yield saving(finding, job, sum(entry.saved_ns for entry in compute))

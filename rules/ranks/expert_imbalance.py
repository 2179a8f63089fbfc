"""RNK007: experts get unequal numbers of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.lint import Bad, Evidence, Good, Need, Rule, option
from traceq.words import counted

from ._shared import EXPERTS, TOKENS, TOKENS_EVEN, ranks, saving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding


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

    Raise the weight of the router's balance loss or use a bias per expert, cap tokens
    per expert, or place and copy experts by their load.

    ```diff
    - config = MoEConfig(num_experts=64, aux_loss_coef=0.0)
    + config = MoEConfig(num_experts=64, aux_loss_coef=0.01, capacity_factor=1.25)
    ```

    ## When it is wrong

    Batches that are all of one kind ask for the same experts, and the next ones may
    ask for others: look at more than a few steps.

    ## Measured

    Not tried on a GPU.
    """

    code = "RNK007"
    since = "0.1.0"
    needs = frozenset({Need.JOB})
    advice = (
        "balance the router (its loss, or a bias for each expert), cap the tokens of an"
        " expert, or place and copy experts by their load"
    )

    min_balance: float = option(
        0.8, "Layers with at least this balancedness (mean ÷ max) are not reported."
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
        compute = [one for one in job.changes if one.name == "compute"]
        layers = uneven["module"].drop_nulls().unique(maintain_order=True).to_list()
        found = self.finding(
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
        yield saving(found, job, sum(one.saved_ns for one in compute))

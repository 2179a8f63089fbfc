"""RNK003: a rank has more to compute than the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceq.linter import Bad, Evidence, Good, Need, Rule, Seen, dataclass

from ._shared import EARLY, MORE, SLOW, hold, late_lines, ranks, saving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding


@dataclass(frozen=True)
class Imbalance(Rule):
    """A rank has more work than the others, and they wait for it.

    ## What it does

    Compares the kernels of a rank that holds the others up with those of its peers. If
    it runs others, or more of them, rather than slower ones, its work is more: longer
    sequences, more tokens, a larger part of the model. The saving is by replay.

    ## Why is this bad?

    All ranks wait for the one with the most work in each step, so the job pays for the
    longest batch on every GPU.

    ## How to fix it

    Give the ranks batches of equal cost rather than of an equal number of samples: sort
    by length into buckets, pack sequences up to a number of tokens, or let a sampler
    share the samples of a step out by their cost.

    ```diff
    - sampler = DistributedSampler(dataset)
    - loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    + # batches of about 16,384 tokens, the same number of them on each rank
    + batches = TokenBudgetSampler(lengths, tokens=16_384, rank=rank, ranks=world_size)
    + loader = DataLoader(dataset, batch_sampler=batches)
    ```

    ## When it is wrong

    Where work moves from rank to rank with every step, the window is too short to tell
    chance from a rank that always has more: record more steps.
    """

    code = "RNK003"
    several_fixes = True
    since = "0.2.0"
    see = ("torch.utils.data.distributed.DistributedSampler",)
    needs = frozenset({Need.JOB})
    advice = (
        "give the ranks batches of equal cost: by tokens, not by samples; where the"
        " model is split unevenly, move layers or experts"
    )

    seen = Seen(
        text="""
        RNK003 imbalance  saves 3.00 µs/step (5%)
          rank 1 holds the others up: more work than elsewhere
          late     3.00 µs a step, more than its peers
          compute  3.00 µs of it
          last     in 2 of 2 collectives
          kernel   gemm_of_more_rows
          fix      give the ranks batches of equal cost: by tokens, not by samples;
                   where the model is split unevenly, move layers or experts
        """,
    )

    examples = (
        Bad(
            "",
            finds="rank 1 holds the others up: more work than elsewhere",
            ranks=(EARLY, MORE, EARLY),
        ),
        Good("", ranks=(EARLY, SLOW, EARLY)),
    )

    def check_job(self, job: Any) -> Iterator[Finding]:  # noqa: ANN401 - see Rule
        """Report the ranks that compute more."""
        for straggler in job.stragglers:
            if straggler.cause.cause != "more work":
                continue
            work = straggler.cause.work
            finding = self.finding(
                f"{ranks(job, straggler.ranks)} {hold(straggler.ranks)} the others"
                " up: more work than elsewhere",
                subject="more work",
                evidence=[
                    *late_lines(job, straggler),
                    *(
                        [
                            Evidence("op", work.op or ""),
                            Evidence("shapes", work.shape or ""),
                            Evidence("kernel", work.kernel or ""),
                        ]
                        if work
                        else ()
                    ),
                ],
            )
            yield saving(finding, job, straggler.saved_ns)

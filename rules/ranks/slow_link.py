"""RNK004: a link is slower than the others of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceq.linter import Bad, Evidence, Good, Need, Rule, Seen, dataclass

from ._shared import EARLY, FAST_GROUP, GROUPS, SLOW_GROUP, ranks, saving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding


@dataclass(frozen=True)
class SlowLink(Rule):
    """The collectives of some ranks take longer than the same ones of others.

    ## What it does

    Compares the transfers, waiting taken out, of the same collective in different
    groups of ranks, and names the ranks that the slow ones have in common. The saving
    is by replay with all transfers at their median.

    ## Why is this bad?

    A ring or a tree is as fast as its slowest link. One cable, port or switch that
    fell back to a lower rate, or ranks that are placed across machines by mistake, slow
    all collectives down that go through it.

    ## How to fix it

    Measure the link alone (nccl-tests, ib_write_bw) between these ranks and others.
    Look at the link's rate and error counters, at NCCL_DEBUG=INFO for a transport over
    the host where the others have P2P, and at which ranks share a machine.

    ```diff
      # NCCL_DEBUG=INFO: via NET/Socket, where the others have NET/IB
    - torchrun --nproc-per-node 8 train.py
    + NCCL_IB_HCA=mlx5 NCCL_SOCKET_IFNAME=ib0 torchrun --nproc-per-node 8 train.py
    ```

    ## When it is wrong

    Groups inside one machine and groups across machines are not the same collective:
    the latter are slower by design.
    """

    code = "RNK004"
    since = "0.2.0"
    see = ("torch.distributed",)
    needs = frozenset({Need.JOB})
    advice = (
        "measure the link between these ranks alone with nccl-tests; look at its rate"
        " and error counters, and at NCCL_DEBUG=INFO for another transport than the"
        " others have"
    )

    seen = Seen(
        text="""
        RNK004 slow-link  saves 1.15 µs/step (3%)
          the collectives of ranks 4, 5 take longer than those of others
          lost  10.0 µs a step, of all transfers
          fix   measure the link between these ranks alone with nccl-tests; look at
                its rate and error counters, and at NCCL_DEBUG=INFO for another
                transport than the others have
        """,
    )

    examples = (
        Bad(
            "",
            finds="the collectives of ranks 4, 5 take longer than those of others",
            args=GROUPS,
            ranks=(*FAST_GROUP, SLOW_GROUP, SLOW_GROUP),
        ),
        Good("", ranks=(EARLY, EARLY, EARLY)),
    )

    def check_job(self, job: Any) -> Iterator[Finding]:  # noqa: ANN401 - see Rule
        """Report the ranks whose links are slow."""
        for straggler in job.stragglers:
            if straggler.cause.cause != "link":
                continue
            finding = self.finding(
                f"the collectives of {ranks(job, straggler.ranks)} take longer than"
                " those of others",
                subject="link",
                evidence=[
                    Evidence(
                        "lost",
                        value=straggler.cause.late_ns / job.steps,
                        unit="ns",
                        note="a step, of all transfers" if job.job.step_ns else "",
                    ),
                ],
            )
            yield saving(finding, job, straggler.saved_ns)

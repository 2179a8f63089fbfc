"""NET002: a collective waits for ranks that are not there yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq.analysis.patterns.collectives import exposed_by_collective
from traceq.lint import Bad, Good, Need, Rule, View, option
from traceq.words import counted, size, time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.lint import Finding


@dataclass(frozen=True)
class WaitForOtherRanks(Rule):
    """A collective lasts far longer than sending its data takes: it waits for ranks.

    ## What it does

    Compares how long kernels of NCCL or RCCL run, while no other kernel of this GPU
    does, with the time that even a slow network needs for what they send. What is left
    is a wait. It needs the sizes that torch records since 2.3; without them it is
    silent, and NET001 has the whole time.

    ## Why is this bad?

    A collective ends when the last rank has come. All others hold their GPU until then
    and compute nothing: every step is as slow as its slowest rank.

    ## How to fix it

    Find the rank that does not wait: it has the shortest kernels of this collective,
    and it is the one to make faster. Often it has more data (sequences of unequal
    length), does more than the others (logging, checkpoints, evaluation on rank 0), or
    its host is slower (its DataLoader, other programs on the machine).

    ## When it is wrong

    On a network slower than ``slowest-link`` the time may be spent on sending after
    all. A collective whose result nobody needs before the step ends may wait for free.
    """

    code = "NET002"
    needs = frozenset({Need.GPU})

    min_share: float = option(0.02, "Shares of the step below this are not reported.")
    slowest_link: float = option(
        1.0, "GB/s; what takes longer than at this rate is a wait for other ranks."
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1       ]
            host    [c10d::allreduce_   ]
            host     [cudaLaunchKernel>1]
            gpu 20           [ncclDevKernel_AllReduce_Sum_f32<1                                                                                                                                           ]
            """,  # noqa: E501 - shorter ones may be the start of the collective
            finds=("allreduce of 2 ranks waits for one that is late",),
            args={
                "ncclDevKernel_AllReduce_Sum_f32": {
                    "Collective name": "allreduce",
                    "Group size": 2,
                    "In msg nelems": 512,
                }
            },
        ),
        Good(
            """
            host   [ProfilerStep#1       ]
            host    [c10d::allreduce_   ]
            host     [cudaLaunchKernel>1]
            gpu 20           [ncclDevKernel_AllReduce_Sum_f32<1                                                                                                                                           ]
            """,  # noqa: E501 - as above
            args={
                "ncclDevKernel_AllReduce_Sum_f32": {
                    "Collective name": "allreduce",
                    "Group size": 2,
                    "In msg nelems": 512_000,
                }
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group what waits by collective and ranks."""
        found = exposed_by_collective(view.trace, view.kernels, self.slowest_link)
        for row in found.iter_rows(named=True):
            if row["waiting"] >= self.min_share * view.steady.time:
                yield self._said(view, row)

    def _said(self, view: View, row: Mapping[str, Any]) -> Finding:
        count, waiting = row["kernels"] / view.steps, row["waiting"] / view.steps
        ranks = row["group_size"]
        over = f" of {counted(ranks, 'rank')}" if ranks else ""
        each = size(row["bytes"] / row["kernels"])
        mine = view.trace.facts.rank
        this = "this rank" if mine is None else f"rank {mine}"
        return self.finding(
            f"{row['collective']}{over} waits for one that is late",
            subject=row["collective"],
            place=view.place(row),
            count=count,
            gpu_ns=waiting,
            host_ns=row["waiting_blocked"] / view.steps,
            evidence=[
                ("kernel", f"{row['name']} ×{count:.3g}"),
                (
                    "waits",
                    f"{time(waiting)} of {time(row['time'] / view.steps)} a step,"
                    f" the longest kernel {time(row['longest'])}",
                ),
                ("sent", f"about {each} each, which takes no time"),
                ("op", row["op_name"] or ""),
            ],
            data={
                "collective": row["collective"],
                "ranks": ranks,
                "kernels": row["kernels"],
                "waiting_ns": round(waiting),
                "bytes": row["bytes"],
            },
            advice=f"{this} is not the slow one: trace all ranks and look for the one"
            f" whose {row['collective']} is shortest, it comes last; then for what it"
            " does more of (longer batches, logging, checkpoints) or slower (its"
            " DataLoader)",
            kernels=row["ids"],
        )

"""NET002: a collective waits for a straggling rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.patterns.collectives import exposed_by_collective
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    counted,
    dataclass,
    kernel_lines,
    often,
    option,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_OF_TIME = "of the collective's time"


@dataclass(frozen=True)
class StragglingRank(Rule):
    """A collective waits for a straggling rank.

    ## What it does

    Compares how long NCCL or RCCL kernels run, while no other kernel of this GPU does,
    with the time that even a slow network needs for their data. The rest is a wait for
    a rank that is late. This needs the message sizes that torch records since 2.3;
    without them the rule finds nothing, and NET001 reports the whole time.

    ## Why is this bad?

    A collective ends only after the last rank has joined. Until then the others hold
    their GPUs and compute nothing: every step is as slow as its slowest rank.

    ## How to fix it

    Find the straggler, the rank that does not wait: it has the shortest kernels of this
    collective. Often it has more data (sequences of unequal length), does more than the
    others (logging, checkpoints, evaluation on rank 0), or has a slower host (its
    DataLoader, other programs on the machine).

    ```diff
    - if rank == 0:
    -     torch.save(model.state_dict(), path)  # the other ranks wait for it
    + torch.distributed.checkpoint.async_save(model.state_dict(), checkpoint_id=path)
    ```

    ## When it is wrong

    On a network slower than ``slowest-link`` the time may be spent on sending after
    all. If nothing needs the result of the collective before the step ends, the wait
    may cost nothing.
    """

    code = "NET002"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.distributed.checkpoint.async_save",)
    needs = frozenset({Need.GPU})

    min_share: float = option(
        0.02, "Waits below this share of the step are not reported."
    )
    slowest_link: float = option(
        1.0, "GB/s; time beyond what this rate needs is a wait for other ranks."
    )

    seen = Seen(
        text="""
        NET002 straggling-rank  saves 69.9 µs/step (40%), 65.5 µs to 107 µs
          allreduce of 2 ranks waits for a straggler once a step
          kernel   ncclDevKernel_AllReduce_Sum_f32 ×1
          waits    69.9 µs a step
          share    40% of the collective's time
          longest  174 µs
          sent     2.00 KiB each, estimated
          op       c10d::allreduce_
          fix      run `traceq ranks` on the traces of all ranks, which names the
                   straggler and the cause: it is not this rank; without them, look
                   for the rank with the shortest allreduce, and for what it does
                   more of (longer batches, logging, checkpoints)
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1       ]
            host    [c10d::allreduce_   ]
            host     [cudaLaunchKernel>1]
            gpu 20           [ncclDevKernel_AllReduce_Sum_f32<1                                                                                                                                           ]
            """,  # noqa: E501 - a shorter one may be the latency of the collective
            finds=("allreduce of 2 ranks waits for a straggler once a step",),
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
        """Group what waits by collective, ranks and place."""
        collectives = exposed_by_collective(view.trace, view.kernels, self.slowest_link)
        for row in collectives.iter_rows(named=True):
            if row["waiting"] >= self.min_share * view.steady.time:
                yield self._finding(view, row)

    def _finding(self, view: View, row: Mapping[str, Any]) -> Finding:
        count, waiting = row["kernels"] / view.steps, row["waiting"] / view.steps
        ranks = row["group_size"]
        over = f" of {counted(ranks, 'rank')}" if ranks else ""
        wait_share = row["waiting"] / row["time"]
        sent = row["bytes"] / row["kernels"]
        return self.finding(
            f"{row['collective']}{over} waits for a straggler {often(count)}",
            subject=row["collective"],
            place=view.place(row),
            count=count,
            fix=Fix(kernels=row["ids"], kernel_share=wait_share),
            evidence=[
                *kernel_lines(view, row["ids"]),
                Evidence("waits", value=waiting, unit="ns", note="a step"),
                Evidence("share", value=wait_share, unit="share", note=_OF_TIME),
                Evidence("longest", value=row["longest"], unit="ns"),
                Evidence("sent", value=sent, unit="bytes", note="each, estimated"),
                *([Evidence("op", row["op_name"])] if row["op_name"] else []),
            ],
            data={
                "collective": row["collective"],
                "ranks": ranks,
                "kernels": row["kernels"],
                "waiting_ns": round(waiting),
                "bytes": row["bytes"],
            },
            advice=_advice(view.trace.facts.rank, row["collective"]),
        )


def _advice(rank: int | None, collective: str) -> str:
    this = "this rank" if rank is None else f"rank {rank}"
    return (
        "run `traceq ranks` on the traces of all ranks, which names the straggler and"
        f" the cause: it is not {this}; without them, look for the rank with the"
        f" shortest {collective}, and for what it does more of (longer batches,"
        " logging, checkpoints)"
    )

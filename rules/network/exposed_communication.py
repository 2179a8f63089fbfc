"""NET001: communication is not overlapped with compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.patterns.collectives import exposed_by_collective
from traceq.analysis.patterns.host_collectives import (
    exposed_through_host,
)
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

from ._advice import advice_for, sent, syncs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_ONE_RANK = (
    "this trace is one rank: part of the time may be waiting for others, which"
    " overlapping does not save; `traceq ranks` on the traces of all ranks tells"
)
_OF_TIME = "of the collective's time"
_THROUGH_HOST = (
    'use NCCL, which sends from GPU to GPU: init_process_group("nccl"), with a GPU for'
    " each rank; it refuses two ranks on one GPU"
)


@dataclass(frozen=True)
class ExposedCommunication(Rule):
    """Communication between GPUs is exposed: it is not overlapped with compute.

    ## What it does

    Adds up the time in which NCCL or RCCL kernels run and no other kernel of this GPU
    does. Where message sizes were recorded, time far beyond what a slow network needs
    is left to NET002: it is a wait for a straggler. The saving is that of sending: of
    collectives of one size, what takes more than twice the shortest may be waiting.

    Collectives through the host (gloo, MPI) have no kernels: their tensors are copied
    to the host, sent by a thread there and copied back. These regions count where no
    kernel runs, and the saving is that of sending the same from GPU to GPU.

    ## Why is this bad?

    The links between GPUs and the GPU's cores are different hardware and can work at
    the same time. If they take turns, a step takes as long as both together.

    ## How to fix it

    Start a collective as soon as its input is ready and wait for it as late as
    possible: send one layer's gradients while the backward of the next runs (DDP's
    buckets), fetch the next layer's weights while this one computes (FSDP's prefetch),
    or use ``async_op=True`` in code of your own. Send less: gradients in bf16,
    ``no_sync()`` between micro-batches.

    ```diff
      for micro, last in batches:
    -     model(micro).backward()
    +     with nullcontext() if last else model.no_sync():
    +         model(micro).backward()
    ```

    ## When it is wrong

    One rank's trace cannot distinguish sending from waiting for a slow rank; only the
    traces of all ranks can: run ``traceq ranks`` on them. The last collective of a
    backward pass has nothing left to overlap with.
    """

    code = "NET001"
    several_fixes = True
    since = "0.1.0"
    see = (
        "torch.nn.parallel.DistributedDataParallel",
        "torch.distributed.fsdp.fully_shard",
    )
    needs = frozenset({Need.GPU})

    min_share: float = option(
        0.02, "Exposed time below this share of the step is not reported."
    )
    slowest_link: float = option(
        1.0, "GB/s; time beyond what this rate needs is a wait for other ranks."
    )

    seen = Seen(
        text="""
        NET001 exposed-communication  saves 14.9 µs/step (40%), nothing to 16.0 µs
          allreduce once a step while the GPU computes nothing
          kernel   ncclDevKernel_AllReduce_Sum_f32 ×1
          exposed  37.0 µs a step
          share    100% of the collective's time
          op       c10d::allreduce_
          note     message sizes were not recorded, so part of the time may be a
                   wait
          fix      start it earlier and wait for it later: with DDP, a smaller
                   bucket_cap_mb and gradient_as_bucket_view=True; in code of your
                   own, async_op=True and wait() only where the result is used; with
                   several micro-batches a step, no_sync() on all but the last; this
                   trace is one rank: part of the time may be waiting for others,
                   which overlapping does not save; `traceq ranks` on the traces of
                   all ranks tells
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                              ]
            host    [aten::mm           ] [c10d::allreduce_   ]
            host     [cudaLaunchKernel>1]  [cudaLaunchKernel>2]
            gpu 7           [gemm<1             ]
            gpu 20                               [ncclDevKernel_AllReduce_Sum_f32<2  ]
            """,
            finds=("allreduce once a step while the GPU computes nothing",),
        ),
        Good(
            """
            host   [ProfilerStep#1                                                   ]
            host    [c10d::allreduce_   ] [aten::mm           ]
            host     [cudaLaunchKernel>1]  [cudaLaunchKernel>2]
            gpu 7                                [gemm<2                             ]
            gpu 20                               [ncclDevKernel_AllReduce_Sum_f32<1  ]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group what is exposed by collective, ranks and place."""
        collectives = exposed_by_collective(view.trace, view.kernels, self.slowest_link)
        for row in collectives.iter_rows(named=True):
            if row["exposed"] >= self.min_share * view.steady.time:
                yield self._finding(view, row)
        for row in exposed_through_host(view.trace, view.steady).iter_rows(named=True):
            if row["exposed"] >= self.min_share * view.steady.time:
                yield self._through_host(view, row)

    def _through_host(self, view: View, row: Mapping[str, Any]) -> Finding:
        """Return that a collective goes through the host, which NCCL would not."""
        count, exposed = row["calls"] / view.steps, row["exposed"] / view.steps
        ranks = view.trace.facts.world_size
        over = f" over {counted(ranks, 'rank')}" if ranks else ""
        sending = min(
            1.0, 2 * row["bytes"] / assumptions.SLOW_MACHINE_LINK / row["time"]
        )
        waits = pl.DataFrame(row["waits"], schema={"start": pl.Int64, "end": pl.Int64})
        return self.finding(
            f"{row['collective']}{over} goes through the host ({row['backend']})"
            f" {often(count)} while the GPU computes nothing",
            subject=f"{row['backend']}:{row['collective']}",
            place=view.place(row),
            count=count,
            fix=[
                Fix(spans=waits, host_share=1 - sending),
                Fix(kernels=row["copies"], syncs=syncs(view)),
            ],
            gpu_idle_ns=exposed,
            evidence=[
                Evidence(
                    "region", f"{row['backend']}:{row['collective']}", count=count
                ),
                Evidence("exposed", value=exposed, unit="ns", note="a step"),
                *kernel_lines(view, row["copies"]),
                Evidence(
                    "sent",
                    value=row["bytes"] / view.steps,
                    unit="bytes",
                    note="a step, by its copies to the GPU",
                ),
            ],
            data={
                "collective": row["collective"],
                "ranks": ranks,
                "exposed_ns": round(exposed),
                "bytes": row["bytes"],
            },
            advice=_THROUGH_HOST,
        )

    def _finding(self, view: View, row: Mapping[str, Any]) -> Finding:
        count, exposed = row["kernels"] / view.steps, row["exposed"] / view.steps
        ranks = row["group_size"]
        over = f" over {counted(ranks, 'rank')}" if ranks else ""
        exposed_share, sending = (
            row[part] / row["time"] for part in ("exposed", "sending")
        )
        return self.finding(
            f"{row['collective']}{over} {often(count)} while the GPU computes nothing",
            subject=row["collective"],
            place=view.place(row),
            count=count,
            fix=Fix(kernels=row["ids"], kernel_share=sending),
            evidence=[
                *kernel_lines(view, row["ids"]),
                Evidence("exposed", value=exposed, unit="ns", note="a step"),
                Evidence("share", value=exposed_share, unit="share", note=_OF_TIME),
                *([Evidence("op", row["op_name"])] if row["op_name"] else []),
                *sent(row),
            ],
            data={
                "collective": row["collective"],
                "ranks": ranks,
                "kernels": row["kernels"],
                "exposed_ns": round(exposed),
                "bytes": row["bytes"],
                "share": round(exposed_share, 4),
            },
            advice=f"{_advice(row)}; {_ONE_RANK}",
            example="" if row["tensor_parallel"] else None,
        )


def _advice(row: Mapping[str, Any]) -> str:
    return advice_for(row["collective"], tensor_parallel=row["tensor_parallel"])

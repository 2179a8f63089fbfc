"""NET001: the GPU computes nothing while it sends and receives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceq.analysis.patterns.collectives import exposed_by_collective
from traceq.lint import Bad, Good, Need, Rule, View, option
from traceq.words import counted, share, size, time, times

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.lint import Finding

# Part of the collective's name, and what hides it behind the computation.
_ADVICE = (
    (
        "reduce",
        "start it earlier and wait for it later: with DDP smaller bucket_cap_mb and"
        " gradient_as_bucket_view=True, in code of your own async_op=True and wait()"
        " only where the result is used; with several micro-batches a step, no_sync()"
        " on all but the last",
    ),
    (
        "gather",
        "fetch the next layer's part while this one computes: FSDP's"
        " forward_prefetch=True and backward_prefetch=BACKWARD_PRE, or"
        " set_modules_to_forward_prefetch of fully_shard; in code of your own"
        " async_op=True and a later wait()",
    ),
    (
        "all_?to_?all|send|recv",
        "split the batch in two and compute one half while the other is sent: async_op="
        "True, and wait() only where the result is used",
    ),
)
# GB/s that GPUs of one machine send at least; what is slower may be waiting.
_FAST = 10
_SLOW = (
    "between the GPUs of one machine this is slow: a part of it is likely a wait for"
    " other ranks, which only the traces of all ranks can tell"
)
_UNSIZED = "the file does not say how much is sent, nor how much of the time is a wait"
_OTHER = "start it with async_op=True, and wait() only where the result is used"


@dataclass(frozen=True)
class ExposedCommunication(Rule):
    """The GPU computes nothing while it exchanges data with other GPUs.

    ## What it does

    Adds up the time in which kernels of NCCL or RCCL run and no other kernel of this
    GPU does. Where the file says how much is sent, time that is far more than a slow
    network needs is left to NET002: it is a wait for other ranks.

    ## Why is this bad?

    The links between GPUs and the GPU's cores are different hardware and can work at
    the same time. Where they take turns, a step takes as long as both together.

    ## How to fix it

    Start a collective as soon as its input is there and wait for it as late as
    possible: gradients of one layer while the backward of the next one runs (DDP's
    buckets), weights of the next layer while this one computes (FSDP's prefetch),
    ``async_op=True`` in code of your own. Send less: gradients in bf16, ``no_sync()``
    between micro-batches.

    ## When it is wrong

    One rank's trace cannot tell sending from waiting for a slow rank: only the traces
    of all ranks can. The last collective of a backward pass has nothing left to hide
    behind.
    """

    code = "NET001"
    needs = frozenset({Need.GPU})

    min_share: float = option(0.02, "Shares of the step below this are not reported.")
    slowest_link: float = option(
        1.0, "GB/s; what takes longer than at this rate is a wait for other ranks."
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                                   ]
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
        """Group what is exposed by collective and ranks."""
        found = exposed_by_collective(view.trace, view.kernels, self.slowest_link)
        for row in found.iter_rows(named=True):
            if row["exposed"] >= self.min_share * view.steady.time:
                yield self._said(view, row)

    def _said(self, view: View, row: Mapping[str, Any]) -> Finding:
        count = row["kernels"] / view.steps
        ranks = row["group_size"]
        over = f" over {counted(ranks, 'rank')}" if ranks else ""
        exposed, all_of_it = row["exposed"] / view.steps, row["time"] / view.steps
        evidence = [
            ("kernel", f"{row['name']} ×{count:.3g}"),
            ("exposed", f"{time(exposed)} of {time(all_of_it)} a step"),
            ("op", row["op_name"] or ""),
            ("sent", _sent(row)),
        ]
        note = _SLOW if row["time"] and row["bytes"] < _FAST * row["time"] else ""
        evidence.append(("note", _UNSIZED if row["unsized"] else note))
        return self.finding(
            f"{row['collective']}{over} {times(count)} a step while the GPU computes"
            " nothing",
            subject=row["collective"],
            place=view.place(row),
            count=count,
            gpu_ns=exposed,
            host_ns=row["blocked"] / view.steps,
            evidence=evidence,
            data={
                "collective": row["collective"],
                "ranks": ranks,
                "kernels": row["kernels"],
                "exposed_ns": round(exposed),
                "bytes": row["bytes"],
                "share": share(row["exposed"], row["time"]),
            },
            advice=_advice(row["collective"]),
            kernels=row["ids"],
        )


def _sent(row: Mapping[str, Any]) -> str:
    if not row["bytes"]:
        return ""
    rate = row["bytes"] / row["time"]
    return f"about {size(row['bytes'] / row['kernels'])} each, {rate:.3g} GB/s"


def _advice(collective: str) -> str:
    return next(
        (advice for part, advice in _ADVICE if re.search(part, collective)), _OTHER
    )

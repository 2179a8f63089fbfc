"""TRC005: GPU work that the host launched is missing from the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time.launch_overhead import launches_outside_captures
from traceq.linter import (
    Bad,
    Evidence,
    Good,
    Rule,
    Seen,
    Severity,
    View,
    counted,
    dataclass,
    option,
)

from ._gpu_use import MISSING, sign_of_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

# What is asked of calls, which have three times as many columns.
_OF_CALLS = ("id", "name", "call", "thread", "ts", "kernels")


@dataclass(frozen=True)
class LostGpuWork(Rule):
    """GPU work that the host launched is missing from the trace.

    ## What it does

    Looks for launches without a kernel, other than those that are captured into a CUDA
    graph and so run none. A trace without any GPU work of a program that uses a GPU is
    an error, and the first finding: the run folder of ``traceq collect`` says that the
    steps ran on one, or the trace has launches, copies, memory or operators that only a
    GPU has. A GPU in the machine alone is a minor finding, as programs run on the CPU
    beside one.

    ## Why is this bad?

    Missing work looks as if the GPU had been idle. Then busy time, idle time and the
    bound of the step are wrong, and so is every saving that depends on them. Without
    any GPU work most rules are skipped, and what the others find is about the host.

    ## How to fix it

    Record the GPU too (``activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]``).
    Let no other profiler use the GPU at the same time (Nsight, DCGM). If the buffers of
    CUPTI filled up, record fewer steps.

    ```diff
    - with profile(activities=[ProfilerActivity.CPU]) as prof:
    + with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
    ```

    ## When it is wrong

    Tools that shrink traces may drop kernels on purpose.
    """

    code = "TRC005"
    since = "0.1.0"
    see = ("torch.profiler.profile",)
    priced = False
    leads = True

    # Heuristic threshold: the window cuts off the kernels of a few launches.
    min_share: float = option(
        0.05, "Smaller shares of launches without a kernel are not reported."
    )

    seen = Seen(
        text="""
        TRC005 lost-gpu-work
          1 of 2 launches has no kernel in the trace
          missing  50% of the launches have no kernel
          fix      record again with activities=[ProfilerActivity.CPU,
                   ProfilerActivity.CUDA] and no other profiler on the GPU; if
                   CUPTI's buffers filled up, record fewer steps
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                    ]
            host    [aten::mm            ] [aten::mm                 ]
            host     [cudaLaunchKernel>1]   [cudaLaunchKernel>2     ]
            gpu 7                [gemm<1                        ]
            """,
            finds=("1 of 2 launches has no kernel in the trace",),
        ),
        Good(
            """
            host   [ProfilerStep#1                                    ]
            host    [aten::mm            ] [aten::mm                 ]
            host     [cudaLaunchKernel>1]   [cudaLaunchKernel>2     ]
            gpu 7                [gemm<1               ] [gemm<2    ]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Count the launches without a kernel."""
        launches = launches_outside_captures(_calls(view)[[*_OF_CALLS]])
        lost = int((launches["kernels"] == 0).sum())
        nothing = not view.trace.facts.gpu
        if lost and (nothing or lost >= self.min_share * launches.height):
            whole = nothing or lost == launches.height
            yield self.finding(
                _message(lost, launches.height),
                subject="launches",
                evidence=[
                    Evidence(
                        "missing",
                        value=lost / launches.height,
                        unit="share",
                        note="of the launches have no kernel",
                    ),
                    *_of_collect(view),
                ],
                data={"launches": launches.height, "without_kernel": lost},
                advice=_advice(view),
                example="" if view.trace.facts.recorder else None,
                severity=Severity.error if whole else None,
            )
        elif nothing and (sign := sign_of_gpu(view.trace)):
            yield self.finding(
                "the program uses a GPU, but the trace has no GPU work",
                subject="no GPU work",
                evidence=[Evidence("seen by", sign), *_of_collect(view)],
                advice=_advice(view),
                example="" if view.trace.facts.recorder else None,
                severity=Severity.error,
            )
        elif nothing and view.trace.devices.height:
            name = view.trace.devices["name"][0] or "a GPU"
            yield self.finding(
                f"the machine has {name}, but none of its work was recorded",
                subject="no GPU work",
                advice="if the program uses the GPU, record with"
                " activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
                severity=Severity.info,
            )


def _calls(view: View) -> pl.DataFrame:
    """Return the calls of the steps, of last ones that averages leave out, too.

    Those are left out because their kernels were lost.
    """
    steps = view.trace.steps.filter(~pl.col("warmup"))
    first_lost = steps.filter(~pl.col("averaged"))["start"].min()
    if first_lost is None:
        return view.runtime
    calls = view.trace.runtime
    lost = calls.filter(pl.col("ts").is_between(first_lost, steps["end"].max()))
    return pl.concat([view.runtime, lost]).unique("id", maintain_order=True)


def _of_collect(view: View) -> Iterator[Evidence]:
    """Yield what the run folder says: why there is none, and what was tried before."""
    rank = view.trace.rank
    if rank and MISSING in rank.reasons:
        yield Evidence("why", rank.reasons[MISSING])
    if rank and rank.discarded:
        count = len(rank.discarded)
        were = "was" if count == 1 else "were"
        note = f"of which {count} {were} discarded"
        yield Evidence("attempts", value=count + 1, note=note)


def _advice(view: View) -> str:
    if view.trace.rank:
        return (
            "record again with traceq collect, and with no other profiler on the GPU"
            " (Nsight, DCGM); --no-stack and fewer steps (--active 1) ask less of CUPTI"
        )
    if view.trace.facts.recorder:
        return (
            "record again with nsys profile --trace=cuda,nvtx and no other profiler on"
            " the GPU; call torch.cuda.synchronize() at the end of what is recorded, or"
            " the GPU's work of the last launches is cut off"
        )
    return (
        "record again with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] and"
        " no other profiler on the GPU; if CUPTI's buffers filled up, record fewer"
        " steps"
    )


def _message(lost: int, launches: int) -> str:
    if lost == launches:
        return "no launch has a kernel in the trace: the GPU was not recorded"
    have = "has" if lost == 1 else "have"
    return f"{lost:,} of {counted(launches, 'launch')} {have} no kernel in the trace"

"""TRC005: GPU work that the host launched is missing from the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.time.launch_overhead import launches_outside_captures
from traceq.linter import Bad, Evidence, Good, Rule, Seen, Severity, View, option
from traceq.records import dataclass
from traceq.words import counted

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
    graph and so run none, and for a machine with a GPU of which nothing was recorded.

    ## Why is this bad?

    Missing work looks as if the GPU had been idle. Then busy time, idle time and the
    bound of the step are wrong, and so is every saving that depends on them.

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

    # Chosen by judgement: the window cuts off the kernels of a few launches.
    min_share: float = option(
        0.05, "Smaller shares of launches without a kernel are not reported."
    )

    seen = Seen(
        text="""
        TRC005 lost-gpu-work
          1 of 2 launches has no kernel in the trace
          missing  50% of the launches have no kernel
          fix      record with activities=[ProfilerActivity.CPU,
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
        launches = launches_outside_captures(view.runtime[[*_OF_CALLS]])
        lost = int((launches["kernels"] == 0).sum())
        if lost and lost >= self.min_share * launches.height:
            yield self.finding(
                _message(lost, launches.height),
                subject="launches",
                evidence=[
                    Evidence(
                        "missing",
                        value=lost / launches.height,
                        unit="share",
                        note="of the launches have no kernel",
                    )
                ],
                data={"launches": launches.height, "without_kernel": lost},
                advice="record with activities=[ProfilerActivity.CPU,"
                " ProfilerActivity.CUDA] and no other profiler on the GPU; if CUPTI's"
                " buffers filled up, record fewer steps",
            )
        elif not view.trace.facts.gpu and view.trace.devices.height:
            name = view.trace.devices["name"][0] or "a GPU"
            yield self.finding(
                f"the machine has {name}, but none of its work was recorded",
                subject="no GPU work",
                advice="if the program uses the GPU, record with"
                " activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
                severity=Severity.info,
            )


def _message(lost: int, launches: int) -> str:
    if lost == launches:
        return "no launch has a kernel in the trace: the GPU was not recorded"
    have = "has" if lost == 1 else "have"
    return f"{lost:,} of {counted(launches, 'launch')} {have} no kernel in the trace"

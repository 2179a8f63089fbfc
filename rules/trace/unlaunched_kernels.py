"""TRC006: kernels have no launch in the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    counted,
    dataclass,
    kernel_lines,
    option,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding


@dataclass(frozen=True)
class UnlaunchedKernels(Rule):
    """Kernels ran in the steps whose launches are not in the trace.

    ## What it does

    Adds up the GPU time of the steady-state steps that no call in the trace started.
    Work that was launched before the first step and ran into it does not count.

    ## Why is this bad?

    Without its launch a kernel belongs to no operator, no source line and no phase:
    rules that look for causes miss it.

    ## How to fix it

    Record host and GPU together, over the same window, in one file. Driver calls that
    libraries make themselves are recorded since torch 2.1.

    ```diff
    - with profile(activities=[ProfilerActivity.CUDA]) as prof:
    + with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
    ```

    ## When it is wrong

    Tools that shrink traces may drop the calls on purpose.
    """

    code = "TRC006"
    since = "0.1.0"
    see = ("torch.profiler.profile",)
    severity = Severity.info
    needs = frozenset({Need.GPU})
    priced = False

    # Heuristic threshold: the window cuts off the launches of a few kernels.
    min_share: float = option(
        0.05, "Smaller shares of the GPU's time are not reported."
    )

    seen = Seen(
        text="""
        TRC006 unlaunched-kernels
          1 of 2 kernels has no launch in the trace
          time    12.0 µs a step
          share   34% of the GPU's time
          kernel  gemm ×1
          fix     record host and GPU together in one window:
                  activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                    ]
            host    [aten::mm            ]
            host     [cudaLaunchKernel>1]
            gpu 7                [gemm<1               ] [gemm<2    ]
            """,
            finds=("1 of 2 kernels has no launch in the trace",),
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
        """Add up the time of the kernels without a launch."""
        stray = view.kernels.filter(pl.col("launch").is_null())
        lost, total = int(stray["dur"].sum()), int(view.kernels["dur"].sum())
        if stray.height and lost >= self.min_share * total:
            yield self.finding(
                _message(stray.height, view.kernels.height),
                subject="launches",
                evidence=[
                    Evidence("time", value=lost / view.steps, unit="ns", note="a step"),
                    Evidence(
                        "share",
                        value=lost / total if total else 1.0,
                        unit="share",
                        note="of the GPU's time",
                    ),
                    *kernel_lines(view, stray["id"], most=1),
                ],
                data={"kernels": stray.height},
                advice="record host and GPU together in one window:"
                " activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
                kernels=stray["id"],
            )


def _message(stray: int, kernels: int) -> str:
    have = "has" if stray == 1 else "have"
    return f"{stray:,} of {counted(kernels, 'kernel')} {have} no launch in the trace"

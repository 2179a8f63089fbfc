"""TRC006: the GPU did work whose launch is not in the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.lint import Bad, Good, Need, Rule, Severity, View, option
from traceq.words import share, time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding


@dataclass(frozen=True)
class UnlaunchedKernels(Rule):
    """The GPU did work in the steps whose launch is not in the file.

    ## What it does

    Adds up the GPU time of the steady steps that no call in the file started. Work that
    was launched before the first step and ran into it does not count.

    ## Why is this bad?

    Without its launch a kernel belongs to no operator, no line and no phase: rules that
    look for causes do not see it.

    ## How to fix it

    Record the host and the GPU together, over the same window, in one file. Calls of
    the driver by libraries of their own are recorded since torch 2.1.

    ## When it is wrong

    Tools that shrink traces may drop the calls on purpose.
    """

    code = "TRC006"
    since = "0.1.0"
    severity = Severity.info
    needs = frozenset({Need.GPU})
    priced = False

    min_share: float = option(0.05, "Smaller shares of the GPU's time are accepted.")

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                    ]
            host    [aten::mm            ]
            host     [cudaLaunchKernel>1]
            gpu 7                [gemm<1               ] [gemm<2    ]
            """,
            finds=("34% of the GPU's time has no launch in the file",),
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
            names = stray.group_by("name").agg(pl.len(), pl.col("dur").sum())
            top = names.sort("dur", "name", descending=[True, False]).row(0)
            yield self.finding(
                f"{share(lost, total)} of the GPU's time has no launch in the file",
                subject="launches",
                evidence=[
                    ("time", f"{time(lost / view.steps)} a step"),
                    ("kernel", f"{top[0]} ×{top[1]}"),
                ],
                data={"kernels": stray.height},
                advice="record host and GPU together in one window:"
                " activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
                kernels=stray["id"],
            )

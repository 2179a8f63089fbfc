"""TRC005: work that the host gave to the GPU is not in the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time.launches import launches_outside_captures
from traceq.lint import Bad, Good, Rule, Severity, View, option
from traceq.words import share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding


@dataclass(frozen=True)
class LostGpuWork(Rule):
    """Work that the host gave to the GPU is missing in the file.

    ## What it does

    Looks for launches without their kernel, except while a CUDA graph is recorded, when
    there is none, and for a machine with a GPU of which nothing was recorded.

    ## Why is this bad?

    What is missing looks as if the GPU had been idle. Busy time, idle time and what
    bounds a step are then wrong, and so is every cost that depends on them.

    ## How to fix it

    Record the GPU too (``activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]``).
    Let no other profiler hold the GPU at the same time (Nsight, DCGM). If the buffers
    of CUPTI ran full, record fewer steps.

    ## When it is wrong

    Tools that shrink traces may drop kernels on purpose.
    """

    code = "TRC005"
    since = "0.1.0"
    priced = False

    min_share: float = option(0.05, "Fewer launches without a kernel are accepted.")

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                    ]
            host    [aten::mm            ] [aten::mm                 ]
            host     [cudaLaunchKernel>1]   [cudaLaunchKernel>2     ]
            gpu 7                [gemm<1                        ]
            """,
            finds=("1 of 2 launches (50%) have no kernel in the file",),
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
        launches = launches_outside_captures(view.runtime)
        lost = launches.filter(pl.col("kernels") == 0).height
        every = (
            "none of the launches has its kernel in the file: the GPU was not recorded"
        )
        if lost and lost >= self.min_share * launches.height:
            of_all = f"{lost:,} of {launches.height:,} launches"
            part = (
                f"{of_all} ({share(lost, launches.height)}) have no kernel in the file"
            )
            yield self.finding(
                every if lost == launches.height else part,
                subject="launches",
                data={"launches": launches.height, "without_kernel": lost},
                advice="record with activities=[ProfilerActivity.CPU,"
                " ProfilerActivity.CUDA] and no other profiler on the GPU; if CUPTI's"
                " buffers ran full, record fewer steps",
            )
        elif not view.trace.facts.gpu and view.trace.devices.height:
            name = view.trace.devices["name"][0] or "a GPU"
            yield self.finding(
                f"there is {name}, and nothing of what it did was recorded",
                subject="no GPU work",
                advice="if the program uses the GPU, record with"
                " activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
                severity=Severity.info,
            )

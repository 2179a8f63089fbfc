"""SYN002: the program waits for the GPU in every step on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import same_place
from traceq.analysis.time.device_syncs import waits_outside
from traceq.lint import Bad, Good, Need, Rule, View, option
from traceq.words import time, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

_WRITTEN = (
    ("Device", "`torch.cuda.synchronize()`"),
    ("Stream", "`stream.synchronize()`"),
    ("Event", "`event.synchronize()`"),
)


@dataclass(frozen=True)
class ExplicitDeviceSync(Rule):
    """The program itself waits for the GPU in the steps, outside of any operator.

    ## What it does

    Looks for blocking calls (``cudaDeviceSynchronize``, ``cudaStreamSynchronize``,
    ``cudaEventSynchronize``) outside of operators, on a thread that launches work,
    as ``torch.cuda.synchronize()`` makes them. The one with which the profiler itself
    ends is not reported. What goes is the wait: the host runs ahead instead.

    ## Why is this bad?

    While the host waits it launches nothing. When the wait is over the GPU has run
    dry, and stays idle until the host is ahead again.

    ## How to fix it

    Take it out of the loop: PyTorch needs none to be correct. To time steps, record
    ``torch.cuda.Event(enable_timing=True)`` and read them some steps later, or time
    many steps between two waits.

    ## When it is wrong

    In a benchmark that times each step, and where a library holds the host back so that
    it does not run too far ahead, as FSDP does; that costs nothing while the GPU is
    busy.
    """

    code = "SYN002"
    needs = frozenset({Need.GPU, Need.OPS})

    min_wait_us: int = option(10, "Shorter waits are not counted.")

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                                ]
            host    [aten::mm          ]                        [aten::add         ]
            host    [cudaLaunchKernel>1]                        [cudaLaunchKernel>2]
            host                        [cudaDeviceSynchronize]
            gpu 7               [gemm<1             ]                           [a<2]
            """,
            finds=(
                "`torch.cuda.synchronize()` makes the host wait for the GPU"
                " once a step",
            ),
        ),
        Good(
            """
            host   [ProfilerStep#1                                                ]
            host    [aten::mm          ] [aten::add         ]
            host    [cudaLaunchKernel>1] [cudaLaunchKernel>2]
            host                                             [cudaDeviceSynchronize]
            gpu 7               [gemm<1             ]          [a<2               ]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the waits by what was called, and by place."""
        rows = (
            waits_outside(view.trace, view.steady)
            .filter(pl.col("wait") >= self.min_wait_us * 1000)
            .with_columns(
                pl.col("name").cast(pl.String), lost=pl.min_horizontal("wait", "gap")
            )
            .group_by("name", *same_place(), maintain_order=True)
            .agg(
                pl.col("wait", "gap", "lost").sum(),
                pl.col("id"),
                module=pl.col("module").first(),
            )
        )
        for row in rows.iter_rows(named=True):
            written = next(
                (text for part, text in _WRITTEN if part in row["name"]), row["name"]
            )
            each = len(row["id"])
            calls = each / view.steps
            yield self.finding(
                f"{written} makes the host wait for the GPU {times(calls)} a step",
                subject=row["name"],
                place=view.place(row),
                count=calls,
                gpu_ns=row["lost"] / view.steps,
                host_ns=row["lost"] / view.steps,
                evidence=[
                    ("call", row["name"]),
                    ("waits", f"{time(row['wait'] / each)} each"),
                    (
                        "gap",
                        f"{time(row['gap'] / each)} of an idle GPU after each",
                    ),
                ],
                data={
                    "wait_ns": row["wait"] / view.steps,
                    "gap_ns": row["gap"] / view.steps,
                },
                advice="take it out of the loop; to time steps use"
                " torch.cuda.Event(enable_timing=True) and read it some steps later",
                calls=row["id"],
                waits=row["id"],
            )

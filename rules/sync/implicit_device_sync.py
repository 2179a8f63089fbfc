"""SYN001: an operator makes the host wait for the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.lint import Bad, Good, Need, Rule, View, option
from traceq.lint.words import time, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

# What a user writes for the op that waits, and what to write instead.
_WRITTEN = {
    "aten::item": ("`.item()`", "keep the value on the GPU, or read it less often"),
    "aten::is_nonzero": (
        "`if tensor:`",
        "keep the decision on the GPU (torch.where), or make it less often",
    ),
    "aten::nonzero": (
        "`nonzero`, `where(mask)` or a boolean index",
        "use torch.where(mask, a, b) or a fixed size: only the GPU knows how many"
        " elements a mask selects",
    ),
}


@dataclass(frozen=True)
class ImplicitDeviceSync(Rule):
    """An operator makes the host wait for the GPU in the middle of a step.

    ## What it does

    Looks for operators, such as ``aten::item`` or ``aten::nonzero``, under which the
    host calls a blocking CUDA function, or copies to pageable memory, while a step is
    open. A value that is on the CPU already costs nothing and is not reported; nor is
    the wait with which the profiler itself ends.

    ## Why is this bad?

    While the host waits it launches nothing. When the wait is over the GPU has run
    dry, and stays idle until the host is ahead again: one wait is paid twice.

    ## How to fix it

    Keep the value on the device. Log ``loss.detach()`` and call ``.item()`` once every
    hundred steps; replace a boolean index, whose size only the GPU knows, by
    ``torch.where``.

    ## When it is wrong

    A wait at the very end of a step may be there on purpose, to time it. Raise
    ``min-wait-us``, or allow the line.
    """

    code = "SYN001"
    needs = frozenset({Need.GPU, Need.OPS})

    min_wait_us: int = option(10, "Shorter waits are not counted.")

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                    ]
            host    [aten::mm           ]
            host     [cudaLaunchKernel>1]
            host                         [aten::item                 ]
            host                          [cudaStreamSynchronize    ]
            gpu 7                [gemm<1                        ]
            """,
            finds=("`.item()` makes the host wait for the GPU once a step",),
        ),
        Good(
            """
            host   [ProfilerStep#1                                    ]
            host    [aten::mm           ]
            host     [cudaLaunchKernel>1]
            host                         [aten::item]
            gpu 7                [gemm<1                        ]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the blocking calls by the outermost op around them and its place."""
        calls = view.runtime.filter(
            pl.col("call") == "sync",
            pl.col("op").is_not_null(),
            pl.col("dur") >= self.min_wait_us * 1000,
        )
        root = view.roots(pl.col("parent").is_null()).gather(calls["op"])
        waits = (
            calls.with_columns(
                root_name=view.trace.ops["name"].gather(root).cast(pl.String)
            )
            .group_by("root_name", "file", "line", "function", "module")
            .agg(calls=pl.len(), wait=pl.col("dur").sum(), ops=pl.col("op"))
        )
        for row in waits.iter_rows(named=True):
            written, advice = _WRITTEN.get(
                row["root_name"], (row["root_name"], "keep the result on the GPU")
            )
            yield self.finding(
                f"{written} makes the host wait for the GPU"
                f" {times(row['calls'] / view.steps)} a step",
                subject=row["root_name"],
                place=view.place(row),
                count=row["calls"] / view.steps,
                host_ns=row["wait"] / view.steps,
                evidence=[("waits", f"{time(row['wait'] / row['calls'])} each")],
                advice=advice,
                ops=row["ops"],
            )

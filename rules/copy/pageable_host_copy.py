"""CPY003: a copy between host and GPU goes through pageable memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.device import used_gpu
from traceq.analysis.base.ownership import same_place
from traceq.analysis.patterns.transfers import TO_GPU, TO_HOST, direction, pinned_rate
from traceq.intervals import overlap, spans
from traceq.lint import Bad, Good, Need, Rule, Severity, View, inputs, option
from traceq.lint.evidence import dtype, kernel_lines
from traceq.words import counted, shape, size, time, times

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from traceq.lint import Finding

_ADVICE = {
    TO_GPU: "pin it where it is made (DataLoader(pin_memory=True) or"
    " .pin_memory() in the loading thread) and copy with"
    " .to(device, non_blocking=True)",
    TO_HOST: "copy into a pinned buffer that is made once:"
    " buffer.copy_(tensor, non_blocking=True) with"
    " buffer = torch.empty(shape, pin_memory=True), and synchronize only before"
    " reading it",
}
_BATCH = inputs([[512, 1024], [512, 1024], []], ["float", "float", "Scalar"])
_BYTES = {"bytes": 2097152}


@dataclass(frozen=True)
class PageableHostCopy(Rule):
    """A copy between host and GPU goes through pageable memory.

    ## What it does

    Looks for ``Memcpy HtoD (Pageable -> Device)`` and ``DtoH (Device -> Pageable)`` of
    more than ``min-kib``, grouped by the line that asks for them. What pinned memory
    would save on the GPU is estimated from the rate of pinned copies in the same trace,
    or from what PCIe gives this generation of GPUs; what runs beside kernels costs
    nothing there.

    ## Why is this bad?

    The GPU cannot read memory that the system may move. The driver copies it
    piece by piece into a pinned buffer first, which takes several times as long,
    blocks the host, and cannot run beside kernels. ``non_blocking=True`` alone changes
    nothing.

    ## How to fix it

    ``DataLoader(..., pin_memory=True)`` and ``.to(device, non_blocking=True)``. To the
    host: copy into a pinned buffer that is allocated once.

    ## When it is wrong

    Without steps the trace may hold the start of the program, where weights go to the
    GPU once; then it is for information. ROCm does not say which memory was used.
    """

    code = "CPY003"
    needs = frozenset({Need.GPU})

    min_kib: int = option(64, "Smaller copies are not counted.")

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                                              ]
            host   [train.py(9): step                                         ]
            host    [aten::to                           ]
            host     [aten::_to_copy                   ]
            host      [aten::copy_                    ]
            host       [cudaMemcpyAsync>1            ]
            gpu 7          [Memcpy HtoD (Pageable -> Device)<1]
            """,
            finds=(
                "a float32 [512,1024] of 2.00 MiB is copied from pageable memory"
                " to the GPU once a step",
            ),
            args={"aten::copy_": _BATCH, "Memcpy HtoD (Pageable -> Device)": _BYTES},
        ),
        Good(
            """
            host  [ProfilerStep#1                                              ]
            host   [train.py(9): step                                         ]
            host    [aten::to                           ]
            host     [aten::_to_copy                   ]
            host      [aten::copy_                    ]
            host       [cudaMemcpyAsync>1            ]
            gpu 7          [Memcpy HtoD (Pinned -> Device)<1]
            """,
            args={"aten::copy_": _BATCH, "Memcpy HtoD (Pinned -> Device)": _BYTES},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the pageable copies by place and direction."""
        large = view.copies.filter(
            pl.col("part") == "pageable", pl.col("bytes") >= self.min_kib * 1024
        )
        kernels = view.kernels.filter(pl.col("activity") == "kernel")
        hidden = overlap(spans(large), spans(kernels))
        groups = (
            large.with_columns(direction=direction(), alone=pl.col("dur") - hidden)
            .sort("bytes", "ts", descending=[True, False])
            .group_by(*same_place(), "direction", maintain_order=True)
            .agg(
                "id",
                pl.col("op").drop_nulls(),
                pl.col("dims", "dst").first(),
                pl.col("module").cast(pl.String).head(1),
                calls=pl.len(),
                time=pl.col("dur").sum(),
                bytes=pl.col("bytes").sum(),
                alone=pl.col("alone").sum(),
            )
        )
        for row in groups.iter_rows(named=True):
            rate = pinned_rate(view.copies, used_gpu(view.trace), row["direction"])
            saved = max(0.0, row["alone"] - row["bytes"] / rate)
            steps = view.steps
            yield self.finding(
                _message(row, steps),
                subject=row["direction"],
                place=view.place_of_group(row),
                count=row["calls"] / steps,
                gpu_ns=saved / steps,
                host_ns=_host_time(view, row["op"]) / steps,
                severity=Severity.warning if view.trace.steps.height else Severity.info,
                evidence=[
                    *kernel_lines(view, row["id"]),
                    ("rate", f"{row['bytes'] / max(1, row['time']):.3g} GB/s"),
                    ("pinned", f"about {rate:.3g} GB/s: {time(saved / steps)} less"),
                ],
                data={"bytes": row["bytes"] // steps, "direction": row["direction"]},
                advice=_ADVICE[row["direction"]],
                ops=row["op"],
                kernels=row["id"],
            )


def _message(row: dict[str, Any], steps: int) -> str:
    way = "from pageable memory to the GPU"
    if row["direction"] == TO_HOST:
        way = "from the GPU to pageable memory"
    calls = row["calls"] / steps
    if row["calls"] <= steps and row["dims"]:
        what = f"a {dtype(row['dst'])} {shape(row['dims'])}"
        what += f" of {size(row['bytes'] / row['calls'])}"
        return f"{what} is copied {way} {times(calls)} a step"
    many = counted(calls, "tensor")
    verb = "is" if calls == 1 else "are"
    return (
        f"{many} of {size(row['bytes'] / steps)} in all {verb} copied {way} in a step"
    )


def _host_time(view: View, ops: list[int]) -> int:
    """Return how long the calls held the host, with the waits they end in."""
    calls = view.runtime.filter(
        pl.col("op").is_in(ops), pl.col("call").is_in(["copy", "sync"])
    )
    return int(calls["dur"].sum())

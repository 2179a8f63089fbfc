"""SYN001: an operator makes the host wait for the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import outermost_ops, same_place
from traceq.analysis.time.device_syncs import waits_in_ops, written_as
from traceq.lint import Bad, Good, Need, Rule, View, option
from traceq.lint.evidence import module_line
from traceq.words import time, times

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.lint import Finding

_READ = "keep the value on the GPU, and read it once in many steps"
_COPY = (
    "keep the tensor on the GPU, or copy it with non_blocking=True into pinned memory"
    " and read it a step later"
)
_MASK = "only the GPU knows how many elements a mask selects: "
# What a user writes for the op that waits, and what to write instead.
_WRITTEN = {
    "aten::item": ("`.item()`", _READ),
    "aten::_local_scalar_dense": ("`.item()`", _READ),
    "aten::is_nonzero": (
        "`if tensor`",
        "decide on the GPU with torch.where, or read the condition less often",
    ),
    "aten::equal": (
        "`torch.equal`",
        "compare on the GPU, (a == b).all(), and keep it there",
    ),
    "aten::nonzero": (
        "`nonzero`",
        f"{_MASK}use torch.where(mask, a, b), or torch.nonzero_static(mask, size=…)",
    ),
    "aten::where": (
        "`torch.where(mask)`",
        f"{_MASK}use torch.where(mask, a, b), or torch.nonzero_static(mask, size=…)",
    ),
    "aten::index": (
        "a boolean index",
        f"{_MASK}multiply by it, or use torch.where(mask, a, b), instead of x[mask]",
    ),
    "aten::index_put_": (
        "an assignment through a boolean index",
        "use x.masked_fill_(mask, value) or torch.where(mask, value, x)",
    ),
    "aten::masked_select": (
        "`masked_select`",
        f"{_MASK}multiply by the mask, or use torch.where(mask, a, b)",
    ),
    "aten::unique_dim": ("`unique`", "only the GPU knows how many there are: avoid it"),
    "aten::_unique2": ("`unique`", "only the GPU knows how many there are: avoid it"),
    "aten::bincount": (
        "`bincount`",
        "use zeros(n).scatter_add_(0, x, ones) of a known size",
    ),
    "aten::repeat_interleave": (
        "`repeat_interleave`",
        "pass output_size=…, if it is known",
    ),
}
# An op and the one inside it may begin and end together, and then either is outside.
_INNER = {"aten::_local_scalar_dense": "aten::item"}
_TO_HOST = ("`.cpu()`", _COPY)
_TO_GPU = (
    "a copy to the GPU",
    "copy from pinned memory with .to(device, non_blocking=True), or make the tensor on"
    " the GPU",
)
_METHODS = {
    "cpu": _TO_HOST,
    "tolist": ("`.tolist()`", _COPY),
    "numpy": ("`.numpy()`", _COPY),
    "print": ("printing a tensor", "print less often, or after the loop"),
}
# A copy to the GPU is followed by a wait that is short, unless the GPU is behind.
_LONG_US = 50
# Larger ones from pageable memory are CPY003's, which counts their waits as well.
_LARGE_BYTES = 64 * 1024


@dataclass(frozen=True)
class ImplicitDeviceSync(Rule):
    """An operator makes the host wait for the GPU in the middle of a step.

    ## What it does

    Looks for operators, such as ``aten::item`` or ``aten::nonzero``, under which the
    host calls a blocking function of CUDA or HIP, or copies to pageable memory, while a
    step is open. A value that is on the CPU already costs nothing and is not reported;
    nor is the wait with which the profiler itself ends, nor those of the allocator, of
    compiling, and of recording CUDA graphs. Large copies from pageable memory to the
    GPU are CPY003's, with their waits. What goes is the wait: the host runs ahead
    instead, and the GPU's next work is launched while it is still busy.

    ## Why is this bad?

    While the host waits it launches nothing. When the wait is over the GPU has run
    dry, and stays idle until the host is ahead again.

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

    min_wait_us: int = option(5, "Shorter waits are not counted.")

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                              ]
            host    [aten::mm           ]                            [aten::add  ]
            host     [cudaLaunchKernel>1]
            host                         [aten::item                ]
            host                          [cudaStreamSynchronize   ]
            gpu 7                [gemm<1                        ]           [add]
            """,
            finds=("`.item()` makes the host wait for the GPU once a step",),
        ),
        Good(
            """
            host   [ProfilerStep#1                                              ]
            host    [aten::mm           ]                            [aten::add  ]
            host     [cudaLaunchKernel>1]
            host                         [aten::item                ]
            gpu 7                [gemm<1                        ]           [add]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the waits by the op that the user called, and by place."""
        large = view.copies.filter(
            pl.col("part") == "pageable", pl.col("bytes") >= _LARGE_BYTES
        )
        to_gpu = pl.col("copies").eq_missing("to GPU")
        named = to_gpu & pl.col("op").is_in(large["op"].drop_nulls().implode())
        waits = waits_in_ops(view.trace, view.steady).filter(
            pl.col("wait") >= self.min_wait_us * 1000,
            ~to_gpu | (pl.col("wait") >= _LONG_US * 1000),
            ~named,
        )
        called = outermost_ops(view.trace, tuple(_WRITTEN)).gather(waits["op"])
        rows = (
            waits.with_columns(
                cause=view.trace.ops["name"]
                .gather(called.fill_null(waits["op"]))
                .cast(pl.String)
                .replace(_INNER),
                method=written_as(view.trace, waits),
                lost=pl.min_horizontal("wait", "gap"),
            )
            .group_by("cause", "method", "copies", *same_place(), maintain_order=True)
            .agg(
                pl.col("wait", "gap", "lost").sum(),
                calls=pl.len(),
                modules=pl.col("module").cast(pl.String).unique().sort(),
                module=pl.col("module").first(),
                ops="op",
            )
        )
        for row in rows.iter_rows(named=True):
            written, advice = _words(row)
            calls = row["calls"] / view.steps
            yield self.finding(
                f"{written} makes the host wait for the GPU {times(calls)} a step",
                subject=row["cause"],
                place=view.place(row),
                count=calls,
                gpu_ns=row["lost"] / view.steps,
                host_ns=row["lost"] / view.steps,
                evidence=[
                    ("op", row["cause"]),
                    ("waits", f"{time(row['wait'] / row['calls'])} each"),
                    (
                        "gap",
                        f"{time(row['gap'] / row['calls'])} of an idle GPU after each",
                    ),
                    *module_line(row["modules"]),
                ],
                data={
                    "wait_ns": row["wait"] / view.steps,
                    "gap_ns": row["gap"] / view.steps,
                },
                advice=advice,
                ops=row["ops"],
                waits=view.runtime.filter(pl.col("op").is_in(row["ops"]))["id"],
            )


def _words(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return how the wait is written in a program, and what to write instead."""
    if row["method"] in _METHODS:
        return _METHODS[row["method"]]
    if row["cause"] in _WRITTEN:
        return _WRITTEN[row["cause"]]
    if row["copies"]:
        return _TO_HOST if row["copies"] == "to host" else _TO_GPU
    return row["cause"], "keep the result on the GPU"

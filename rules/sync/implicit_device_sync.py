"""SYN001: an operator syncs with the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import SHORT_OP_SYNC_US
from traceq.analysis.base.ownership import outermost_ops
from traceq.analysis.time.device_syncs import syncs_in_ops, written_as
from traceq.analysis.time.serving import token_syncs
from traceq.linter import Bad, Evidence, Good, Need, Seen, View, option
from traceq.records import dataclass

from ._shared import DeviceSync
from ._written import INNER, WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_COPY = (
    "keep the tensor on the GPU, or copy it into pinned memory with non_blocking=True"
    " and read it a step later"
)
_TO_HOST = ("`.cpu()`", _COPY)
_TO_GPU = (
    "a copy to the GPU",
    "copy from pinned memory with .to(device, non_blocking=True), or create the tensor"
    " on the GPU",
)
_METHODS = {
    "cpu": _TO_HOST,
    "tolist": ("`.tolist()`", _COPY),
    "numpy": ("`.numpy()`", _COPY),
    "print": ("printing a tensor", "print less often, or after the loop"),
}


@dataclass(frozen=True)
class ImplicitDeviceSync(DeviceSync):
    """An operator syncs with the GPU in the middle of a step, and the host waits.

    ## What it does

    Looks for operators, such as ``aten::item`` or ``aten::nonzero``, under which the
    host calls a blocking function of CUDA or HIP, or copies to pageable memory, within
    a step. Reading a value that is already on the CPU costs nothing and is not
    reported. The profiler's own sync at the end, and those of the allocator, of
    compilation and of CUDA graph capture, are not reported either. Large copies from
    pageable memory to the GPU, with their waits, are left to CPY003, and waits for each
    token of a decode loop to SRV002 and SRV003. The fix removes
    the wait: the host runs ahead, and launches the next work while the GPU is busy.

    If a library waits on behalf of the program, the finding names its function; for
    some that have a switch (GradScaler, ``clip_grad_norm_``, the Trainer of
    transformers, distributions) it names the switch. Where the switch turns a check
    off, the operators that compute what is checked go too, and count as saved.

    Where little is launched between two waits, the second waits instead if only the
    first goes. The saving is then that of removing both, and the finding names the
    other place.

    ## Why is this bad?

    While the host waits, it launches nothing. After the wait the GPU has run out of
    work, and it stays idle until the host is ahead again.

    ## How to fix it

    Keep the value on the GPU. Log ``loss.detach()`` and call ``.item()`` once every
    hundred steps. Replace a boolean index, whose size only the GPU knows, with
    ``torch.where``.

    ```diff
    - log(loss.item())
    + if step % 100 == 0:
    +     log(loss.item())
    ```

    ## When it is wrong

    A wait at the very end of a step may be intentional, to time it. Raise
    ``min-wait-us``, or allow the line.

    ## Measured

    On an H200, in ms a step. All gradient norms asked for at once:
    ``gradient_norms_logged`` 21.7 → 18.7. Without ``.item()``, in steps that are
    host-bound anyway: ``asked_every_layer`` 3.71 → 3.65, ``graphs_pooled`` 7.58 → 7.39.
    With validate_args=False: minibatches of PPO 23.2 → 19.7, a step of SAC 13.5 → 12.7,
    a world model 81.3 → 66.5, a sequential VAE 61.6 → 55.7. One check a step less, by
    error_if_nonfinite=False or is_causal=True: 11.7 → 11.6 and 11.7 → 11.4.
    """

    code = "SYN001"
    several_fixes = True
    since = "0.1.0"
    see = (
        "torch.where",
        "torch.nonzero_static",
        "torch.Tensor.to",
        "torch.cuda.set_sync_debug_mode",
    )
    needs = frozenset({Need.GPU, Need.OPS})

    min_wait_us: int = option(
        SHORT_OP_SYNC_US, "Waits shorter than this are not counted."
    )

    seen = Seen(
        of="fixtures/twins/optimizer_loop_sync",
        text="""
        SYN001 implicit-device-sync  saves 88.5 µs/step (1%), 79.1 µs to 97.9 µs
          `.item()` makes the host wait for the GPU once a step
          in     step (dev_cases.py:65)
          op     aten::item
          waits  10.7 µs each
          idle   117 µs on the GPU after each
          fix    keep the value on the GPU, and read it only once in many steps
        """,
    )

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
        """Group the waits by the op that the program calls, and by place."""
        waits = syncs_in_ops(view.trace, view.steady).filter(
            pl.col("wait") >= self.min_wait_us * 1000,
            ~pl.col("id").is_in(token_syncs(view.trace).implode()),
        )
        if not waits.height:
            return
        called = outermost_ops(view.trace, tuple(WRITTEN)).gather(waits["op"])
        causes = view.trace.ops["name"].gather(called.fill_null(waits["op"]))
        waits = waits.with_columns(
            cause=causes.cast(pl.String).replace(INNER),
            method=written_as(view.trace, waits),
        )
        for row in self._by_place(view, waits, "cause", "method", "copies"):
            cause = Evidence("op", row["cause"])
            yield self._finding(view, row, cause, *_written(row))


def _written(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return how the wait is written in a program, and what to write instead."""
    if row["method"] in _METHODS:
        return _METHODS[row["method"]]
    if row["cause"] in WRITTEN:
        return WRITTEN[row["cause"]]
    if row["copies"]:
        return _TO_HOST if row["copies"] == "to host" else _TO_GPU
    return row["cause"], "keep the result on the GPU"

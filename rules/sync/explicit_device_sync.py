"""SYN002: the program itself syncs with the GPU in the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.time import device_syncs, serving
from traceq.linter import Bad, Evidence, Good, Need, Seen, View, dataclass, option

from ._shared import DeviceSync
from ._sync_chains import explicit_places
from ._written import explicit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding


@dataclass(frozen=True)
class ExplicitDeviceSync(DeviceSync):
    """The program itself syncs with the GPU inside a step, outside of any operator.

    ## What it does

    Looks for blocking calls (``cudaDeviceSynchronize``, ``cudaStreamSynchronize``,
    ``cudaEventSynchronize``) outside of operators, on a thread that launches work. This
    is what ``torch.cuda.synchronize()`` looks like in a trace. The profiler's own sync
    at the end is not reported. The fix removes the wait: the host runs ahead instead.

    ## Why is this bad?

    While the host waits, it launches nothing. After the wait the GPU has run out of
    work, and it stays idle until the host is ahead again.

    ## How to fix it

    Take the sync out of the loop: PyTorch does not need it to be correct. To time
    steps, record ``torch.cuda.Event(enable_timing=True)`` and read it a few steps
    later, or time many steps between two syncs. Streams wait for each other on the GPU
    (``wait_stream``, ``wait_event``), without the host.

    ```diff
      for step, batch in enumerate(loader):
          train(batch)
    -     torch.cuda.synchronize()
    -     times.append(time.perf_counter())
    +     times.append(torch.cuda.Event(enable_timing=True))
    +     times[-1].record()  # read a few steps later
    ```

    ## When it is wrong

    In a benchmark that times each step. Some libraries, such as FSDP, also sync to keep
    the host from running too far ahead; that costs nothing while the GPU is busy.
    """

    code = "SYN002"
    effort = "edit"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.cuda.synchronize", "torch.cuda.Event")
    needs = frozenset({Need.GPU, Need.OPS})

    min_wait_us: int = option(
        assumptions.SHORT_PROGRAM_SYNC_US, "Waits shorter than this are not counted."
    )

    seen = Seen(
        of="tests/data/compiled/break",
        text="""
        SYN002 explicit-device-sync
          `torch.cuda.synchronize()` makes the host wait for the GPU once a step
          call   cudaDeviceSynchronize
          waits  32.5 µs each, as recorded
          idle   0 ns on the GPU after each, as recorded
          fix    take it out of the loop; to time steps, record
                 torch.cuda.Event(enable_timing=True) and read it a few steps later
        """,
    )

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
        """Group the waits by the function that is called, and by place."""
        waits = (
            device_syncs.syncs_outside_ops(view.trace, view.steady)
            .filter(
                pl.col("wait") >= self.min_wait_us * 1000,
                ~pl.col("id").is_in(serving.token_syncs(view.trace).implode()),
            )
            .with_columns(pl.col("name").cast(pl.String))
        )
        of_place = explicit_places(view)
        for row in self._by_place(view, waits, "name"):
            name, told = row["name"], {**row, "of_place": of_place}
            yield self._finding(view, told, Evidence("call", name), explicit(name))

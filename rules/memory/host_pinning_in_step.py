"""MEM002: host memory is pinned, or unpinned, in steady steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import Bad, Good, Seen, View, dataclass, module_line
from traceq.model import names

from ._driver_allocations import driver_calls
from ._driver_calls import DriverCallRule, in_most_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_BY_OP = {
    "aten::pin_memory": "`.pin_memory()`",
    "aten::_pin_memory": "`.pin_memory()`",
}


@dataclass(frozen=True)
class HostPinningInStep(DriverCallRule):
    """Host memory is pinned again in most steps.

    ## What it does

    Looks for ``cudaHostAlloc``, ``cudaHostRegister`` and their opposites in more than
    half of the steady steps, grouped by the line they come from.

    ## Why is this bad?

    To pin memory, the operating system locks every page of it: pinning a gigabyte takes
    as long as copying it several times, and the driver blocks other calls meanwhile. It
    pays off for memory that is used often, never for memory that is used once.

    ## How to fix it

    Pin one buffer before the loop and copy each batch into it, or let the DataLoader
    do it (``pin_memory=True``) with batches of one size: torch caches pinned memory and
    reuses it for what fits. Do not call ``.pin_memory()`` on every batch.

    ```diff
    - for batch in DataLoader(data, batch_size=64):
    -     x = batch.pin_memory().to("cuda", non_blocking=True)
    + for batch in DataLoader(data, batch_size=64, pin_memory=True):
    +     x = batch.to("cuda", non_blocking=True)
    ```

    ## When it is wrong

    In the first steps of a run the cache of pinned memory still fills: record later
    ones. Calls on the DataLoader's own thread cost the step less than they take.
    """

    code = "MEM002"
    since = "0.1.0"
    see = ("torch.Tensor.pin_memory", "torch.utils.data.DataLoader")
    advice = (
        "pin one buffer before the loop and copy_() each batch into it, or let"
        " DataLoader(pin_memory=True) do it with batches of one size; then copy to the"
        " GPU with non_blocking=True"
    )

    seen = Seen(
        text="""
        MEM002 host-pinning-in-step  saves 7.34 µs/step (22%), 5.13 µs to 17.0 µs
          `.pin_memory()` calls cudaHostAlloc once a step
          calls  17.0 µs a step on the host, as recorded
          op     aten::pin_memory ×1
          fix    pin one buffer before the loop and copy_() each batch into it, or
                 let DataLoader(pin_memory=True) do it with batches of one size;
                 then copy to the GPU with non_blocking=True
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                 ] [ProfilerStep#2                 ]
            host    [aten::pin_memory ]               [aten::pin_memory ]
            host     [cudaHostAlloc  ]                 [cudaHostAlloc  ]
            """,
            finds=("`.pin_memory()` calls cudaHostAlloc once a step",),
        ),
        Good(
            """
            host   [ProfilerStep#1                 ] [ProfilerStep#2                 ]
            host    [aten::pin_memory ]               [aten::pin_memory ]
            host     [cudaHostAlloc  ]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the calls by op and line, without those that happen now and then."""
        calls = driver_calls(view.trace, view.runtime, names.HOST_PIN, names.HOST_UNPIN)
        # A thread that launches nothing, as the DataLoader's, does not hold up a step.
        launching = view.ops["thread"].unique().implode()
        for group in calls.partition_by("op_name", "file", "line", "function"):
            if in_most_steps(view, group):
                first = group.sort("ts").row(0, named=True)
                op = first["op_name"] or ""
                modules = group["module"].drop_nulls().cast(pl.String).unique().sort()
                yield self.driver_finding(
                    view,
                    group,
                    _BY_OP.get(op, op or "the program"),
                    subject=op or "pinning",
                    place=view.place(first),
                    blocking=group.filter(pl.col("thread").is_in(launching)),
                    evidence=module_line(modules.to_list()),
                    data={"op": op},
                )

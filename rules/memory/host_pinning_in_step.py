"""MEM002: host memory is pinned, or unpinned, in the steps themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.gpu_idle import busy_spans
from traceq.analysis.patterns.driver_allocations import calls_named
from traceq.intervals import disjoint, overlap, spans
from traceq.lint import Bad, Good, Need, Rule, Severity, View
from traceq.model.names import HOST_PIN, HOST_UNPIN
from traceq.words import listed, time, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

_BY_OP = {
    "aten::pin_memory": "`.pin_memory()`",
    "aten::_pin_memory": "`.pin_memory()`",
}


@dataclass(frozen=True)
class HostPinningInStep(Rule):
    """The program pins host memory anew in most steps.

    ## What it does

    Looks for ``cudaHostAlloc``, ``cudaHostRegister`` and their opposites in more than
    half of the steady steps, grouped by the line they come from.

    ## Why is this bad?

    To pin memory, the operating system fixes every page of it: a gigabyte takes about
    as long as copying it several times, and the driver lets no other call pass
    meanwhile. It pays when the same memory is used often, never when it is used once.

    ## How to fix it

    Pin one buffer before the loop and copy each batch into it, or let the DataLoader
    do so (``pin_memory=True``), with batches of one size: torch keeps pinned memory and
    uses it again for what fits. Do not call ``.pin_memory()`` on each batch by hand.

    ## When it is wrong

    In the first steps of a run the buffers are still being collected: record later
    ones. Calls on the DataLoader's own thread cost the step less than they take.
    """

    code = "MEM002"
    since = "0.1.0"
    needs = frozenset({Need.STEPS})

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
        calls = calls_named(view.trace, view.runtime, HOST_PIN, HOST_UNPIN)
        groups = calls.partition_by("op_name", "file", "line", "function")
        for group in groups:
            if 2 * group["step"].n_unique() > view.steps:
                yield self._said(view, group)

    def _said(self, view: View, calls: pl.DataFrame) -> Finding:
        parts = disjoint(spans(calls))
        took = int((parts["end"] - parts["start"]).sum())
        busy = int(overlap(parts, busy_spans(view.trace.kernels)).sum())
        # On a thread that launches nothing, as the DataLoader's, the step goes on.
        launching = view.ops["thread"].unique().implode()
        waits = disjoint(spans(calls.filter(pl.col("thread").is_in(launching))))
        first = calls.sort("ts").row(0, named=True)
        op = first["op_name"] or ""
        names = calls.group_by("name").len().sort("len", "name", descending=True)
        said = [
            f"{name} {times(count / view.steps)}" for name, count in names.iter_rows()
        ]
        return self.finding(
            f"{_BY_OP.get(op, op or 'the program')} calls {' and '.join(said)} a step",
            subject=op or "pinning",
            place=view.place(first),
            count=calls.height / view.steps,
            host_ns=int((waits["end"] - waits["start"]).sum()) / view.steps,
            gpu_ns=(took - busy) / view.steps,
            evidence=[
                ("calls", f"{time(took / view.steps)} a step"),
                ("op", op),
                ("modules", _modules(calls)),
            ],
            data={"op": op, "calls": dict(names.iter_rows())},
            advice="pin one buffer before the loop and copy_() each batch into it, or"
            " let DataLoader(pin_memory=True) do it with batches of one size; then copy"
            " to the GPU with non_blocking=True",
            severity=None if view.steps > 1 else Severity.info,
            ops=calls["op"].drop_nulls(),
            spans=waits,
        )


def _modules(calls: pl.DataFrame) -> str:
    return listed(sorted(calls["module"].drop_nulls().cast(pl.String).unique()))

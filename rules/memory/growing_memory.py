"""MEM003: a memory leak, which every step makes larger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import callers
from traceq.linter import (
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    counted,
    dataclass,
    option,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, SnapshotView

_MOST_LINES = 4
_ONE = (
    "find what keeps a reference after the step: a list or dict that it is appended to,"
    " an attribute, a hook; keep .item() or .detach().cpu() instead, or clear the"
    " container"
)
_GRAPH = (
    "with this many lines leaking, an autograd graph is kept alive: a loss or output"
    " that is summed up or appended without .detach(); keep .item() or .detach()"
)
_DIGITS = 2
# An autograd graph keeps what many lines saved for the backward.
_LINES_OF_GRAPH = 4


@dataclass(frozen=True)
class GrowingMemory(Rule):
    """Memory leak: every step leaves allocations that are never freed.

    ## What it does

    Looks for allocations that one line makes in at least half of the steps and that are
    still live at the end, and checks that the lowest point of allocated memory rises
    with every step.

    ## Why is this bad?

    The program runs out of memory sooner or later, however much there is. Where the
    trace tells how much the GPU has, the finding says after about how many steps: what
    is left above the highest point of the recorded steps, divided by what each leaks.

    ## How to fix it

    Something outside of the step holds the tensors: a list of outputs or losses, a
    cache, a hook, an exception's traceback. Keep numbers (``.item()``) or
    ``.detach().cpu()`` copies. A loss that is kept without ``.detach()`` keeps its
    whole autograd graph alive, with all activations.

    ```diff
    - losses.append(loss)
    + losses.append(loss.detach())
    ```

    ## When it is wrong

    A cache that is still being filled, as in the first steps of a run, stops growing:
    record later steps.
    """

    code = "MEM003"
    since = "0.1.0"
    see = ("torch.Tensor.detach", "torch.Tensor.item")
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY, Need.MEMORY_STEPS})
    severity = Severity.error
    priced = False

    min_kib: int = option(1024, "A step that leaks less than this is not reported.")

    seen = Seen(
        of="fixtures/twins/memory_leak",
        text="""
        MEM003 growing-memory (error)  32.0 MiB (2%)
          each step leaks 32.0 MiB from 1 line; out of memory after about 4,400
            steps
          at      dev_cases.py:168 step in Linear_17
          leaked  64.0 MiB in 4 allocations of 2 steps
          from    dev_cases.py:207 main, dev_cases.py:217 <module>
          op      aten::linear, aten::randn
          fix     find what keeps a reference after the step: a list or dict that it
                  is appended to, an attribute, a hook; keep .item() or
                  .detach().cpu() instead, or clear the container
        """,
    )

    examples = (
        Bad(
            "",
            history="""
            region             [ProfilerStep#1][ProfilerStep#2][ProfilerStep#3]
            weights           <500M
            train.py:9 step      [64M    ]       [64M    ]       [64M    ]
            train.py:12 step              [16M
            train.py:12 step                              [16M
            train.py:12 step                                             [16M
            """,
            finds=("each step leaks 16.0 MiB from 1 line",),
        ),
        Good(
            "",
            history="""
            region             [ProfilerStep#1][ProfilerStep#2][ProfilerStep#3]
            weights           <500M
            loaded ahead      <16M  ]
            train.py:9 step      [64M    ]       [64M    ]       [64M    ]
            train.py:12 step              [16M     ]
            train.py:12 step                              [16M     ]
            train.py:12 step                                             [16M
            """,
        ),
    )

    def check_snapshot(self, view: SnapshotView) -> Iterator[Finding]:
        """Make one finding of a device: what is kept may hold what others made."""
        from traceq.analysis.memory.leaks import memory_leaks

        leaks = memory_leaks(view)
        for (device,), group in leaks.group_by("device", maintain_order=True):
            lines = (
                group.group_by(callers.PLACE, maintain_order=True)
                .agg(
                    pl.col("chain").first(),
                    pl.col("op").cast(pl.String).drop_nulls().unique().sort(),
                    pl.col("per_step", "leaked", "count").sum(),
                    pl.col("steps").max(),
                    largest=pl.col("per_step").first(),
                )
                .sort("per_step", descending=True, maintain_order=True)
            )
            leaked = int(lines["per_step"].sum())
            if leaked >= self.min_kib << 10:
                yield self._finding(view, lines, leaked, int(str(device)))

    def _finding(
        self, view: SnapshotView, lines: pl.DataFrame, leaked: int, device: int
    ) -> Finding:
        first, *others = lines.head(_MOST_LINES).to_dicts()
        source = f" from {counted(lines.height, 'line')}" if first["file"] else ""
        allocations = counted(int(lines["count"].sum()), "allocation")
        steps = counted(int(str(lines["steps"].max())), "step")
        left = _steps_left(view, leaked, device)
        until = f"; out of memory after about {left:,} steps" if left else ""
        return self.finding(
            f"each step leaks {size(leaked)}{source}{until}",
            subject="leak",
            place=view.place(first, first["largest"]),
            cost_bytes=leaked,
            evidence=[
                Evidence(
                    "leaked",
                    value=int(lines["leaked"].sum()),
                    unit="bytes",
                    note=f"in {allocations} of {steps}",
                ),
                *view.lines(first, first["largest"]),
                *(
                    Evidence(
                        "also",
                        f"{row['file']}:{row['line']} {row['function']}:",
                        row["per_step"],
                        "bytes",
                        note="a step",
                    )
                    for row in others
                    if row["file"]
                ),
            ],
            data={
                "device": device,
                "leaked_bytes": leaked,
                "lines": lines.height,
                "steps": view.steps,
            },
            advice=_GRAPH if lines.height >= _LINES_OF_GRAPH else _ONE,
        )


def _steps_left(view: SnapshotView, leaked: int, device: int) -> int:
    """Return after how many more steps the GPU is full, to two digits; 0 if unknown."""
    if view.trace is None:
        return 0
    capacity = view.trace.devices.filter(pl.col("device") == device)[
        "memory"
    ].drop_nulls()
    highest = view.steps_of_curve.filter(pl.col("device") == device)["highest"].max()
    if not len(capacity) or not isinstance(highest, int):
        return 0
    steps = max(0, capacity[0] - highest) // leaked
    unit = 10 ** max(0, len(str(steps)) - _DIGITS)
    return steps // unit * unit

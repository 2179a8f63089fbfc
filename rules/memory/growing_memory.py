"""MEM003: each step leaves memory behind that no later step gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.memory.growth import memory_growth
from traceq.lint import Bad, Good, Need, Rule, option
from traceq.words import counted, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding, SnapshotView

_MOST_LINES = 4
_PLACE = ("file", "line", "function")
_ONE = (
    "look for what keeps a reference to it after the step: a list or dict that it is"
    " appended to, an attribute, a hook; keep .item() or .detach().cpu() instead, or"
    " clear the container"
)
_GRAPH = (
    "so many lines leave something that a graph of autograd is kept: a loss or output"
    " that is summed up or appended without .detach(); keep .item() or .detach()"
)
# A graph keeps what many lines made for the backward pass.
_LINES_OF_GRAPH = 4


@dataclass(frozen=True)
class GrowingMemory(Rule):
    """Each step leaves memory behind that no later step gives back.

    ## What it does

    Looks for allocations that the same line makes in at least half of the steps and
    that are still there at the end, and checks that the least that is allocated grows
    with every step.

    ## Why is this bad?

    The program runs out of memory after some time, however much there is.

    ## How to fix it

    Something outside of the step holds the tensors: a list of outputs or losses, a
    cache, a hook, an exception's traceback. Keep numbers (``.item()``) or
    ``.detach().cpu()`` copies. A loss that is kept without
    ``.detach()`` keeps all activations with it.

    ## When it is wrong

    A cache that is still being filled, as in the first steps of a run, stops to grow:
    record later steps.
    """

    code = "MEM003"
    since = "0.1.0"
    needs = frozenset({Need.SNAPSHOT, Need.HISTORY, Need.MEMORY_STEPS})
    priced = False

    min_kib: int = option(1024, "Less than this in a step is not reported.")

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
            finds=("each step leaves 16.0 MiB that none gives back, made by 1 line",),
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
        growth = memory_growth(view.allocations, view.curve, view.phases)
        for (device,), group in growth.group_by("device", maintain_order=True):
            lines = (
                group.group_by(_PLACE, maintain_order=True)
                .agg(
                    pl.col("chain").first(),
                    pl.col("op").cast(pl.String).drop_nulls().unique().sort(),
                    pl.col("grown", "left", "count").sum(),
                    pl.col("steps").max(),
                    each=pl.col("grown").first(),
                )
                .sort("grown", descending=True, maintain_order=True)
            )
            grown = int(lines["grown"].sum())
            if grown >= self.min_kib << 10:
                yield self._finding(view, lines, grown, int(str(device)))

    def _finding(
        self, view: SnapshotView, lines: pl.DataFrame, grown: int, device: int
    ) -> Finding:
        first = lines.row(0, named=True)
        others = lines[1:_MOST_LINES].iter_rows(named=True)
        made = f", made by {counted(lines.height, 'line')}" if first["file"] else ""
        return self.finding(
            f"each step leaves {size(grown)} that none gives back{made}",
            subject="growth",
            place=view.place(first, first["each"]),
            cost_bytes=grown,
            evidence=[
                (
                    "left",
                    f"{size(int(lines['left'].sum()))} in"
                    f" {counted(int(lines['count'].sum()), 'allocation')} of"
                    f" {counted(int(str(lines['steps'].max())), 'step')}",
                ),
                *view.lines(first, first["each"]),
                *(
                    (
                        "also",
                        f"{row['file']}:{row['line']} {row['function']}:"
                        f" {size(row['grown'])} a step",
                    )
                    for row in others
                    if row["file"]
                ),
            ],
            data={
                "device": device,
                "grown_bytes": grown,
                "lines": lines.height,
                "steps": view.steps,
            },
            advice=_GRAPH if lines.height >= _LINES_OF_GRAPH else _ONE,
        )

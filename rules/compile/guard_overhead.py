"""JIT005: finding the compiled code takes a good part of the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.compilation import LOOKUP
from traceq.lint import Bad, Good, Need, Rule, View, option
from traceq.words import share, time, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding


@dataclass(frozen=True)
class GuardOverhead(Rule):
    """Checking the guards of compiled code takes a good part of a host-bound step.

    ## What it does

    Adds up ``TorchDynamo Cache Lookup``, the time in which torch looks for a compiled
    version whose guards hold, in steps that wait for the host.

    ## Why is this bad?

    Guards are checked at every call of every compiled function, before anything is
    launched. A model compiled block by block, or one with many parameters and
    attributes, checks thousands of them in each step.

    ## How to fix it

    Compile the whole model instead of its parts, so that it is looked up once. If
    nothing that guards watch changes any more, run the loop under
    ``torch.compiler.set_stance(skip_guard_eval_unsafe=True)`` (torch 2.6), or leave
    guards out with ``torch.compile(options={"guard_filter_fn": ...})``.

    ## When it is wrong

    Where the steps compile as well: a lookup that fails is part of that.
    """

    code = "JIT005"
    needs = frozenset({Need.GPU, Need.OPS})

    min_share: float = option(0.03, "Smaller parts of the step are not reported.")

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                            ]
            host    [TorchDynamo Cache Lookup][Torch-Compiled Region: 0/0    ]
            host                               [cudaLaunchKernel>1]
            gpu 7                                         [triton_poi_0<1]
            """,
            finds=("guards of compiled code are checked once a step",),
        ),
        Good(
            """
            host   [ProfilerStep#1                                            ]
            host    [TorchDynamo Cache Lookup][Torch-Compiled Region: 0/0    ]
            host                               [cudaLaunchKernel>1]
            gpu 7  [triton_poi_9                                          ]
            gpu 7                                                          [a<1]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Add up the lookups of a step by where the compiled code is called."""
        if view.bound.by != "host":
            return
        found = view.ops.filter(pl.col("name") == LOOKUP)
        total = int(found["dur"].sum()) / view.steps
        if not found.height or total < self.min_share * view.steady.time / view.steps:
            return
        calls = found.height / view.steps
        place = (
            found.group_by("file", "line", "function", "module")
            .agg(pl.col("dur").sum())
            .sort("dur", "file", "line", "function", "module", descending=True)
            .row(0, named=True)
        )
        yield self.finding(
            f"guards of compiled code are checked {times(calls)} a step",
            subject=LOOKUP,
            place=view.place(place),
            count=calls,
            host_ns=total,
            evidence=[
                ("lookup", f"{time(total / calls)} each"),
                ("share", f"{share(total * view.steps, view.steady.time)} of the step"),
            ],
            advice=_advice(calls),
            ops=found["id"],
        )


def _advice(calls: float) -> str:
    unsafe = (
        "if nothing changes any more, run the loop under"
        " torch.compiler.set_stance(skip_guard_eval_unsafe=True)"
    )
    if calls > 1:
        return f"compile the whole model instead of {calls:.0f} parts; {unsafe}"
    return unsafe

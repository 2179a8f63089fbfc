"""JIT005: checking the guards of compiled code takes a large share of the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import compilation
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    dataclass,
    named_like,
    often,
    option,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_PLACE = ("file", "line", "function", "module")


@dataclass(frozen=True)
class GuardOverhead(Rule):
    """Checking the guards of compiled code takes a large share of a host-bound step.

    ## What it does

    Adds up ``TorchDynamo Cache Lookup`` in host-bound steps: the time in which torch
    looks for a compiled version whose guards hold.

    ## Why is this bad?

    Guards are checked at every call of every compiled function, before anything is
    launched. A model compiled block by block, or one with many parameters and
    attributes, checks thousands of them in each step.

    ## How to fix it

    Compile the whole model instead of its parts, so that there is one lookup. If
    nothing that guards watch changes any more, run the loop under
    ``torch.compiler.set_stance(skip_guard_eval_unsafe=True)`` (torch 2.6), or drop
    guards with ``torch.compile(options={"guard_filter_fn": ...})``. For one model that
    a step calls often, as once per token, only the latter help.

    ```diff
    - for layer in model.layers:
    -     layer.compile()
    + model.compile()
    ```

    ## When it is wrong

    If the steps also compile: a lookup that fails is part of the compilation.
    """

    code = "JIT005"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.compiler.set_stance", "torch.compile")
    needs = frozenset({Need.GPU, Need.OPS})

    # Heuristic threshold, well above the one lookup of a model compiled as a whole, of
    # up to 0.7% of a step in fixtures/graph_replay and its twins.
    min_share: float = option(0.03, "Smaller shares of the step are not reported.")

    seen = Seen(
        of="tests/data/serving/generate_static_compiled.json.gz",
        text="""
        JIT005 guard-overhead  saves 149 µs/step (7%), 96.1 µs to 239 µs
          guards of compiled code are checked once a step
          lookup  239 µs each, as recorded
          share   7% of the step as recorded
          fix     if nothing that guards watch changes any more, run the loop under
                  torch.compiler.set_stance(skip_guard_eval_unsafe=True)
        """,
    )

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
        # The GPU works far longer than the host needs for the guards.
        Good(
            f"""
            host   [ProfilerStep#1                                            ]
            host    [TorchDynamo Cache Lookup][Torch-Compiled Region: 0/0    ]
            host                               [cudaLaunchKernel>1]
            gpu 7                                         [triton_poi_0<1{" " * 90}]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Add up the lookups of a step by where the compiled code is called."""
        if view.bound.by != "host":
            return
        lookups = view.ops.filter(pl.col("name") == compilation.LOOKUP)
        total = int(lookups["dur"].sum())
        if not lookups.height or total < self.min_share * view.steady.time:
            return
        calls, parts = lookups.height / view.steps, _parts(view)
        code = "one compiled part" if parts == 1 and calls > 1 else "compiled code"
        longest = (
            lookups.group_by(_PLACE)
            .agg(pl.col("dur").sum())
            .sort("dur", *_PLACE, descending=True)
            .row(0, named=True)
        )
        yield self.finding(
            f"guards of {code} are checked {often(calls)}",
            subject=compilation.LOOKUP,
            place=view.place(longest),
            count=calls,
            fix=Fix(ops=lookups["id"]),
            evidence=[
                Evidence(
                    "lookup",
                    value=total / lookups.height,
                    unit="ns",
                    note="each, as recorded",
                ),
                Evidence(
                    "share",
                    value=total / view.steady.time,
                    unit="share",
                    note="of the step as recorded",
                ),
            ],
            advice=_advice(calls, parts),
        )


def _parts(view: View) -> int | None:
    """Return how many parts of a model were compiled; None if it is not known.

    Layers of one class have their code in common, and differ by module: without
    modules, one that is called often looks like many.
    """
    regions = view.ops.filter(named_like(view.ops, compilation.REGION))
    parts = regions.select(
        "module", frame=text("name").str.extract(compilation.REGION_FRAME)
    ).unique()
    if parts.height == 1 and parts["module"].null_count():
        return None
    return parts.height


def _advice(calls: float, parts: int | None) -> str:
    unsafe = (
        "if nothing that guards watch changes any more, run the loop under"
        " torch.compiler.set_stance(skip_guard_eval_unsafe=True)"
    )
    if calls <= 1 or parts == 1:
        return unsafe
    if parts is None:
        return f"compile the whole model, if these are calls of its layers; {unsafe}"
    return f"compile the whole model instead of {parts} parts; {unsafe}"

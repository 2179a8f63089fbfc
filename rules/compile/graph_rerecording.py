"""JIT001: CUDA graphs are set up or recorded in steps that should replay them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.gpu_idle import idle_gaps
from traceq.analysis.patterns.compilation import (
    CALL,
    changing_inputs,
    compilations,
    recordings,
    settled,
    sized_inputs,
)
from traceq.intervals import overlap, spans
from traceq.lint import Bad, Good, Need, Rule, Severity, View
from traceq.words import counted, listed, shape, time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding


@dataclass(frozen=True)
class GraphRerecording(Rule):
    """CUDA graphs are set up or recorded in steps that should only replay them.

    ## What it does

    Looks for compiled code that sets up a graph for a shape it has not seen
    (``cudagraphify.get_container``) or records one (``CUDAGraphNode.record``,
    ``cudaStreamBeginCapture``) after warm-up: in a step that compiles nothing and is
    not just the first of the trace. With shapes it names the inputs that change. What
    goes is the host's time in the calls that did it; their kernels stay.

    ## Why is this bad?

    A CUDA graph is for one shape. A new shape runs once as warm-up, without graphs,
    once more to be recorded, and only then is it fast. If shapes keep changing,
    every step pays for a graph that is used a few times or never, and each of them
    keeps memory of its own.

    ## How to fix it

    Give compiled code few shapes: pad batches to a handful of lengths, drop the last
    incomplete batch. If lengths have to vary, compile without
    ``mode="reduce-overhead"``, or set
    ``torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True``.

    ## When it is wrong

    If the recorded steps are the first that had a shape which then stays. Record
    later ones. A trace of one step cannot tell, and is only told of as info.
    """

    code = "JIT001"
    needs = frozenset({Need.GPU, Need.OPS})

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                  ][ProfilerStep#2                  ]
            host    [Torch-Compiled Region: 0/0   ]   [Torch-Compiled Region: 0/0   ]
            host     [cudagraphify.get_container]      [cudagraphify.get_container]
            host      [cudaLaunchKernel>1]              [cudaLaunchKernel>2]
            gpu 7               [gemm<1]                          [gemm<2]
            """,
            finds=(
                "compiled code sets up or records CUDA graphs in 2 of 2 steps"
                " instead of replaying them",
            ),
        ),
        Good(
            """
            host   [ProfilerStep#1                  ][ProfilerStep#2                  ]
            host    [Torch-Compiled Region: 0/0   ]   [Torch-Compiled Region: 0/0   ]
            host     [cudaGraphLaunch>1]               [cudaGraphLaunch>2]
            gpu 7               [gemm<1]                          [gemm<2]
            """
        ),
        Good(
            """
            host   [ProfilerStep#1                  ][ProfilerStep#2                  ]
            host    [Torch-Compiled Region: 0/0   ]   [Torch-Compiled Region: 0/0   ]
            host     [CUDAGraphNode.record       ]     [cudaGraphLaunch>2]
            gpu 7                                                 [gemm<2]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the calls that recorded by where the compiled code was called."""
        found = recordings(view.trace, view.steady)
        compiled = compilations(view.trace, view.steady).select("step")
        found = found.join(compiled, on="step", how="anti", nulls_equal=True)
        found = settled(found, view.steady)
        if not found.height:
            return
        ops = view.trace.ops
        place = ops.select("file", "line", "function", "module")
        rows = (
            found.drop("file", "line", "function", "module")
            .hstack(place.select(pl.all().gather(found["region"])))
            .with_columns(idle=overlap(spans(found), idle_gaps(view.trace)))
            .group_by("file", "line", "function", "module", maintain_order=True)
            .agg(
                pl.col("set_up").sum(),
                pl.col("recorded").sum(),
                pl.col("idle").sum(),
                calls=pl.len(),
                steps=pl.col("step").n_unique(),
                time=pl.col("dur").sum(),
                ops="id",
                regions=pl.col("region").unique(),
            )
        )
        for row in rows.iter_rows(named=True):
            shapes = _shapes(view, row["regions"])
            yield self.finding(
                "compiled code sets up or records CUDA graphs"
                f" in {_steps(view, row['steps'])}"
                " instead of replaying them",
                subject="cuda graph recording",
                place=view.place(row),
                count=(row["set_up"] + row["recorded"]) / view.steps,
                gpu_ns=row["idle"] * view.host_scale / view.steps,
                host_ns=row["time"] / view.steps,
                evidence=[
                    ("graphs", f"{row['set_up']} set up, {row['recorded']} recorded"),
                    ("shapes", listed([shape(one) for one in shapes], 6)),
                    (
                        "host",
                        f"{time(row['time'] / row['calls'])} for each of the calls",
                    ),
                ],
                data={
                    "set_up": row["set_up"],
                    "recorded": row["recorded"],
                    "shapes": [list(one) for one in shapes],
                },
                advice=_advice(shapes),
                severity=Severity.info if view.steps == 1 else None,
                ops=row["ops"],
            )


def _steps(view: View, found: int) -> str:
    if not view.trace.steps.height:
        return "this trace"
    return f"{found} of {counted(view.steps, 'step')}"


def _shapes(view: View, regions: list[int]) -> list[list[int]]:
    """Return the shapes that the graphs were for: of the inputs that change."""
    roots = view.roots(pl.col("id").is_in(regions))
    inside = view.trace.ops.filter(roots.is_not_null(), pl.col("name") == CALL)
    calls = view.with_inputs(inside)
    found = changing_inputs(calls)
    if not found.height:
        found = sized_inputs(calls)
    return found["shapes"].explode().unique(maintain_order=True).drop_nulls().to_list()


def _advice(shapes: list[list[int]]) -> str:
    if len(shapes) > 1:
        return (
            f"pad the input that is {listed([shape(one) for one in shapes])} to a few"
            ' fixed sizes, or compile without mode="reduce-overhead"'
        )
    return (
        "give the compiled code few shapes (pad to fixed sizes, drop the last short"
        " batch), and parameters and buffers that stay where they are in memory"
    )

"""JIT001: CUDA graphs are captured in steps that should only replay them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.gpu_idle import idle_gaps
from traceq.analysis.patterns import compilation
from traceq.linter import (
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    dataclass,
    listed,
    overlap,
    rows_where,
    shape,
    share_of_steps,
    spans,
)

from ._captures import fix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_PLACE = ("file", "line", "function", "module")


@dataclass(frozen=True)
class GraphRecapture(Rule):
    """CUDA graphs are set up or captured in steps that should only replay them.

    ## What it does

    Looks for compiled code that sets up a CUDA graph for a new shape
    (``cudagraphify.get_container``) or captures one (``CUDAGraphNode.record``,
    ``cudaStreamBeginCapture``) after warm-up: not in a step that compiles, and not only
    in the first of several steps. With shapes it names the inputs that change. The fix
    removes the host time of these calls, but for what calls take that replay; their
    kernels stay, and so does what runs between the parts of a function that breaks.

    ## Why is this bad?

    A CUDA graph is captured for one shape. The first call with a new shape runs without
    a graph, the second captures one, and only the third replays it. If shapes keep
    changing, every step pays for a graph that is replayed a few times or never, and
    each graph holds memory.

    ## How to fix it

    Give compiled code few shapes: pad batches to a few lengths, drop the last
    incomplete batch. If lengths have to vary, compile without
    ``mode="reduce-overhead"``, or set
    ``torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True``.

    ```diff
    - batch = tokenizer(texts, padding="longest")
    + batch = tokenizer(texts, padding="longest", pad_to_multiple_of=256)
    ```

    ## When it is wrong

    If the recorded steps are the first with a shape that stays from then on: record
    later steps. A trace of one step cannot show this, so there it is only info.
    """

    code = "JIT001"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.cuda.CUDAGraph", "torch.compile")
    needs = frozenset({Need.GPU, Need.OPS})

    seen = Seen(
        of="fixtures/twins/graph_rerecord",
        text="""
        JIT001 graph-recapture  saves 49.9 ms/step (91%), 41.6 ms to 52.0 ms
          compiled code sets up or captures CUDA graphs in 2 of 2 steps instead of
            replaying them
          in      step (dev_cases.py:65) of LM_0
          set up  2 a step
          shapes  [2,520], [2,576]
          host    36.5 ms a call, as recorded
          log     a CUDA graph was captured for each of 9 distinct input sizes
          line    CUDAGraph supports dynamic shapes by recording a new graph for
                  each distinct input size. We have observed 9 distinct sizes. (line
                  1) ×2
          fix     pad the input of shapes [2,520], [2,576] to a few fixed sizes, or
                  compile without mode="reduce-overhead"
        """,
    )

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
                "compiled code sets up or captures CUDA graphs in 2 of 2 steps"
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
        """Group the calls that captured by where the compiled code was called."""
        captures = compilation.captures(view.trace, view.steady)
        if not captures.height:
            return
        compiled = compilation.compilations(view.trace, view.steady).select("step")
        captures = captures.join(compiled, on="step", how="anti", nulls_equal=True)
        captures = compilation.settled(captures, view.steady)
        if not captures.height:
            return
        called_at = view.trace.ops.select(_PLACE).select(
            pl.all().gather(captures["region"])
        )
        rows = (
            captures.drop(_PLACE)
            .hstack(called_at)
            .with_columns(idle=overlap(spans(captures), idle_gaps(view.trace)))
            .group_by(_PLACE, maintain_order=True)
            .agg(
                pl.col("set_up", "captured", "idle").sum(),
                steps=pl.col("step").n_unique(),
                host=pl.col("dur").mean(),
                ops="id",
                within=pl.col("within").explode(),
                regions=pl.col("region").unique(),
            )
        )
        for row in rows.iter_rows(named=True):
            yield self._finding(view, row)

    def _finding(self, view: View, row: Mapping[str, Any]) -> Finding:
        shapes = _shapes(view, row["regions"])
        return self.finding(
            "compiled code sets up or captures CUDA graphs in"
            f" {share_of_steps(view, row['steps'])} instead of replaying them",
            subject="CUDA graph capture",
            place=view.place(row),
            count=(row["set_up"] + row["captured"]) / view.steps,
            fix=fix(view, row["within"]),
            ops=row["ops"],
            gpu_idle_ns=row["idle"] / view.steps,
            evidence=_evidence(row, view.steps, shapes),
            data={
                "set_up": row["set_up"],
                "captured": row["captured"],
                "shapes": [list(item) for item in shapes],
            },
            advice=_advice(shapes),
            severity=Severity.info if view.steps == 1 else None,
        )


def _evidence(
    row: Mapping[str, Any], steps: int, shapes: list[list[int]]
) -> Iterator[Evidence]:
    for label, graphs in (("set up", row["set_up"]), ("captured", row["captured"])):
        if graphs:
            yield Evidence(label, value=graphs / steps, note="a step")
    if shapes:
        yield Evidence("shapes", listed([shape(item) for item in shapes], 6))
    yield Evidence("host", value=row["host"], unit="ns", note="a call, as recorded")


def _shapes(view: View, regions: list[int]) -> list[list[int]]:
    """Return the shapes that the graphs were for: of the inputs that change."""
    ops = view.trace.ops
    rows = rows_where(ops["name"] == compilation.CALL)
    # Regions are outermost ops.
    within = view.outermost_ops[rows].is_in(regions)
    calls = view.with_inputs(ops[["ts", "inputs"]][rows.filter(within)])
    inputs = compilation.changing_inputs(calls)
    if not inputs.height:
        inputs = compilation.sized_inputs(calls)
    return inputs["shapes"].explode().unique(maintain_order=True).drop_nulls().to_list()


def _advice(shapes: list[list[int]]) -> str:
    if len(shapes) > 1:
        sizes = listed([shape(dims) for dims in shapes])
        return (
            f"pad the input of shapes {sizes} to a few"
            ' fixed sizes, or compile without mode="reduce-overhead"'
        )
    return (
        "give the compiled code few shapes (pad to fixed sizes, drop the last short"
        " batch), and keep parameters and buffers at the same addresses"
    )

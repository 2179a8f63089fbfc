"""KRN009: the rows of a tall matrix are summed by a reduction, not by a matmul."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.linter import (
    FLOAT32,
    HALF,
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    dataclass,
    dtype_name,
    fill_false,
    inputs,
    nth,
    often,
    option,
    shape,
)

from ._shared import evidence, groups, judged, saved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

# With fewer columns the reduction is as fast; with fewer rows both are short.
_COLUMNS, _ROWS = 32, 16384
_MATRIX = 2
_DRAWN = """
    host   [ProfilerStep#1                                                            ]
    host    [model.py(9): forward                                                    ]
    host     [aten::sum             ]
    host      [cudaLaunchKernel>1]
    gpu 7                  [reduce_kernel<1                                        ]
"""
_TYPES = ["c10::BFloat16", "ScalarList", "Scalar", "Scalar"]
_VALUES = ["", "[0]", "False", ""]


@dataclass(frozen=True)
class TallSum(Rule):
    """The rows of a tall matrix are summed by a slow reduction.

    ## What it does

    Finds ``x.sum(0)`` and ``x.mean(0)`` in the forward, of matrices with at least
    16,384 rows and 32 columns, that reach less than ``max-efficiency`` of the memory's
    bandwidth and take at least ``min-share`` of a step.

    ## Why is this bad?

    The reduction gives each block some columns and many rows, and blocks then wait for
    each other to add up what they have. With few columns there are few blocks.

    ## How to fix it

    Multiply with a row of ones: matmuls split long sums among all multiprocessors.

    ```diff
    - total = x.sum(0)
    + total = (x.new_ones(1, len(x)) @ x).squeeze(0)
    ```

    ## When it is wrong

    In float32 the matmul must not use TF32, which cuts each value to 10 bits: sum in
    two stages then, ``x.view(256, -1, x.shape[1]).sum(1).sum(0)``. Sums of gradients,
    as those of a bias, are not reported: autograd writes them.
    """

    code = "KRN009"
    since = "0.2.0"
    see = ("torch.sum",)
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.VALUES})

    min_share: float = option(0.03, "Less of a step is not reported.")
    max_efficiency: float = option(
        0.25, "What reaches more of the GPU's bandwidth is not reported."
    )

    seen = Seen(
        text="""
        KRN009 tall-sum  saves 8.00 µs/step (14%), nothing to 22.7 µs
          the rows of [65536,64] are summed by a slow reduction, once a step
          in      forward (model.py:9)
          gpu     57.0 µs a step
          peak    1.75 µs at the GPU's peaks
          input   bfloat16 [65536,64]
          kernel  reduce_kernel ×1
          fix     multiply with ones: (x.new_ones(1, len(x)) @ x).squeeze(0)
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds="the rows of [65536,64] are summed by a slow reduction, once a step",
            args={
                "aten::sum": inputs([[65536, 64], [], [], []], _TYPES, values=_VALUES)
            },
        ),
        Good(
            _DRAWN,
            args={
                "aten::sum": inputs([[1048576, 8], [], [], []], _TYPES, values=_VALUES)
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group them by place and shape."""
        dims = nth("dims", 0)
        rows, columns = (dims.list.get(at, null_on_oob=True) for at in (0, 1))
        tall = (dims.list.len() == _MATRIX) & (rows >= _ROWS) & (columns >= _COLUMNS)
        ops = judged(view, r"^aten::(sum|mean)$", self.min_share)
        if not ops.height:
            return
        ops = ops.filter(
            pl.col("phase") == "forward",
            fill_false(tall & (nth("values", 1) == "[0]")),
            nth("types", 0).is_in([*HALF, FLOAT32]),
        )
        for row in groups(view, ops, self.min_share):
            if row["least_ns"] < self.max_efficiency * row["gpu_ns"]:
                yield self._finding(view, row)

    def _finding(self, view: View, row: Row) -> Finding:
        calls, dims = row["calls"] / view.steps, row["dims"][0]
        kind = dtype_name(row["types"][0])
        advice = "multiply with ones: (x.new_ones(1, len(x)) @ x).squeeze(0)"
        if row["types"][0] == FLOAT32:
            advice += "; with TF32, sum in two stages instead"
        return self.finding(
            f"the rows of {shape(dims)} are summed by a slow reduction, {often(calls)}",
            subject=row["name"],
            place=view.place(row),
            count=calls,
            fix=Fix(
                kernels=row["kernels"],
                kernel_share=saved(row, assumptions.ONES_EFFICIENCY),
            ),
            evidence=evidence(view, row, Evidence("input", f"{kind} {shape(dims)}")),
            data={"dims": dims, "dtype": kind},
            advice=advice,
        )

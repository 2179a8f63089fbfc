"""KRN006: a batched matmul of tiny matrices, or of the same one for the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.patterns import matmul
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
    dtype_name,
    fill_false,
    inputs,
    nth,
    often,
    option,
    shape,
)

from ._shared import evidence, groups, judged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

# Where rows are few, one larger matmul is no better than a batch of them.
_SHARED_ROWS = 64
_DRAWN = """
    host   [ProfilerStep#1                                                            ]
    host    [model.py(9): forward                                                    ]
    host     [aten::bmm             ]
    host      [cudaLaunchKernel>1]
    gpu 7                  [gemmSN_NN_kernel<1                                     ]
"""
_TYPES = ["float", "float"]


@dataclass(frozen=True)
class TinyBatchedMatmul(Rule):
    """A batched matmul of tiny matrices takes far longer than its bytes.

    ## What it does

    Finds ``bmm`` that reach less than ``max-efficiency`` of what the GPU can do, take
    at least ``min-share`` of a step, and are of one of two kinds: matrices of a few
    values, or products of two vectors; or the same matrix, expanded, for all of a
    batch whose own matrices have few rows.

    ## Why is this bad?

    A matmul's kernel gives each matrix of the batch a block of threads with a tile of
    32 by 32 or more. Of 3 by 3 values most of the tile is empty, and thousands of
    blocks come and go.

    ## How to fix it

    Tiny ones: multiply and sum, which torch does for all of the batch in two kernels.
    One matrix for all: do not expand it, so that it is one matmul.

    ```diff
    - turned = torch.bmm(rotation, points)
    + turned = (rotation.unsqueeze(-1) * points.unsqueeze(1)).sum(2)
    - y = torch.bmm(x, weight.expand(len(x), -1, -1))
    + y = x @ weight
    ```

    ## When it is wrong

    The product is as large as all multiplications: it takes memory, for the backward
    too. In 16-bit dtypes products are rounded before they are added up. From 8 by 8 by
    8 on, the matmul is faster.
    """

    code = "KRN006"
    several_fixes = True
    since = "0.2.0"
    see = ("torch.bmm",)
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})

    min_share: float = option(0.03, "Less of a step is not reported.")
    max_efficiency: float = option(
        0.05, "What reaches more of the GPU's peaks is not reported."
    )

    seen = Seen(
        of="tests/data/kernels/tiny_matmuls.trace.json.gz",
        text="""
        KRN006 tiny-batched-matmul  saves 916 µs/step (17%), 843 µs to 1.54 ms
          a batch of 262,144 tiny matmuls, [3,3] × [3,3], runs on slow kernels, once
            a step
          in      <lambda> (kernels.py:862) of Program_0
          gpu     1.53 ms a step
          peak    17.7 µs at the GPU's peaks
          dtype   float32
          kernel  sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize32x32x8_stage3_warps
                  ize1x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas ×5
          module  Program_0
          fix     multiply and sum: (a.unsqueeze(-1) * b.unsqueeze(1)).sum(2), or (a
                  * b).sum(-1) for vectors; in 16-bit dtypes compare the results
                  once
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds="a batch of 4,096 tiny matmuls, [3,3] × [3,3], runs on slow kernels,"
            " once a step",
            args={"aten::bmm": inputs([[4096, 3, 3], [4096, 3, 3]], _TYPES)},
        ),
        Good(
            _DRAWN,
            args={"aten::bmm": inputs([[4096, 16, 16], [4096, 16, 16]], _TYPES)},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group them by place, forward and backward together."""
        left, right = nth("dims", 0), nth("dims", 1)
        ops = judged(view, r"^aten::bmm$", self.min_share)
        if not ops.height:
            return
        tiny = matmul.tiny_matmuls(left, right)
        rows = left.list.get(1, null_on_oob=True)
        shared = fill_false(
            (nth("strides", 1).list.first() == 0) & (rows <= _SHARED_ROWS)
        )
        ops = ops.with_columns(
            matrix=pl.when(shared)
            .then(pl.lit("shared"))
            .when(tiny)
            .then(pl.lit("tiny"))
        ).drop_nulls("matrix")
        for row in groups(view, ops, self.min_share, ("matrix",)):
            if row["least_ns"] < self.max_efficiency * row["gpu_ns"]:
                yield self._finding(view, row)

    def _finding(self, view: View, row: Row) -> Finding:
        calls = row["calls"] / view.steps
        (batch, *left), (_, *right) = row["dims"][:2]
        is_shared = row["matrix"] == "shared"
        pair = f"{shape(left)} × {shape(right)}"
        kind = dtype_name(row["types"][0])
        what = "matmuls with the same matrix" if is_shared else "tiny matmuls"
        return self.finding(
            f"a batch of {batch:,} {what}, {pair}, runs on slow kernels,"
            f" {often(calls)}",
            subject=row["matrix"],
            place=view.place(row),
            count=calls,
            fix=Fix(
                kernels=row["kernels"],
                kernel_share=assumptions.SHARED_MATRIX_SAVED
                if is_shared
                else assumptions.TINY_MATMULS_SAVED,
            ),
            evidence=evidence(view, row, Evidence("dtype", kind)),
            data={"left": row["dims"][0], "right": row["dims"][1], "dtype": kind},
            advice="do not expand the matrix: x @ weight is one matmul"
            if is_shared
            else "multiply and sum: (a.unsqueeze(-1) * b.unsqueeze(1)).sum(2), or"
            " (a * b).sum(-1) for vectors; in 16-bit dtypes compare the results once",
        )

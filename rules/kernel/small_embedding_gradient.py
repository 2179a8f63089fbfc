"""KRN004: the gradient of an embedding with few rows is sorted, not multiplied."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
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
    inputs,
    nth,
    often,
    option,
    roofline_ns,
    shape,
)
from traceq.model import dtypes

from ._shared import evidence, groups, judged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

# The one-hot matrix is made of truth values, cast, and multiplied.
_KERNELS_INSTEAD = 3
_DRAWN = """
    host   [ProfilerStep#1                                                            ]
    host    [model.py(9): forward                                                    ]
    host     [aten::embedding_dense_backward]
    host      [cudaLaunchKernel>1]
    gpu 7                  [compute_grad_weight<1                                  ]
"""
_TYPES = ["c10::BFloat16", "long int", "Scalar", "Scalar", "Scalar"]


@dataclass(frozen=True)
class SmallEmbeddingGradient(Rule):
    """The gradient of an embedding with few rows takes longer than a matmul.

    ## What it does

    Finds gradients of embeddings (``embedding_dense_backward``) that take at least
    ``min-share`` of a step and would take less than ``max-left`` of it as a matmul with
    a one-hot matrix.

    ## Why is this bad?

    torch sorts the indices, cuts them into parts, adds up each part and then the parts:
    30 kernels, whatever the embedding has. With a few rows, as for segments, relative
    positions or bytes, a matmul does it in one.

    ## How to fix it

    Multiply with the one-hot matrix of the indices. Where gradients of the indices'
    tensor are many and narrow, do so in the forward too, so that both are matmuls.

    ```diff
    - bias = self.table(index)
    + bias = F.one_hot(index, self.table.num_embeddings).to(x.dtype) @ self.table.weight
    ```

    ## When it is wrong

    The matrix has a column for each row of the embedding: memory grows with it, and
    from some hundred rows on (in float32 without TF32: from 64 on) the matmul is
    slower. In float32 keep TF32 off for it, or values of the forward lose bits.
    ``F.one_hot`` makes 64-bit numbers first. ``padding_idx`` is not heeded.
    """

    code = "KRN004"
    since = "0.2.0"
    see = ("torch.nn.functional.one_hot", "torch.nn.functional.embedding")
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.VALUES})

    min_share: float = option(0.03, "Less of a step is not reported.")
    max_left: float = option(
        0.7, "Report only if a matmul is expected to take less than this share of it."
    )

    seen = Seen(
        text="""
        KRN004 small-embedding-gradient
          saves 8.00 µs/step (14%), nothing to 22.7 µs
          the gradient of an embedding of 2 rows is added up by sorting, once a step
          in        forward (model.py:9)
          gpu       57.0 µs a step
          peak      111 ns at the GPU's peaks
          gradient  bfloat16 [8,128,256]
          kernel    compute_grad_weight ×1
          fix       multiply with the one-hot matrix: F.one_hot(index,
                    rows).to(dtype) @ weight; watch memory, and compare the
                    gradients once
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds="the gradient of an embedding of 2 rows is added up by sorting, once"
            " a step",
            args={
                "aten::embedding_dense_backward": inputs(
                    [[8, 128, 256], [8, 128], [], [], []],
                    _TYPES,
                    values=["", "", "2", "-1", "False"],
                )
            },
        ),
        Good(
            _DRAWN,
            args={
                "aten::embedding_dense_backward": inputs(
                    [[8, 128, 256], [8, 128], [], [], []],
                    _TYPES,
                    values=["", "", "50304", "-1", "False"],
                )
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group them by place, shape and rows of the embedding."""
        ops = judged(view, r"^aten::embedding_dense_backward$", self.min_share)
        if not ops.height:
            return
        ops = ops.with_columns(
            table=nth("values", 2).cast(pl.Int64, strict=False),
        ).drop_nulls("table")
        for row in groups(view, ops, self.min_share, ("table", "dims_text")):
            share = _share(view, row)
            if share >= 1 - self.max_left:
                yield self._finding(view, row, share)

    def _finding(self, view: View, row: Row, share: float) -> Finding:
        calls = len(row["ids"]) / view.steps
        kind = dtype_name(row["types"][0])
        return self.finding(
            f"the gradient of an embedding of {row['table']:,} rows is added up by"
            f" sorting, {often(calls)}",
            subject="embedding",
            place=view.place(row),
            count=calls,
            fix=Fix(kernels=row["kernels"], kernel_share=share),
            evidence=evidence(
                view, row, Evidence("gradient", f"{kind} {shape(row['dims'][0])}")
            ),
            data={"rows": row["table"], "dims": row["dims"][0], "dtype": kind},
            advice="multiply with the one-hot matrix: F.one_hot(index, rows).to(dtype)"
            " @ weight; watch memory, and compare the gradients once",
        )


def _share(view: View, row: Row) -> float:
    """Return the share of the time that goes, by a matmul with a one-hot matrix."""
    size = dtypes.ALL_SIZES.get(row["types"][0], 4)
    hot = row["table"] * prod(row["dims"][1])
    moved = hot * (2.0 + 2 * size) + prod(row["dims"][0]) * size
    then = roofline_ns(
        view.gpu, assumptions.ONE_HOT_EFFICIENCY, moved=moved, kernels=_KERNELS_INSTEAD
    )
    return view.saved_share(row["gpu_ns"] / len(row["ids"]), then)

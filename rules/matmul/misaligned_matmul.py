"""GEM002: 16-bit matmuls run on slow kernels because a dimension is misaligned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.patterns import matmul
from traceq.linter import (
    HALF,
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    counted,
    dataclass,
    dtype_name,
    inputs,
    kernel_lines,
    module_line,
    same_place,
    text,
)
from traceq.model import dtypes

from ._misaligned import advice, example, message, misaligned, padded
from ._shared import shape_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

# Kernels that load one, two or four 16-bit elements at once instead of eight.
_SLOW = r"align[ac]?([124])(\D|$)|_ldg([124])_"
_MM = ["c10::BFloat16", "c10::BFloat16"]
# Padding further than this costs more than it saves.
_MOST_PADDING = 1.1
_ALIGN1 = "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1"


@dataclass(frozen=True)
class MisalignedMatmul(Rule):
    """A matmul dimension that is not a multiple of 8 forces slow, unaligned 16-bit kernels.

    ## What it does

    Finds bfloat16 and float16 matmuls on kernels whose names say that they load fewer
    than 8 elements at once (``align1``, ``align2``, ``align4``). The dimension to blame
    is the length of a row in memory, from shapes and strides, that is not a multiple of
    8. Dimensions that padding would make more than 10% larger are left out.

    ## Why is this bad?

    Tensor cores are fed with 16 bytes at once. Rows that do not begin at a multiple of
    16 bytes are loaded piece by piece, by kernels of an older architecture that are
    several times slower.

    ## How to fix it

    Pad the dimension to a multiple of 64: a vocabulary of 50257 to 50304, in the
    embedding and in the head. No target is ever one of the new rows. In a model that is
    already trained, mask their logits, so that the softmax stays the same.

    ```diff
    - self.head = nn.Linear(768, 50257, bias=False)
    + self.head = nn.Linear(768, 50304, bias=False)
    ```

    ## When it is wrong

    The dimension may not be yours to choose. The saving assumes good kernels at 60% of
    the GPU's peak, and half of the time where shapes or the GPU are not known.
    """  # noqa: E501 - the summary is one sentence on one line

    code = "GEM002"
    since = "0.1.0"
    see = ("torch.nn.Linear", "torch.nn.Embedding")
    needs = frozenset({Need.GPU, Need.OPS})
    without_gpu = True

    seen = Seen(
        of="fixtures/twins/vocab_misaligned",
        text="""
        GEM002 misaligned-matmul  saves 4.61 ms/step (34%), nothing to 7.17 ms
          a dimension of 50257, not a multiple of 8, puts 3 matmuls a step on align1
            kernels
          in      forward (dev_cases.py:37)
          shapes  [4096,768] × [768,50257], [4096,50257] × [50257,768], [50257,4096]
                  × [4096,768]
          dtype   bfloat16
          time    7.87 ms a step
          kernel  Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>
                  ×1
          kernel  Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1>
                  ×1
          kernel  Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x256_nt_align1>
                  ×1
          module  LM_0/Linear_16
          fix     pad 50257 to 50304, a multiple of 64: if it is the vocabulary,
                  give embedding and head 50304 rows; no target is ever one of the
                  new rows
        """,
    )

    examples = (
        Bad(
            f"""
            host  [ProfilerStep#1                                                    ]
            host   [model.py(37): forward                                           ]
            host    [aten::mm           ]
            host     [cudaLaunchKernel>1]
            gpu 7      [{_ALIGN1}<1]
            """,
            finds=(
                "a dimension of 50257, not a multiple of 8, puts 1 matmul a step on"
                " align1 kernels",
            ),
            args={"aten::mm": inputs([[64, 768], [768, 50257]], _MM)},
        ),
        Good(
            """
            host  [ProfilerStep#1                                                    ]
            host   [model.py(37): forward                                           ]
            host    [aten::mm           ]
            host     [cudaLaunchKernel>1]
            gpu 7      [nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNN<1]
            """,
            args={"aten::mm": inputs([[64, 768], [768, 50304]], _MM)},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the matmuls on such kernels by place, and name the dimension."""
        name, size = text("name"), pl.col("size")
        calls = matmul.matmuls(view.trace, view.kernels, _SLOW)
        if not calls.height or not calls["dtype"].is_in(dtypes.SHORT_HALF).any():
            return
        slow = calls.with_columns(
            loaded=pl.coalesce(name.str.extract(_SLOW, 1), name.str.extract(_SLOW, 3)),
            size=misaligned(),
        ).filter(
            pl.col("loaded").is_not_null(),
            text("dtype").is_in(dtypes.SHORT_HALF),
            size.is_null() | (padded(size) <= _MOST_PADDING * size),
        )
        yield from self._grouped(view, slow)

    def check_without_gpu(self, view: View) -> Iterator[Finding]:
        """Group large matmuls by place that have a misaligned dimension."""
        calls = matmul.matmuls(view.trace, view.kernels, "")
        if not calls.height:
            return
        size = pl.col("size")
        slow = calls.with_columns(
            size=misaligned(), loaded=pl.lit(None, pl.String)
        ).filter(
            pl.col("type").is_in(HALF),
            pl.col("flops") >= assumptions.LARGE_MATMUL_FLOPS,
            padded(size) <= _MOST_PADDING * size,
        )
        yield from self._grouped(view, slow)

    def _grouped(self, view: View, slow: pl.DataFrame) -> Iterator[Finding]:
        if not slow.height:
            return
        groups = (
            matmul.with_fastest(slow, view.gpu, "fp16")
            .filter(matmul.saved() > 0)
            .sort(matmul.saved(), "id", descending=[True, False])
            .group_by(*same_place(), maintain_order=True)
            .agg(
                "id",
                "op",
                pl.col("size", "loaded", "type").first(),
                matmuls=pl.col("matmul").cast(pl.String).unique(maintain_order=True),
                pairs=pl.struct("left", "right").unique(maintain_order=True),
                module=text("module").unique(maintain_order=True),
                time=pl.col("dur").sum(),
                share=matmul.saved_share(),
            )
        )
        for row in groups.iter_rows(named=True):
            yield self._finding(view, row)

    def _finding(self, view: View, row: Row) -> Finding:
        count = len(set(row["op"])) / view.steps
        return self.finding(
            message(row, counted(count, "matmul")),
            subject="misaligned",
            place=view.place_of_group(row),
            count=count,
            fix=Fix(kernels=row["id"], kernel_share=row["share"]),
            evidence=[
                *shape_lines(row["pairs"]),
                *([Evidence("dtype", dtype_name(row["type"]))] if row["type"] else []),
                Evidence(
                    "time", value=row["time"] / view.steps, unit="ns", note="a step"
                ),
                *kernel_lines(view, row["id"]),
                *module_line(row["module"]),
            ],
            data={"size": row["size"], "loads": int(row["loaded"] or 0)},
            advice=advice(row),
            example=example(self.example(), row),
            ops=row["op"],
        )

"""GEM003: 16-bit matmuls run without tensor cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

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
    fill_false,
    inputs,
    kernel_lines,
    listed,
    module_line,
    same_place,
    text,
)
from traceq.model import dtypes

from ._shared import shape_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Gpu, Row

# Kernels of matmuls whose names say that they do not use tensor cores.
_SIMT = (
    r"(maxwell|volta|turing|ampere)_(fp16_|bf16_)?[sh]gemm_"
    r"|_simt_[sh]gemm|magma_[sh]gemm|xmma_gemm_\w*_ffma_"
)
_CORES, _CORES_FOR_BFLOAT16 = (7, 0), (8, 0)
# These have no tensor cores, whatever their compute capability.
_WITHOUT = "GTX 16"
_ALIGNED = 8
# Beyond that, what padding adds takes as long as what it saves. Heuristic threshold.
_MOST_PADDING = 1.5
_MM = ["c10::Half", "c10::Half"]


@dataclass(frozen=True)
class MatmulWithoutTensorCores(Rule):
    """16-bit matmuls run without tensor cores.

    ## What it does

    On GPUs with tensor cores (compute capability 7.0 or later), finds float16 and
    bfloat16 matmuls on kernels that do not use them and take longer than with them.

    ## Why is this bad?

    Tensor cores are 8 to 16 times as fast. Without them, 16-bit dtypes only save
    memory.

    ## How to fix it

    bfloat16 before compute capability 8.0 (V100, T4): these GPUs compute it in float32;
    use float16 with a GradScaler. Otherwise a dimension that is not a multiple of 8 is
    the usual cause: pad it.

    ```diff
    - with torch.autocast("cuda", torch.bfloat16):
    + with torch.autocast("cuda", torch.float16):  # V100, T4
          loss = model(batch)
    - loss.backward()
    - optimizer.step()
    + scaler.scale(loss).backward()
    + scaler.step(optimizer)
    + scaler.update()
    ```

    ## When it is wrong

    Small matmuls are memory-bound and gain little; those of a vector gain nothing, and
    are left out. The saving assumes tensor cores at
    60% of their peak.
    """

    code = "GEM003"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.autocast", "torch.amp.GradScaler")
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})

    seen = Seen(
        text="""
        GEM003 matmul-without-tensor-cores
          saves 26.9 µs/step (69%), 18.5 µs to 33.0 µs
          1 float16 matmul a step runs without tensor cores
          shapes  [256,1023] × [1023,511]
          time    39.0 µs a step
          gpu     NVIDIA H200
          kernel  turing_fp16_sgemm_fp16_128x64_tn ×1
          fix     pad 511, 1023 to multiples of 8
        """,
    )

    examples = (
        Bad(
            """
            host  [ProfilerStep#1        ]
            host   [aten::mm           ]
            host    [cudaLaunchKernel>1]
            gpu 7               [turing_fp16_sgemm_fp16_128x64_tn<1   ]
            """,
            finds=("1 float16 matmul a step runs without tensor cores",),
            args={"aten::mm": inputs([[256, 1023], [1023, 511]], _MM)},
        ),
        Good(
            """
            host  [ProfilerStep#1                                      ]
            host   [aten::mm           ]
            host    [cudaLaunchKernel>1]
            gpu 7      [turing_fp16_s1688gemm_fp16_128x256_ldg8_f2f_tn<1]
            """,
            args={"aten::mm": inputs([[256, 1024], [1024, 512]], _MM)},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the matmuls on such kernels by place and dtype."""
        gpu = view.gpu
        if gpu.amd or gpu.capability < _CORES or _WITHOUT in gpu.name:
            return
        calls = matmul.matmuls(view.trace, view.kernels, _SIMT)
        if not calls.height or not calls["type"].is_in(HALF).any():
            return
        # KRN006 is about batches of tiny ones.
        tiny = matmul.tiny_matmuls(pl.col("left"), pl.col("right"))
        calls = calls.filter(
            pl.col("type").is_in(HALF), ~matmul.by_vector(), ~tiny, _may_be_padded()
        )
        if not calls.height:
            return
        groups = (
            matmul.with_fastest(calls, gpu, "fp16")
            .filter(matmul.saved() > 0)
            .sort(matmul.saved(), "id", descending=[True, False])
            .group_by(*same_place(), "type", maintain_order=True)
            .agg(
                "id",
                "op",
                "rows",
                pairs=pl.struct("left", "right").unique(maintain_order=True),
                module=text("module").unique(maintain_order=True),
                time=pl.col("dur").sum(),
                share=matmul.saved_share(),
            )
        )
        for row in groups.iter_rows(named=True):
            yield self._finding(view, row, gpu)

    def _finding(self, view: View, row: Row, gpu: Gpu) -> Finding:
        count = len(set(row["op"])) / view.steps
        kind = dtype_name(row["type"])
        return self.finding(
            f"{counted(count, f'{kind} matmul')} a step"
            f" {'runs' if count == 1 else 'run'} without tensor cores",
            subject=kind,
            place=view.place_of_group(row),
            count=count,
            fix=Fix(kernels=row["id"], kernel_share=row["share"]),
            evidence=[
                *shape_lines(row["pairs"]),
                Evidence(
                    "time", value=row["time"] / view.steps, unit="ns", note="a step"
                ),
                Evidence("gpu", gpu.name),
                *kernel_lines(view, row["id"]),
                *module_line(row["module"]),
            ],
            data={"dtype": kind, "gpu": gpu.name},
            advice=_advice(row, gpu),
            ops=row["op"],
        )


def _may_be_padded() -> pl.Expr:
    """Return whether no row would become much longer: 3 values would be 8."""
    size = pl.element()
    longer = (size + _ALIGNED - 1) // _ALIGNED * _ALIGNED > _MOST_PADDING * size
    return ~fill_false(pl.col("rows").list.eval(longer).list.any())


def _advice(row: Row, gpu: Gpu) -> str:
    if row["type"] == dtypes.BFLOAT16 and gpu.capability < _CORES_FOR_BFLOAT16:
        return (
            "this GPU has no tensor cores for bfloat16: use float16 with"
            " torch.amp.GradScaler"
        )
    odd = sorted({size for sizes in row["rows"] for size in sizes if size % 8})
    if not odd:
        return (
            "let the matrices begin at multiples of 8 elements, which slices may not do"
        )
    return f"pad {listed([str(size) for size in odd])} to multiples of 8"

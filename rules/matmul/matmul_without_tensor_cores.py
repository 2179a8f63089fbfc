"""GEM003: matrix products in 16 bits run without tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.device import used_gpu
from traceq.analysis.base.ownership import same_place
from traceq.analysis.patterns.matmul import products, saved
from traceq.lint import Bad, Good, Need, Rule, View, inputs
from traceq.lint.evidence import dtype, kernel_lines, module_line
from traceq.words import counted, listed, shape, time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

# Kernels of matrix products that say in their name that no tensor core computes.
_SIMT = (
    r"(maxwell|volta|turing|ampere)_(fp16_|bf16_)?[sh]gemm_"
    r"|_simt_[sh]gemm|magma_[sh]gemm|xmma_gemm_\w*_ffma_"
)
_HALF = ("c10::Half", "c10::BFloat16")
_CORES, _CORES_FOR_BFLOAT16 = (7, 0), (8, 0)
# These have no tensor cores, whatever their compute capability.
_WITHOUT = "GTX 16"
_MM = ["c10::Half", "c10::Half"]


@dataclass(frozen=True)
class MatmulWithoutTensorCores(Rule):
    """Matrix products in 16 bits run without tensor cores.

    ## What it does

    On GPUs with tensor cores (compute capability 7.0 on), looks for products in float16
    or bfloat16 on kernels that compute without them, and that take longer than
    they would with them.

    ## Why is this bad?

    Tensor cores are 8 to 16 times as fast. 16 bits without them save memory only.

    ## How to fix it

    bfloat16 before compute capability 8.0 (V100, T4): these GPUs compute it in float32;
    use float16 with a GradScaler. Otherwise sizes that are no multiples of 8 are
    the usual reason: pad them.

    ## When it is wrong

    Small products are bound by memory, and gain little. The cost takes tensor cores at
    60% of the peak.
    """

    code = "GEM003"
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                                      ]
            host   [aten::mm           ]
            host    [cudaLaunchKernel>1]
            gpu 7               [turing_fp16_sgemm_fp16_128x64_tn<1   ]
            """,
            finds=("1 matrix product in float16 a step runs without tensor cores",),
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
        """Group the products on such kernels by place and type."""
        gpu = used_gpu(view.trace)
        if gpu.amd or gpu.capability < _CORES or _WITHOUT in gpu.name:
            return
        calls = products(view.trace, view.kernels).filter(
            pl.col("type").is_in(_HALF),
            pl.col("name").cast(pl.String).str.contains(_SIMT),
        )
        slow = saved(calls, gpu.peak, "fp16").filter(pl.col("saved") > 0)
        groups = (
            slow.sort("saved", "id", descending=[True, False])
            .group_by(*same_place(), "type", maintain_order=True)
            .agg(
                "id",
                "op",
                "rows",
                pl.col("left", "right").unique(maintain_order=True),
                pl.col("module").cast(pl.String).unique(maintain_order=True),
                time=pl.col("dur").sum(),
                saved=pl.col("saved").sum(),
            )
        )
        for row in groups.iter_rows(named=True):
            count = len(set(row["op"])) / view.steps
            kind = dtype(row["type"])
            emulated = kind == "bfloat16" and gpu.capability < _CORES_FOR_BFLOAT16
            pairs = zip(row["left"], row["right"], strict=False)
            yield self.finding(
                f"{counted(count, 'matrix product')} in {kind} a step"
                f" {'runs' if count == 1 else 'run'} without tensor cores",
                subject=kind,
                place=view.place_of_group(row),
                count=count,
                gpu_ns=row["saved"] / view.steps,
                evidence=[
                    ("shapes", listed([f"{shape(a)} × {shape(b)}" for a, b in pairs])),
                    ("time", f"{time(row['time'] / view.steps)} a step"),
                    ("gpu", gpu.name),
                    *kernel_lines(view, row["id"]),
                    *module_line(row["module"]),
                ],
                data={"dtype": kind, "gpu": gpu.name},
                advice=_advice(row["rows"], emulated=emulated),
                ops=row["op"],
                kernels=row["id"],
            )


def _advice(rows: list[list[int]], *, emulated: bool) -> str:
    if emulated:
        return (
            "this GPU has no tensor cores for bfloat16: use float16 with"
            " torch.amp.GradScaler"
        )
    odd = sorted({size for sizes in rows for size in sizes if size % 8})
    if not odd:
        return "let the matrices begin at multiples of 8 elements; slices may not"
    return f"pad {listed([str(size) for size in odd])} to multiples of 8"

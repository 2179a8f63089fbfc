"""GEM001: matrix products in float32 do not use TF32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.device import used_gpu
from traceq.analysis.patterns.matmul import products, saved
from traceq.lint import Bad, Good, Need, Rule, View, inputs, option
from traceq.lint.evidence import kernel_lines
from traceq.words import counted, listed, shape, time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

# Kernels that compute in float32 without tensor cores.
_SIMT = (
    r"(ampere|volta|turing|maxwell)_sgemm_\d|simt_sgemm"
    r"|xmma_gemm_f32f32_f32f32_f32"
)
# The first compute capability with TF32.
_TF32 = (8, 0)
_MM = inputs([[4096, 1024], [1024, 1024]], ["float", "float"])


@dataclass(frozen=True)
class Float32Matmul(Rule):
    """Matrix products in float32 run without tensor cores, since TF32 is off.

    ## What it does

    On GPUs that have TF32 (compute capability 8.0 on), looks for matrix products on
    plain float32 kernels. If some products of the trace do run in TF32 it is on, and
    nothing is reported. One finding for the program, since it is one setting; its place
    is the line with most operations. Convolutions use TF32 by default and are not
    looked at.

    ## Why is this bad?

    Tensor cores compute float32 products several times as fast when they may round
    the inputs to TF32: 10 bits of mantissa, the range of float32, sums in float32.

    ## How to fix it

    ``torch.set_float32_matmul_precision("high")`` at the start of the program. Faster
    still is bfloat16, by ``torch.autocast`` or for the whole model.

    ## When it is wrong

    Where full float32 is wanted, as for solvers or the sums of a loss, allow the
    finding. The cost takes TF32 at 60% of the GPU's peak, and half of the time where
    shapes or the GPU are not known.
    """

    code = "GEM001"
    needs = frozenset({Need.GPU, Need.OPS})

    min_share: float = option(
        0.005, "Share of the GPU's time from which what TF32 saves matters."
    )

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                               ]
            host   [aten::mm           ]
            host    [cudaLaunchKernel>1]
            gpu 7               [ampere_sgemm_128x64_tn<1      ]
            """,
            finds=("1 matrix product a step is in float32 and runs without TF32",),
            args={"aten::mm": _MM},
        ),
        Good(
            """
            host  [ProfilerStep#1                               ]
            host   [aten::mm           ]
            host    [cudaLaunchKernel>1]
            gpu 7      [cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4<1]
            """,
            args={"aten::mm": _MM},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Put all products on float32 kernels together."""
        gpu = used_gpu(view.trace)
        calls = products(view.trace, view.kernels)
        in_tf32 = (calls["dtype"].cast(pl.String) == "tf32").any()
        if gpu.amd or gpu.capability < _TF32 or in_tf32:
            return
        plain = pl.col("name").cast(pl.String).str.contains(_SIMT)
        wide = pl.col("type").is_null() | (pl.col("type") == "float")
        slow = saved(calls.filter(plain, wide), gpu.peak, "tf32")
        worth = float(slow["saved"].sum())
        if not slow.height or worth < self.min_share * int(view.kernels["dur"].sum()):
            return
        places = (
            slow.group_by("file", "line", "function")
            .agg(
                pl.col("module").cast(pl.String).head(1),
                pl.col("flops", "dur").sum(),
            )
            .sort("flops", "dur", "file", "line", descending=[True, True, False, False])
        )
        largest = slow.sort("flops", "id", descending=[True, False], nulls_last=True)
        top = largest.row(0, named=True)
        count = slow["op"].n_unique() / view.steps
        lines = places.drop_nulls("file").select("file", "line").iter_rows()
        verb = "is in float32 and runs" if count == 1 else "are in float32 and run"
        yield self.finding(
            f"{counted(count, 'matrix product')} a step {verb} without TF32",
            subject="float32",
            place=view.place_of_group(places.row(0, named=True)),
            count=count,
            gpu_ns=worth / view.steps,
            evidence=[
                ("time", f"{time(int(slow['dur'].sum()) / view.steps)} a step"),
                ("lines", listed([f"{file}:{line}" for file, line in lines])),
                (
                    "shapes",
                    f"{shape(top['left'])} × {shape(top['right'])}"
                    if top["left"]
                    else "",
                ),
                *kernel_lines(view, slow["id"].to_list()),
            ],
            data={"products": round(count), "gpu": gpu.name},
            advice='call torch.set_float32_matmul_precision("high") at the start of the'
            " program, or compute in bfloat16 (torch.autocast), which is faster still",
            ops=slow["op"],
            kernels=slow["id"],
        )

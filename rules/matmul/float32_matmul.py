"""GEM001: float32 matmuls do not use TF32."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.patterns import matmul
from traceq.linter import (
    FLOAT32,
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    at_function,
    counted,
    dataclass,
    inputs,
    kernel_lines,
    listed,
    option,
    text,
)
from traceq.model import dtypes

from ._shared import shape_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

# Kernels that compute in float32 without tensor cores.
_SIMT = (
    r"(ampere|volta|turing|maxwell)_sgemm_\d|simt_sgemm"
    r"|xmma_gemm_f32f32_f32f32_f32"
)
# The first compute capability with TF32.
_TF32 = (8, 0)
_TF32_ADVICE = (
    'call torch.set_float32_matmul_precision("high") at the start of the program if'
    " inputs with a mantissa of 10 bits are enough"
)
# Where the others run in 16 bits, autocast is on, and something keeps it off these.
_BESIDE = (
    "; the other matmuls run in {half}: check whether these lines need float32, which"
    " .float() or autocast(enabled=False) makes of their inputs"
)
# Where the host bounds the step, autocast makes it longer: each cast is a launch.
_FASTER = ", or compute in bfloat16 (torch.autocast), which is faster still"
_NAMES = {"bf16": "bfloat16", "fp16": "float16"}
_MM = inputs([[4096, 1024], [1024, 1024]], ["float", "float"])


@dataclass(frozen=True)
class Float32Matmul(Rule):
    """Float32 matmuls run without tensor cores because TF32 is off.

    ## What it does

    On GPUs that have TF32 (compute capability 8.0 or later), finds matmuls on plain
    float32 kernels. If any matmul of the trace runs in TF32, it is on and nothing is
    reported. There is one finding for the program, since it is one setting; its place
    is the line with the most operations. Convolutions use TF32 by default and are left
    out.

    ## Why is this bad?

    Tensor cores compute float32 matmuls several times as fast if they may round the
    inputs to TF32: a mantissa of 10 bits, the range of float32, sums in float32.

    ## How to fix it

    ``torch.set_float32_matmul_precision("high")`` at the start of the program. bfloat16
    is faster still, for the whole model; ``torch.autocast`` adds casts, which are
    launches, and so suits GPU-bound steps alone.

    ```diff
    + torch.set_float32_matmul_precision("high")
      main()
    ```

    ## When it is wrong

    Where full float32 is needed, as in solvers, allow the finding. The saving assumes
    TF32 at 60% of the GPU's peak, and half of the time where shapes or the GPU are not
    known.
    """

    code = "GEM001"
    effort = "edit"
    since = "0.1.0"
    see = ("torch.set_float32_matmul_precision", "torch.autocast")
    needs = frozenset({Need.GPU, Need.OPS})
    without_gpu = True

    min_share: float = option(
        0.005, "Report only if TF32 saves at least this share of the GPU's time."
    )

    seen = Seen(
        of="fixtures/twins/attn_fp32",
        text="""
        GEM001 float32-matmul  saves 44.6 ms/step (67%), 42.1 ms to 53.5 ms
          51 float32 matmuls a step run without TF32
          in      forward (dev_cases.py:23)
          time    53.4 ms a step
          lines   forward (dev_cases.py:23), forward (dev_cases.py:37)
          shapes  [8192,768] × [768,32000]
          kernel  Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1> ×13
          kernel  sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_war
                  psize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas ×9
          kernel  Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1> ×9
          fix     call torch.set_float32_matmul_precision("high") at the start of
                  the program if inputs with a mantissa of 10 bits are enough, or
                  compute in bfloat16 (torch.autocast), which is faster still
        """,
    )

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                               ]
            host   [aten::mm           ]
            host    [cudaLaunchKernel>1]
            gpu 7               [ampere_sgemm_128x64_tn<1      ]
            """,
            finds=("1 float32 matmul a step runs without TF32",),
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
        """Put all matmuls on float32 kernels together."""
        gpu = view.gpu
        if gpu.amd or gpu.capability < _TF32:
            return
        rank = view.trace.rank
        if rank and rank.tf32:
            return
        in_tf32 = view.kernels["dtype"] == "tf32"
        if (in_tf32 & matmul.are_matmuls(view.trace, view.kernels)).any():
            return
        calls = matmul.matmuls(view.trace, view.kernels, _SIMT)
        if not calls.height:
            return
        wide = pl.col("type").is_null() | (pl.col("type") == FLOAT32)
        # KRN006 is about batches of tiny ones, which TF32 does not help.
        tiny = matmul.tiny_matmuls(pl.col("left"), pl.col("right"))
        tiny |= matmul.by_vector()
        slow = matmul.with_fastest(calls.filter(wide, ~tiny), gpu, "tf32")
        least = self.min_share * int(view.kernels["dur"].sum())
        # Kernels that took no time, as recorded, save none.
        if slow.height and slow.select(matmul.saved().sum()).item() >= max(1, least):
            yield self._finding(view, slow)

    def check_without_gpu(self, view: View) -> Iterator[Finding]:
        """Put all large float32 matmuls together, unless TF32 is on."""
        rank = view.trace.rank
        if rank and rank.tf32:
            return
        calls = matmul.matmuls(view.trace, view.kernels, "")
        if not calls.height:
            return
        large = calls.filter(
            pl.col("type") == FLOAT32,
            pl.col("flops") >= assumptions.LARGE_MATMUL_FLOPS,
            ~matmul.by_vector(),
        )
        if large.height:
            unless = "" if rank and rank.tf32 is False else ", unless TF32 is on"
            finding = self._finding(view, large.with_columns(fastest=pl.col("dur")))
            count = counted(large["op"].n_unique() / view.steps, "large float32 matmul")
            yield replace(
                finding,
                message=f"{count} a step would run without tensor cores{unless}",
            )

    def _finding(self, view: View, slow: pl.DataFrame) -> Finding:
        places = (
            slow.group_by("file", "line", "function")
            .agg(text("module").head(1), pl.col("flops", "dur").sum())
            .sort("flops", "dur", "file", "line", descending=[True, True, False, False])
        )
        largest = slow.sort("flops", "id", descending=[True, False], nulls_last=True)
        count = slow["op"].n_unique() / view.steps
        lines = places.drop_nulls("file").select("file", "line", "function")
        where = listed([at_function(*row) for row in lines.iter_rows()])
        time = int(slow["dur"].sum()) / view.steps
        return self.finding(
            f"{counted(count, 'float32 matmul')} a step"
            f" {'runs' if count == 1 else 'run'} without TF32",
            subject="float32",
            place=view.place_of_group(places.row(0, named=True)),
            count=count,
            fix=Fix(
                kernels=slow["id"],
                kernel_share=slow.select(matmul.saved_share()).item(),
            ),
            evidence=[
                Evidence("time", value=time, unit="ns", note="a step"),
                *([Evidence("lines", where)] if where else []),
                *shape_lines(largest.head(1).iter_rows(named=True)),
                *kernel_lines(view, slow["id"]),
            ],
            data={"matmuls": round(count), "gpu": view.gpu.name},
            advice=_TF32_ADVICE + _beside(view, slow),
            ops=slow["op"],
        )


def _beside(view: View, slow: pl.DataFrame) -> str:
    """Return what else to do, by the dtype of the program's other matmuls."""
    computing = matmul.are_matmuls(view.trace, view.kernels)
    kinds = text("dtype").filter(text("dtype").is_in(dtypes.SHORT_HALF))
    others = view.kernels.filter(computing).select(kinds).to_series()
    if len(others) > slow.height:
        short = str(others.mode().sort()[0])
        return _BESIDE.format(half=_NAMES.get(short, short))
    return _FASTER if view.bound.by == "gpu" else ""

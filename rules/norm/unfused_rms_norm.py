"""NRM001: RMSNorm runs op by op instead of as one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base import assumptions, ownership
from traceq.linter import (
    HALF,
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    View,
    counted,
    dataclass,
    dtype_name,
    fused_fixes,
    inputs,
    kernel_lines,
    module_line,
    often,
    shape,
)
from traceq.model.torch_versions import version

from ._norms import fused_share, unfused_rms_norms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_FIRST_FUSED = (2, 9)


@dataclass(frozen=True)
class UnfusedRmsNorm(Rule):
    """RMSNorm runs op by op because its weight and its input differ in dtype.

    ## What it does

    Finds ``aten::rms_norm`` without ``aten::_fused_rms_norm`` inside, and compares the
    dtypes of input and weight. Torch before 2.9 has no fused RMSNorm; then that is the
    cause. LayerNorm is always fused: with dtypes that differ it raises an error.

    ## Why is this bad?

    A norm is memory-bound. As one kernel it reads its input and writes its result once;
    op by op it does so seven times, and again in the backward.

    ## How to fix it

    Give the norm a weight of the input's dtype (``norm.to(torch.bfloat16)``, or
    ``nn.RMSNorm(…, dtype=torch.bfloat16)``): the fused kernel computes in float32
    inside. Or compile the model.

    ```diff
    - self.norm = nn.RMSNorm(width)
    + self.norm = nn.RMSNorm(width, dtype=torch.bfloat16)
    ```

    ## When it is wrong

    Float32 weights may be intentional, for training without a master copy; then compile
    the model. The saving assumes a fused kernel at 30% of the GPU's bandwidth.
    """

    code = "NRM001"
    effort = "edit"
    since = "0.1.0"
    see = ("torch.nn.RMSNorm", "torch.nn.functional.rms_norm")
    needs = frozenset({Need.GPU, Need.OPS})
    without_gpu = True

    seen = Seen(
        of="fixtures/lines/norm_dtype_mismatch",
        text="""
        NRM001 unfused-rms-norm  saves 5.04 ms/step (54%), 2.76 ms to 6.33 ms
          RMSNorm runs as 8 kernels instead of 1, 8 times a step, because its input
            is bfloat16 and its weight float32
          at       fixtures/programs/norm_dtype_mismatch.py:23 forward in
                   Sequential_0/Block_0/RMSNorm_0
                     22 |     def forward(self, x: torch.Tensor) -> torch.Tensor:
                   > 23 |         return x + self.linear(self.norm(x))
                     24 |
          op       aten::rms_norm [8192,2048]
          dtype    input bfloat16, weight float32
          kernel   elementwise_kernel<BinaryFunctor, MulFunctor> ×30
          kernel   vectorized_elementwise_kernel<BinaryFunctor, MulFunctor> ×29
          kernel   unrolled_elementwise_kernel<direct_copy_kernel_cuda> ×16
          kernel   vectorized_elementwise_kernel<bfloat16_copy_kernel_cuda> ×15
          modules  Sequential_0/Block_0/RMSNorm_0 and 7 more
          log      RMSNorm falls back from its fused kernel: its input is
                   c10::BFloat16, its weight float
          line     Mismatch dtype between input and weight: input dtype =
                   c10::BFloat16, weight dtype = float, Cannot dispatch to fused
                   implementation. (line 1)
          with     FUS001: one torch.compile fixes both
          fix      give the norm a bfloat16 weight (norm.to(torch.bfloat16)), its
                   kernel computes in float32 inside; or compile the model
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                                 ]
            host    [nn.Module: RMSNorm_0                                         ]
            host     [aten::rms_norm                                             ]
            host      [aten::to        ]  [aten::pow       ]  [aten::mean       ]
            host      [cuLaunchKernel>1]  [cuLaunchKernel>2]  [cuLaunchKernel>3 ]
            gpu 7                 [copy<1 ]          [pow<2 ]         [reduce<3 ]
            """,
            finds=(
                "RMSNorm runs as 3 kernels instead of 1, once a step, because its input"
                " is bfloat16 and its weight float32",
            ),
            args={
                "aten::rms_norm": inputs(
                    [[8, 1024, 768], [], [768]],
                    ["c10::BFloat16", "ScalarList", "float"],
                ),
            },
        ),
        Good(
            """
            host   [ProfilerStep#1                                                   ]
            host    [nn.Module: RMSNorm_0                                           ]
            host     [aten::rms_norm                                               ]
            host      [aten::_fused_rms_norm]
            host       [cudaLaunchKernel>1]
            gpu 7                  [vectorized_layer_norm_kernel<1 ]
            """,
            args={
                "aten::rms_norm": inputs(
                    [[8, 1024, 768], [], [768]],
                    ["c10::BFloat16", "ScalarList", "c10::BFloat16"],
                ),
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the norms by place and cause."""
        gpu = view.gpu
        newest = version(view.trace.facts.torch_to)
        norms = unfused_rms_norms(view.trace, view.kernels)
        rows = [
            row | {"cause": _cause(row, newest), "share": fused_share(row, gpu)}
            for row in norms.iter_rows(named=True)
        ]
        for same in ownership.together(rows, "cause"):
            yield self._finding(view, same)

    def _finding(self, view: View, rows: list[Row]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["dims"] or []))
        kernels = [kernel for row in rows for kernel in row["kernels"]]
        calls = sum(row["calls"] for row in rows) / view.steps
        why, advice = _cause_and_advice(most)
        return self.finding(
            f"RMSNorm runs as {counted(most['launches'], 'kernel')} instead of 1,"
            f" {often(calls)}{why}",
            subject=f"rms_norm {most['cause']}",
            place=view.place(most),
            count=calls,
            fix=[
                fix
                for row in rows
                for fix in fused_fixes(row, assumptions.FUSED_NORM_LAUNCHES)
            ],
            evidence=[
                *_input_lines(most),
                *kernel_lines(view, kernels, most=4),
                *module_line(most["modules"]),
            ],
            data={key: most[key] for key in ("cause", "dims", "type", "weight")},
            advice=advice,
            example=self._example(most),
        )

    def _example(self, row: Row) -> str:
        if row["cause"] != "dtype":
            return ""
        return self.example().replace("bfloat16", dtype_name(row["type"]))


def _cause(row: Row, torch: tuple[int, ...]) -> str:
    if torch and torch < _FIRST_FUSED:
        return "version"
    has_types = row["type"] and row["weight"]
    return "dtype" if has_types and row["type"] != row["weight"] else "unknown"


def _input_lines(row: Row) -> Iterator[Evidence]:
    if row["dims"]:
        yield Evidence("op", f"aten::rms_norm {shape(row['dims'])}")
    if row["type"]:
        input_dtype, weight = dtype_name(row["type"]), dtype_name(row["weight"])
        yield Evidence("dtype", f"input {input_dtype}, weight {weight}")


def _cause_and_advice(row: Row) -> tuple[str, str]:
    """Return why a norm is not fused, and what to do about it."""
    if row["cause"] == "version":
        return (
            ": this torch has no fused RMSNorm",
            "use torch 2.9 or later, whose RMSNorm is one kernel, or compile the model",
        )
    if row["cause"] == "dtype":
        dtype, weight = dtype_name(row["type"]), dtype_name(row["weight"])
        half = row["type"] in HALF
        inside = ", its kernel computes in float32 inside" if half else ""
        return (
            f", because its input is {dtype} and its weight {weight}",
            f"give the norm a {dtype} weight (norm.to(torch.{dtype})){inside}; or"
            " compile the model",
        )
    return (
        "",
        "check that weight and input have one dtype, that the input is contiguous, and"
        " that torch is 2.9 or later",
    )

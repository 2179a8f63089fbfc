"""NRM003: a norm runs in float32 between casts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base import assumptions, ownership
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
    kernel_lines,
    module_line,
    often,
    shape,
)

from ._norm_casts import norm_casts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_NAMES = {
    "aten::layer_norm": "LayerNorm",
    "aten::rms_norm": "RMSNorm",
    "aten::group_norm": "GroupNorm",
}

_DIMS = [8, 1024, 768]
_KEEP = (
    "keep the model in {half} (model.to(torch.{half})), with float32 weights in the"
    " optimizer only, instead of autocast: the norm's kernel computes in float32 inside"
    " anyway; or compile the model"
)
# GradScaler raises an error for gradients in float16: "Attempting to unscale".
_SCALED = (
    "compile the model, which casts in the norm's kernel; GradScaler refuses a model in"
    " float16, so keep it in 16 bits only if it can be trained in bfloat16"
)
# Without autocast, casts that the program itself writes before a norm and behind it.
_UNWRITTEN = (
    "call the norm without the casts: {call}; its kernel computes in float32 inside"
    " anyway; the weights are rounded to {half}: compare the results"
)
_CALLS = {
    "aten::layer_norm": "F.layer_norm(x, shape, {weight}, {bias}, eps)",
    "aten::rms_norm": "F.rms_norm(x, shape, {weight}, eps)",
    "aten::group_norm": "F.group_norm(x, groups, {weight}, {bias}, eps)",
}
_COMPILED = (
    "compile the function that casts and normalises, which makes one kernel of both"
)
_UNDER_AUTOCAST = (
    _COMPILED + "; without the casts in the program autocast would run this norm in"
    " float32 all the same"
)


@dataclass(frozen=True)
class NormBetweenCasts(Rule):
    """A norm runs in float32 in a 16-bit model, with casts before or after it.

    ## What it does

    Finds fused norms on float32 whose input is upcast inside them, or whose result the
    next op casts to bfloat16 or float16. That is what autocast does: it runs
    ``layer_norm`` and ``group_norm`` (and ``rms_norm`` from torch 2.12 on) in float32,
    and their results stay in float32 until a matmul casts them.

    ## Why is this bad?

    A norm is memory-bound. In float32 it reads and writes twice the bytes, and each
    cast reads and writes them once more, in the forward and in the backward. The fused
    kernels compute in float32 inside, whatever the dtype of their input.

    ## How to fix it

    Keep the model in bfloat16, with float32 weights in the optimizer only, instead of
    autocast. Or compile the model, which fuses the casts into the norm. A model that is
    trained in float16 cannot be kept in float16: ``GradScaler`` refuses such gradients.
    Where the program itself casts, as ``norm(x.float()).type(x.dtype)``, and autocast
    does not, leave these casts out.

    ```diff
    - with torch.autocast("cuda", torch.bfloat16):
    -     loss = model(batch)
    + model = model.to(torch.bfloat16)  # its optimizer has float32 copies
    + loss = model(batch)
    ```

    ## When it is wrong

    A residual stream in float32 may be intentional, for accuracy; then only compiling
    helps. A cast behind a norm is taken for that of its result where no matmul is in
    between. The saving counts the casts and, where the norm can run in 16 bits, a third
    of the norm.
    """

    code = "NRM003"
    several_fixes = True
    since = "0.1.0"
    see = ("torch.autocast", "torch.nn.LayerNorm")
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})
    without_gpu = True

    seen = Seen(
        of="fixtures/twins/norm_mismatch",
        text="""
        NRM003 norm-between-casts  saves 476 µs/step (4%), 273 µs to 1.21 ms
          RMSNorm runs in float32 8 times a step, and its result is cast to bfloat16
          in       forward (dev_cases.py:23) of LM_0/Block_0/RMSNorm_0
          op       aten::rms_norm [8,1024,768]
          casts    221 µs a step, forward and backward
          kernel   GammaBetaBackwardCUDAKernelTemplate<float, float, 32u, 32u, 256u,
                   false, true, true> ×8
          kernel   layer_norm_grad_input_kernel_vectorized<float, float, true> ×8
          kernel   unrolled_elementwise_kernel<direct_copy_kernel_cuda> ×8
          kernel   vectorized_elementwise_kernel<CUDAFunctor_add> ×8
          modules  LM_0/Block_0/RMSNorm_0 and 7 more
          with     FUS001: one torch.compile fixes both
          fix      keep the model in bfloat16 (model.to(torch.bfloat16)), with
                   float32 weights in the optimizer only, instead of autocast: the
                   norm's kernel computes in float32 inside anyway; or compile the
                   model
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                                   ]
            host    [model.py(23): forward                                          ]
            host     [aten::layer_norm        ]   [aten::linear                    ]
            host      [aten::native_layer_norm]    [aten::_to_copy                ]
            host       [cudaLaunchKernel>1]         [aten::copy_                 ]
            host                                     [cudaLaunchKernel>2]
            gpu 7                    [layer_norm<1    ]         [bfloat16_copy_kernel<2]
            """,
            finds=(
                "LayerNorm runs in float32 once a step, and its result is cast to"
                " bfloat16",
            ),
            args={
                "aten::native_layer_norm": inputs([_DIMS], ["float"]),
                "aten::copy_": inputs([_DIMS] * 2, ["c10::BFloat16", "float"]),
            },
        ),
        Good(
            """
            host   [ProfilerStep#1                                                   ]
            host    [model.py(23): forward                                          ]
            host     [aten::layer_norm        ]   [aten::linear                    ]
            host      [aten::native_layer_norm]
            host       [cudaLaunchKernel>1]         [cudaLaunchKernel>2]
            gpu 7                    [layer_norm<1    ]         [gemm<2           ]
            """,
            args={"aten::native_layer_norm": inputs([_DIMS], ["c10::BFloat16"])},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the norms by place and by which casts there are."""
        rows = norm_casts(view.trace, view.kernels).iter_rows(named=True)
        for same in ownership.together(rows, "norm", "half", "up", "down", "written"):
            yield self._finding(view, same)

    def _finding(self, view: View, rows: list[Row]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["dims"]))
        kernels = {kernel for row in rows for kernel in row["kernels"]}
        casts = {kernel for row in rows for kernel in row["casts"]}
        calls = sum(row["calls"] for row in rows) / view.steps
        cast_ns = sum(row["cast_ns"] for row in rows) / view.steps
        half = dtype_name(most["half"])
        narrow, advice = _advice(most, half, trains=view.trains)
        norm = Fix(
            kernels=kernels - casts, kernel_share=assumptions.FLOAT32_NORM_SAVING
        )
        return self.finding(
            _message(most, often(calls)),
            subject=f"{most['norm']} {half}",
            place=view.place(most),
            count=calls,
            fix=[
                Fix(kernels=casts, ops={op for row in rows for op in row["cast_ops"]}),
                *([norm] if narrow else []),
            ],
            evidence=[
                Evidence("op", f"{most['norm']} {shape(most['dims'])}"),
                Evidence(
                    "casts",
                    value=cast_ns,
                    unit="ns",
                    note="a step, forward and backward",
                ),
                *kernel_lines(view, kernels, most=4),
                *module_line(most["modules"]),
            ],
            data={key: most[key] for key in ("norm", "half", "up", "down", "dims")},
            advice=advice,
            example="" if most["written"] else None,
            kernels=kernels,
            ops=[op for row in rows for op in row["ops"]],
        )


def _advice(row: Row, half: str, *, trains: bool) -> tuple[bool, str]:
    """Return whether the norm will read and write 16 bits, and what to change."""
    if not row["written"]:
        scaled = half == "float16" and trains
        return not scaled, _SCALED if scaled else _KEEP.format(half=half)
    if row["autocast"]:
        return False, _UNDER_AUTOCAST
    if not row["up"]:
        return False, _COMPILED
    call = _CALLS[row["norm"]].format(
        weight="weight.to(x.dtype)", bias="bias.to(x.dtype)"
    )
    return row["down"], _UNWRITTEN.format(call=call, half=half)


def _message(row: Row, how_often: str) -> str:
    half = dtype_name(row["half"])
    parts = [f"its input is cast from {half}"] * row["up"]
    parts += [f"its result is cast to {half}"] * row["down"]
    return (
        f"{_NAMES[row['norm']]} runs in float32 {how_often}, and {' and '.join(parts)}"
    )

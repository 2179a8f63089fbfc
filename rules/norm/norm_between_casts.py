"""NRM003: a norm computes in float32 between casts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from traceq.analysis.patterns.norms import norm_casts
from traceq.lint import Bad, Good, Need, Rule, View, inputs
from traceq.lint.evidence import dtype, kernel_lines, module_line
from traceq.words import shape, time, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

_NAMES = {
    "aten::layer_norm": "LayerNorm",
    "aten::rms_norm": "RMSNorm",
    "aten::group_norm": "GroupNorm",
}
# On an H200 a fused norm in float32 takes half as long again as one in 16 bits.
_SAVED_OF_NORM = 1 / 3

_DIMS = [8, 1024, 768]


@dataclass(frozen=True)
class NormBetweenCasts(Rule):
    """A norm computes in float32 in a model of 16 bits, and is cast before or after.

    ## What it does

    Looks for fused norms on float32 whose input is cast up inside them, or whose
    result the next op casts to 16 bits, as autocast does: it runs ``layer_norm`` and
    ``group_norm`` (and, from torch 2.12 on, ``rms_norm``) in float32, and keeps what
    comes out of them in float32 until a matrix product casts it.

    ## Why is this bad?

    A norm is bound by memory. In float32 it reads and writes twice the bytes, and each
    cast reads and writes them once more, in the forward and in the backward. The
    fused kernels compute in float32 inside, whatever they are given.

    ## How to fix it

    Keep the model in bfloat16, with float32 weights in the optimizer only, instead of
    autocast; or compile it, which fuses the casts into the norm.

    ## When it is wrong

    A residual stream in float32 may be wanted for its accuracy; then only compiling
    helps. The cost is that of the casts and of a third of the norm.
    """

    code = "NRM003"
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})

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
                "LayerNorm computes in float32 once a step, and its result is cast to"
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
        groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
        for row in norm_casts(view.trace, view.kernels).iter_rows(named=True):
            place = (row["file"], row["line"], row["function"], row["layers"])
            casts = (row["norm"], row["half"], row["up"], row["down"])
            groups.setdefault((*place, *casts), []).append(row)
        for rows in groups.values():
            yield self._finding(view, rows)

    def _finding(self, view: View, rows: list[dict[str, Any]]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["dims"]))
        kernels = [kernel for row in rows for kernel in row["kernels"]]
        calls = sum(row["calls"] for row in rows) / view.steps
        casts = sum(row["cast_ns"] for row in rows) / view.steps
        all_ns = sum(row["gpu_ns"] for row in rows) / view.steps
        norm, half = _NAMES[most["norm"]], dtype(most["half"])
        parts = [f"its input is cast from {half}"] * most["up"]
        parts += [f"its result is cast to {half}"] * most["down"]
        return self.finding(
            f"{norm} computes in float32 {times(calls)} a step, and"
            f" {' and '.join(parts)}",
            subject=f"{most['norm']} {half}",
            place=view.place(most),
            count=calls,
            gpu_ns=casts + (all_ns - casts) * _SAVED_OF_NORM,
            evidence=[
                ("op", f"{most['norm']} {shape(most['dims'])}"),
                ("casts", f"{time(casts)} a step, forward and backward"),
                *kernel_lines(view, kernels, most=4),
                *module_line(most["modules"]),
            ],
            data={key: most[key] for key in ("norm", "half", "up", "down", "dims")},
            advice=f"keep the model in {half} (model.to(torch.{half})), with weights in"
            " float32 in the optimizer only, in place of autocast, or compile it: the"
            " norm's kernel computes in float32 inside anyway",
            ops=[op for row in rows for op in row["ops"]],
            kernels=kernels,
        )

"""ATT005: fused attention is given the lower triangle as a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions, ownership
from traceq.analysis.patterns import attention
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    dataclass,
    inputs,
    kernel_lines,
    located_advice,
    module_line,
    often,
    own_function,
    shape,
)

from ._mask_work import fix, mask_work, work_lines
from ._shared import attention_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_DRAWN = """
            host   [ProfilerStep#1                                                    ]
            host    [model.py(48): attend                                            ]
            host     [aten::tril][aten::scaled_dot_product_attention                ]
            host                  [aten::_scaled_dot_product_cudnn_attention       ]
            host                   [cudaLaunchKernel>1]
            gpu 7                              [cudnn_sdpa_sm90_flash_fprop<1]
"""
_MASKED = inputs(
    [[8, 12, 1024, 64]] * 3 + [[1024, 1024]], ["c10::BFloat16"] * 3 + ["bool"]
)
_TRIANGLE = inputs([[1024, 1024], []], ["bool", "Scalar"], values=["", "0"])
_BAND = inputs([[1024, 1024], []], ["bool", "Scalar"], values=["", "128"])


@dataclass(frozen=True)
class CausalMaskTensor(Rule):
    """Fused attention is given the lower triangle as a tensor, and computes all of it.

    ## What it does

    Finds ``scaled_dot_product_attention`` on cuDNN's fused kernels with an
    ``attn_mask`` that the trace shows to be the lower triangle: ``tril`` or ``triu`` of
    that size makes it, in eager code or fused into a kernel of torch.compile, or a
    function that makes causal masks. A mask for each query and key that was made before
    the recording may be that triangle: the advice says so. Other backends do not take a
    mask at all without falling back: that is ATT001.

    ## Why is this bad?

    The kernels do not know what is in the mask. They read it for every head, and
    compute the half that it masks, in the forward and in the backward.

    ## How to fix it

    ``is_causal=True`` and no mask: the result is the same.

    ```diff
    - out = F.scaled_dot_product_attention(q, k, v, attn_mask=lower_triangle)
    + out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    ```

    ## When it is wrong

    If the mask has more in it than the triangle, as padding that is added to it where
    the trace does not show: compare the results.
    """

    code = "ATT005"
    effort = "edit"
    since = "0.2.0"
    see = ("torch.nn.functional.scaled_dot_product_attention",)
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})
    without_gpu = True

    seen = Seen(
        of="tests/data/compiled/masked",
        text="""
        ATT005 causal-mask-tensor
          GPU 257 µs/step, but a fix saves nothing: it is not on the critical path
          SDPA is given the lower triangle [512,512] as a tensor 6 times a step
          at       compiled.py:32 forward in Transformer_0/Block_0/Attention_0
                     31 |             bias = torch.zeros(t, t, dtype=x.dtype, devic…
                   > 32 |             y = F.scaled_dot_product_attention(q, k, v, a…
                     33 |         else:
          mask     [512,512] made by aten::tril
          shapes   query [8,12,512,64], key [8,12,512,64], value [8,12,512,64]
          dtype    bfloat16
          kernel   cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_
                   26_64x64x64_1x4x1_cga1x1x1_kernel0_0 ×6
          kernel   cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_
                   7_64x128x64_4x1x1_cga1x1x1_kernel0_0 ×6
          kernel   cudnn::fusion::compute_dot_do_o_specialized<true, 64> ×6
          modules  Transformer_0/Block_0/Attention_0 and 5 more
          fix      in forward: drop attn_mask and pass is_causal=True
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds="SDPA is given the lower triangle [1024,1024] as a tensor once a"
            " step",
            args={
                "aten::scaled_dot_product_attention": _MASKED,
                "aten::tril": _TRIANGLE,
            },
        ),
        Good(
            _DRAWN,
            args={"aten::scaled_dot_product_attention": _MASKED, "aten::tril": _BAND},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the calls by place."""
        rows = []
        if not view.has_op(attention.SDPA_BACKENDS):
            return
        calls = attention.attention(view.trace, view.kernels).filter(
            pl.col("backend") == "cudnn", pl.col("masked"), ~pl.col("causal")
        )
        for row in calls.iter_rows(named=True):
            if attention.mask_kind(row) != "square":
                continue
            high, wide = row["mask"][-2:]
            making = attention.causal_making(view.trace, high, wide, row["module"])
            if making or (making == "" and _is_made_before(view, row)):
                rows.append(row | {"making": making})
        for same in ownership.together(rows):
            yield self._finding(view, same)

    def _finding(self, view: View, rows: list[Row]) -> Finding:
        most = max(rows, key=lambda row: row["gpu_ns"])
        calls = sum(row["calls"] for row in rows) / view.steps
        kernels = [kernel for row in rows for kernel in row["kernels"]]
        work = mask_work(view, rows)
        mask = shape(most["mask"][-2:])
        made = most["making"]
        which = "the lower triangle" if made else "a mask, perhaps the lower triangle,"
        what = "drop attn_mask and pass is_causal=True"
        return self.finding(
            f"SDPA is given {which} {mask} as a tensor {often(calls)}",
            subject="cudnn causal",
            place=view.place(most),
            count=calls,
            fix=[*(_fix(row) for row in rows), *fix(work)],
            evidence=[
                Evidence(
                    "mask",
                    mask,
                    note=f"made by {made}" if made else "made before the recording",
                ),
                *attention_lines(most),
                *kernel_lines(view, kernels),
                *work_lines(view, work),
                *module_line(most["modules"]),
            ],
            severity=None if made else Severity.info,
            data={key: most[key] for key in ("mask", "query", "key", "making")},
            advice=located_advice(
                view,
                own_function(most),
                what if made else f"if the mask is the lower triangle, {what}",
            ),
            example="" if most["via"] else None,
            ops=[op for row in rows for op in row["ops"]],
        )


def _is_made_before(view: View, row: Row) -> bool:
    """Return whether nothing in the recording works on a call's mask."""
    return not view.compiled and not mask_work(view, [row])


def _fix(row: Row) -> Fix:
    """Return what goes of the kernels of calls with masks of one size."""
    long = max(row["mask"][-2:]) >= assumptions.LONG_CAUSAL_MASK
    share = (
        assumptions.LONG_CAUSAL_MASK_SAVING if long else assumptions.CAUSAL_MASK_SAVING
    )
    return Fix(kernels=row["kernels"], kernel_share=share)

"""ATT005: fused attention is given the lower triangle as a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import CAUSAL_MASK_SAVING
from traceq.analysis.base.ownership import together
from traceq.analysis.patterns.attention import attention, causal_making, mask_kind
from traceq.linter import Bad, Evidence, Fix, Good, Need, Rule, View, inputs
from traceq.linter.evidence import kernel_lines, located_advice, module_line
from traceq.words import often, shape

from ._shared import attention_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.analysis.base.ownership import Row
    from traceq.linter import Finding

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
    function that makes causal masks. Other backends do not take a mask at all without
    falling back: that is ATT001.

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

    ## Measured

    Not tried on a GPU.
    """

    code = "ATT005"
    since = "0.2.0"
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})

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
        calls = attention(view.trace, view.kernels).filter(
            pl.col("backend") == "cudnn", pl.col("masked"), ~pl.col("causal")
        )
        for row in calls.iter_rows(named=True):
            if mask_kind(row) != "square":
                continue
            high, wide = row["mask"][-2:]
            making = causal_making(view.trace, high, wide, row["module"])
            if making:
                rows.append(row | {"making": making})
        for same in together(rows):
            yield self._finding(view, same)

    def _finding(self, view: View, rows: list[Row]) -> Finding:
        most = max(rows, key=lambda row: row["gpu_ns"])
        calls = sum(row["calls"] for row in rows) / view.steps
        kernels = [one for row in rows for one in row["kernels"]]
        mask = shape(most["mask"][-2:])
        return self.finding(
            f"SDPA is given the lower triangle {mask} as a tensor {often(calls)}",
            subject="cudnn causal",
            place=view.place(most),
            count=calls,
            fix=Fix(kernels=kernels, kernel_share=CAUSAL_MASK_SAVING),
            evidence=[
                Evidence("mask", mask, note=f"made by {most['making']}"),
                *attention_lines(most),
                *kernel_lines(view, kernels),
                *module_line(most["modules"]),
            ],
            data={key: most[key] for key in ("mask", "query", "key", "making")},
            advice=located_advice(
                view, most["function"], "drop attn_mask and pass is_causal=True"
            ),
            ops=[op for row in rows for op in row["ops"]],
        )

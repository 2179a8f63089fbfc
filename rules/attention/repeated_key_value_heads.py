"""ATT004: key and value heads are copied to match the query heads."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from traceq.analysis.base import ownership
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
    inputs,
    kernel_lines,
    located_advice,
    module_line,
    often,
    own_function,
    shape,
)

from ._repeated_heads import repeated_heads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_HALF = "c10::BFloat16"
_EXPANDED = [8, 2, 4, 1024, 64]
_DRAWN = """
    host   [ProfilerStep#1                                                           ]
    host    [model.py(30): attend                                                   ]
    host     [aten::reshape     ] [aten::scaled_dot_product_attention             ]
    host     [aten::clone       ] [aten::_scaled_dot_product_flash_attention      ]
    host     [cudaLaunchKernel>1] [cudaLaunchKernel>2]
    gpu 7              [copy_kernel<1  ]      [flash_fwd_kernel<2   ]
"""
_ATTENTION = inputs([[8, 8, 1024, 64]] * 3, [_HALF] * 3)


@dataclass(frozen=True)
class RepeatedKeyValueHeads(Rule):
    """K/V heads are materialised to match the query heads instead of using GQA.

    ## What it does

    Finds copies of a tensor that was expanded next to its heads, as
    ``repeat_interleave(n, dim=1)`` and ``x[:, :, None].expand(…).reshape(…)`` make
    them, with the shape of the keys of the next ``scaled_dot_product_attention``. Only
    where that runs on FlashAttention or cuDNN kernels, which support grouped heads.

    ## Why is this bad?

    Keys and values are written and read once for each query head that shares them, and
    kept at that size for the backward. Saving that is the purpose of grouped-query
    attention.

    ## How to fix it

    Pass keys and values as they are, with ``enable_gqa=True`` (torch 2.5 or later).

    ```diff
    - k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    - out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    + out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    ```

    ## When it is wrong

    With an ``attn_mask`` on GPUs without cuDNN's attention, ``enable_gqa`` falls back
    to unfused kernels: compare before you keep it. The saving counts the copies of the
    forward only.
    """

    code = "ATT004"
    effort = "edit"
    since = "0.1.0"
    see = ("torch.nn.functional.scaled_dot_product_attention",)
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.VALUES})
    without_gpu = True

    seen = Seen(
        text="""
        ATT004 repeated-key-value-heads
          saves 17.0 µs/step (37%), 13.8 µs to 23.0 µs
          2 key or value heads are copied to 8 before SDPA, once a step
          in      attend (model.py:30)
          shapes  query [8,8,1024,64], key [8,8,1024,64]
          SDPA    on flash kernels
          kernel  copy_kernel ×1
          fix     in attend: pass keys and values with their 2 heads to
                  F.scaled_dot_product_attention(…, enable_gqa=True) and drop the
                  copies; enable_gqa needs torch 2.5
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds=("2 key or value heads are copied to 8 before SDPA, once a step",),
            args={
                "aten::clone": inputs(
                    [_EXPANDED], [_HALF], strides=[[131072, 65536, 0, 64, 1]]
                ),
                "aten::scaled_dot_product_attention": _ATTENTION,
            },
        ),
        Good(
            _DRAWN,
            args={
                "aten::clone": inputs(
                    [_EXPANDED], [_HALF], strides=[[524288, 64, 128, 512, 1]]
                ),
                "aten::scaled_dot_product_attention": _ATTENTION,
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the copies by place and by how many heads become how many."""
        rows = repeated_heads(view.trace, view.kernels).iter_rows(named=True)
        for same in ownership.together(rows, "heads", "repeats"):
            yield self._finding(view, same)

    def _finding(self, view: View, rows: list[Row]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], prod(row["key"])))
        kernels = [kernel for row in rows for kernel in row["kernels"]]
        copying = [op for row in rows for op in row["ops"]]
        copies = sum(row["calls"] for row in rows) / view.steps
        heads = most["heads"] * most["repeats"]
        advice = (
            f"pass keys and values with their {most['heads']} heads to"
            " F.scaled_dot_product_attention(…, enable_gqa=True) and drop the copies"
        )
        return self.finding(
            f"{most['heads']} key or value heads are copied to {heads} before SDPA,"
            f" {often(copies)}",
            subject=f"{most['heads']} to {heads}",
            place=view.place(most),
            count=copies,
            fix=Fix(kernels=kernels, ops=copying),
            evidence=[
                Evidence(
                    "shapes", f"query {shape(most['query'])}, key {shape(most['key'])}"
                ),
                Evidence("SDPA", f"on {most['backend']} kernels"),
                *kernel_lines(view, kernels),
                *module_line(most["modules"]),
            ],
            data={key: most[key] for key in ("heads", "repeats", "query", "key")},
            advice=located_advice(view, own_function(most), advice),
            example="" if most["via"] else None,
        )

"""ATT004: heads of keys and values are copied for grouped-query attention."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from traceq.analysis.patterns.attention_repeated_heads import repeated_heads
from traceq.lint import Bad, Good, Need, Rule, View, inputs
from traceq.lint.evidence import kernel_lines, module_line
from traceq.words import shape, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

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
    """Heads of keys and values are copied until there are as many as of queries.

    ## What it does

    Looks for copies of a tensor that was expanded beside its heads, as
    ``repeat_interleave(n, dim=1)`` and ``x[:, :, None].expand(…).reshape(…)`` make,
    whose shape the keys of the next ``scaled_dot_product_attention`` have. Only where
    that runs on flash or cuDNN kernels, which need no copies.

    ## Why is this bad?

    Keys and values are written and read as often as heads share them, and kept so for
    the backward; grouped-query attention was to save just that.

    ## How to fix it

    Pass keys and values as they are, with ``enable_gqa=True`` (torch 2.5 and later).

    ## When it is wrong

    With an ``attn_mask`` on GPUs without cuDNN's attention, ``enable_gqa`` leads to
    unfused kernels: look at what it does. The cost is that of the copies of the
    forward alone.
    """

    code = "ATT004"
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES})

    examples = (
        Bad(
            _DRAWN,
            finds=(
                "2 heads of keys or values are copied to 8 before SDPA, once a step",
            ),
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
        groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
        for row in repeated_heads(view.trace, view.kernels).iter_rows(named=True):
            place = (row["file"], row["line"], row["function"], row["layers"])
            key = (*place, row["heads"], row["repeats"])
            groups.setdefault(key, []).append(row)
        for rows in groups.values():
            most = max(rows, key=lambda row: (row["gpu_ns"], prod(row["key"])))
            kernels = [kernel for row in rows for kernel in row["kernels"]]
            copies = sum(row["copies"] for row in rows) / view.steps
            heads = most["heads"] * most["repeats"]
            yield self.finding(
                f"{most['heads']} heads of keys or values are copied to {heads} before"
                f" SDPA, {times(copies)} a step",
                subject=f"{most['heads']} to {heads}",
                place=view.place(most),
                count=copies,
                gpu_ns=sum(row["gpu_ns"] for row in rows) / view.steps,
                evidence=[
                    (
                        "shapes",
                        f"query {shape(most['query'])}, key {shape(most['key'])}",
                    ),
                    ("SDPA", f"on {most['backend']} kernels"),
                    *kernel_lines(view, kernels),
                    *module_line(most["modules"]),
                ],
                data={key: most[key] for key in ("heads", "repeats", "query", "key")},
                advice="pass keys and values with their"
                f" {most['heads']} heads to F.scaled_dot_product_attention(…,"
                " enable_gqa=True) and drop the copies (torch 2.5 or later)",
                ops=[op for row in rows for op in row["ops"]],
                kernels=kernels,
            )

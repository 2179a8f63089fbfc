"""ATT002: attention falls back to slower kernels, for another cause than a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base import ownership
from traceq.analysis.patterns import attention
from traceq.linter import (
    Bad,
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
)

from ._fallback_causes import UNEXPLAINED, cause_and_advice, causes
from ._shared import KERNELS, attention_lines, fixes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_SHAPES = [[8, 12, 1024, 64]] * 3


@dataclass(frozen=True)
class AttentionFallback(Rule):
    """SDPA falls back from FlashAttention because of its inputs (dtype, shape, strides).

    ## What it does

    Finds ``scaled_dot_product_attention`` on mem-efficient or unfused kernels and names
    what FlashAttention does not take: the dtype, the head dim, the strides, heads or
    batch sizes that differ, ``is_causal`` with unequal numbers of queries and keys, too
    few dims. Calls where only a mask is in the way are left to ATT001. Without shapes
    only float32 is seen, from the kernels' names.

    ## Why is this bad?

    Torch picks the kernel without a warning. Mem-efficient kernels take two to four
    times as long as FlashAttention; unfused ones write the whole matrix of scores to
    memory.

    ## How to fix it

    Change the argument that the finding names. Torch prints its own reason with
    ``torch.backends.cuda.can_use_flash_attention(params, debug=True)``.

    ```diff
    - loss = model(batch)
    + with torch.autocast("cuda", dtype=torch.bfloat16):
    +     loss = model(batch)
    ```

    In a host-bound step autocast costs more than attention gains: each of its casts is
    a launch (a step of 8.4 ms took 9% longer). There, keep the model in bfloat16.

    ```diff
    - model = Model().cuda()
    + model = Model().cuda().to(torch.bfloat16)  # and its inputs
    ```

    ## When it is wrong

    The program may need float32, or may have chosen the kernel with ``sdpa_kernel``;
    then no cause is seen, and the finding is an info. The saving is of attention alone,
    with FlashAttention as fast as it is on short sequences.
    """  # noqa: E501 - the summary is one sentence on one line

    code = "ATT002"
    since = "0.1.0"
    see = (
        "torch.nn.functional.scaled_dot_product_attention",
        "torch.autocast",
        "torch.backends.cuda.can_use_flash_attention",
    )
    needs = frozenset({Need.GPU})

    seen = Seen(
        of="fixtures/twins/attn_fp32",
        text="""
        ATT002 attention-fallback  saves 5.37 ms/step (8%), 4.77 ms to 6.62 ms
          SDPA falls back to mem-efficient kernels 4 times a step because query, key
            and value are float32
          in       causal (dev_cases.py:44) of LM_0/Block_0
          shapes   query [8,12,1024,64], key [8,12,1024,64], value [8,12,1024,64]
          dtype    float32
          kernel   fmha_cutlassB_f32_aligned_64x64_k64_sm80 ×4
          kernel   fmha_cutlassF_f32_aligned_64x64_rf_sm80 ×4
          kernel   reduce_kernel<sum_functor> ×4
          modules  LM_0/Block_0 and 3 more
          fix      in causal: cast query, key and value to bfloat16, or run the
                   model in it with model.to(torch.bfloat16) or
                   torch.autocast('cuda', dtype=torch.bfloat16): FlashAttention
                   takes bfloat16 and float16 only; results are rounded to 8 bits:
                   compare them
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                                ]
            host    [model.py(44): attend                                        ]
            host     [aten::scaled_dot_product_attention                        ]
            host      [aten::_scaled_dot_product_efficient_attention           ]
            host       [cudaLaunchKernel>1]
            gpu 7                [fmha_cutlassF_f32_aligned_64x64_rf_sm80<1]
            """,
            finds=(
                "SDPA falls back to mem-efficient kernels once a step because query,"
                " key and value are float32",
            ),
            args={
                "aten::scaled_dot_product_attention": inputs(_SHAPES, ["float"] * 3),
            },
        ),
        Good(
            """
            host   [ProfilerStep#1                                                ]
            host    [model.py(44): attend                                        ]
            host     [aten::scaled_dot_product_attention                        ]
            host      [aten::_scaled_dot_product_flash_attention               ]
            host       [cudaLaunchKernel>1]
            gpu 7                [void pytorch_flash::flash_fwd_kernel<1]
            """,
            args={
                "aten::scaled_dot_product_attention": inputs(
                    _SHAPES, ["c10::BFloat16"] * 3
                ),
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the calls by place, kernels and causes."""
        gpu = view.gpu
        rows = [
            row
            | {
                "causes": causes(row),
                "share": attention.flash_share(row, gpu, causal=row["causal"]),
            }
            for row in attention.fallbacks(view.trace, view.kernels, gpu)
            if row["causes"] != ["mask"]
        ]
        for same in ownership.together(rows, "backend", "causes"):
            yield self._finding(view, same)

    def _finding(self, view: View, rows: list[Row]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["query"] or []))
        calls = sum(row["calls"] for row in rows) / view.steps
        host_bound = view.bound.by == "host"
        why, advice = cause_and_advice(most, "host" if host_bound else "gpu")
        when = f" {often(calls)}" if calls else ""
        fits = most["causes"][0] == "dtype" and not most["via"]
        unexplained = most["causes"][0] in UNEXPLAINED
        return self.finding(
            f"SDPA falls back to {KERNELS[most['backend']]} kernels{when} {why}",
            subject=f"{most['backend']} {', '.join(most['causes'])}",
            place=view.place(most),
            count=calls,
            fix=fixes(rows),
            evidence=[
                *attention_lines(most),
                *kernel_lines(
                    view, [kernel for row in rows for kernel in row["kernels"]]
                ),
                *module_line(most["modules"]),
            ],
            data={key: most[key] for key in ("backend", "query", "key")}
            | {"causes": list(most["causes"])},
            advice=located_advice(view, own_function(most), advice),
            example=self.example(int(host_bound)) if fits else "",
            severity=Severity.info if unexplained else None,
            ops=[op for row in rows for op in row["ops"]],
        )

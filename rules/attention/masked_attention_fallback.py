"""ATT001: attention falls back to slower kernels because it is given a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base import ownership
from traceq.analysis.patterns import attention
from traceq.linter import (
    Bad,
    Evidence,
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
)

from ._mask_kinds import KINDS, kind_of, mask_of
from ._mask_work import fix, mask_work, work_lines
from ._shared import KERNELS, attention_lines, fixes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

# Masks that are priced as a causal one, of which half is computed.
_CAUSAL = ("causal", "square")
# Masks that something computes also without them.
_STAYS = ("bias",)

_SQUARE = inputs(
    [[8, 12, 1024, 64]] * 3 + [[1024, 1024]],
    ["c10::BFloat16"] * 3 + ["bool"],
)


@dataclass(frozen=True)
class MaskedAttentionFallback(Rule):
    """SDPA falls back from FlashAttention because it is given an attn_mask.

    ## What it does

    Finds ``scaled_dot_product_attention`` on mem-efficient or unfused kernels where the
    ``attn_mask`` is all that keeps it from FlashAttention. Masks are described by their
    shape. One is called causal only if the trace shows how it is made: by ``tril`` or
    ``triu`` of that size, or by a function that makes causal masks, and none that makes
    bidirectional masks or sliding windows. A mask on cuDNN's fused kernels is not a
    fallback. What makes, combines or casts the mask goes with it: operators on tensors
    of its shape.

    ## Why is this bad?

    FlashAttention takes no mask. The kernels that do read it from memory for every
    head, and compute the masked half of a causal mask too.

    ## How to fix it

    Causal: ``is_causal=True`` and no mask. Padding: no mask where nothing is padded;
    otherwise pack the sequences (``torch.nn.attention.varlen``, nested tensors). A
    bias: FlexAttention with a ``score_mod``. Any other mask: FlexAttention with a block
    mask, or cuDNN's attention from compute capability 9 on, if it was turned off.

    ```diff
    - out = F.scaled_dot_product_attention(q, k, v, attn_mask=lower_triangle)
    + out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    ```

    ## When it is wrong

    A mask that all sequences share is priced as if it were causal. The saving compares
    with FlashAttention as fast as it is on short sequences. With a single query, as in
    decoding, the kernels differ little. A learned bias has to stay.
    """

    code = "ATT001"
    since = "0.1.0"
    see = (
        "torch.nn.functional.scaled_dot_product_attention",
        "torch.nn.attention.flex_attention",
        "torch.nn.attention.varlen",
        "torch.nn.attention.bias",
    )
    needs = frozenset({Need.GPU, Need.OPS})

    seen = Seen(
        of="fixtures/attn_mask_fmha",
        text="""
        ATT001 masked-attention-fallback
          saves 2.76 ms/step (23%), 2.56 ms to 4.00 ms
          SDPA falls back to mem-efficient kernels 4 times a step because of its
            attn_mask: bool [1024,1024], shared by all sequences and heads
          in       masked (dev_cases.py:48) of LM_0/Block_0
          mask     bool [1024,1024] (often causal or a sliding window)
          shapes   query [8,12,1024,64], key [8,12,1024,64], value [8,12,1024,64]
          dtype    bfloat16
          kernel   fmha_cutlassB_bf16_aligned_64x64_k64_seqaligned_sm80 ×4
          kernel   fmha_cutlassF_bf16_aligned_64x64_rf_sm80 ×4
          kernel   vectorized_elementwise_kernel<FillFunctor> ×4
          modules  LM_0/Block_0 and 3 more
          fix      in masked: if it is the lower triangle, drop attn_mask and pass
                   is_causal=True; for any other mask use FlexAttention with
                   create_block_mask
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                                                ]
            host    [model.py(48): attend                                        ]
            host     [aten::scaled_dot_product_attention                        ]
            host      [aten::_scaled_dot_product_efficient_attention           ]
            host       [cudaLaunchKernel>1]
            gpu 7                [fmha_cutlassF_bf16_aligned_64x64_rf_sm80<1]
            """,
            finds=(
                "SDPA falls back to mem-efficient kernels once a step because of its"
                " attn_mask: bool [1024,1024], shared by all sequences and heads",
            ),
            args={"aten::scaled_dot_product_attention": _SQUARE},
        ),
        Good(
            """
            host   [ProfilerStep#1                                                ]
            host    [model.py(48): attend                                        ]
            host     [aten::scaled_dot_product_attention                        ]
            host      [aten::_scaled_dot_product_cudnn_attention               ]
            host       [cudaLaunchKernel>1]
            gpu 7                [cudnn_generated_fort_native_sdpa_sm90_flash_fprop<1]
            """,
            args={"aten::scaled_dot_product_attention": _SQUARE},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the calls by place, kernels and kind of mask."""
        gpu = view.gpu
        rows = []
        for row in attention.fallbacks(view.trace, view.kernels, gpu):
            if row["causes"] != ["mask"]:
                continue
            kind, making = kind_of(view, row)
            share = attention.flash_share(row, gpu, causal=kind in _CAUSAL)
            rows.append(row | {"kind": kind, "making": making, "share": share})
        for same in ownership.together(rows, "backend", "kind"):
            yield self._finding(view, same)

    def _finding(self, view: View, rows: list[Row]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["mask"] or []))
        calls = sum(row["calls"] for row in rows) / view.steps
        kind = KINDS[most["kind"]]
        mask = mask_of(most)
        work = [] if most["kind"] in _STAYS else mask_work(view, rows)
        return self.finding(
            f"SDPA falls back to {KERNELS[most['backend']]} kernels {often(calls)}"
            f" because of its attn_mask: {f'{mask}, ' if mask else ''}{kind.what}",
            subject=f"{most['backend']} {most['kind']}",
            place=view.place(most),
            count=calls,
            fix=[*fixes(rows), *fix(work)],
            evidence=[
                Evidence(
                    "mask",
                    mask or kind.what,
                    note=kind.note.format(making=most["making"]),
                ),
                *attention_lines(most),
                *kernel_lines(
                    view, [kernel for row in rows for kernel in row["kernels"]]
                ),
                *work_lines(view, work),
                *module_line(most["modules"]),
            ],
            data={
                key: most[key] for key in ("backend", "kind", "mask", "query", "key")
            },
            advice=located_advice(view, own_function(most), kind.advice),
            example=None if "is_causal" in kind.advice and not most["via"] else "",
            ops=[op for row in rows for op in row["ops"]],
        )

"""ATT001: attention falls back to slower kernels because it is given a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
    dtype_name,
    inputs,
    kernel_lines,
    located_advice,
    module_line,
    often,
    own_function,
    shape,
)

from ._shared import KERNELS, attention_lines, fixes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_PACKED = (
    "pack the sequences (torch.nn.attention.varlen, nested jagged tensors or"
    " flash_attn_varlen_func)"
)
_BLOCKS = "use FlexAttention with create_block_mask"
_PACK = f"{_PACKED}, or {_BLOCKS}"
_IF_CAUSAL = "if it is the lower triangle, drop attn_mask and pass is_causal=True"


class _Kind(NamedTuple):
    """What a mask is, as the message has it, why that is so, and what to do."""

    what: str
    note: str
    advice: str


_KINDS = {
    "causal": _Kind(
        "causal",
        "made by {making}",
        "drop attn_mask and pass is_causal=True",
    ),
    "square": _Kind(
        "shared by all sequences and heads",
        "(often causal or a sliding window)",
        f"{_IF_CAUSAL}; for any other mask {_BLOCKS}",
    ),
    "batched causal": _Kind(
        "causal, one for each sequence",
        "made by {making}",
        "where nothing is padded, drop attn_mask and pass is_causal=True; otherwise"
        f" {_PACK}",
    ),
    "batched": _Kind(
        "one for each sequence",
        "(often padding)",
        "if it masks padding, drop attn_mask where nothing is padded, and otherwise"
        f" {_PACKED}; for any other mask {_BLOCKS}",
    ),
    "padding": _Kind(
        "likely padding",
        "(the same for all queries)",
        f"where nothing is padded, drop attn_mask; otherwise {_PACK}",
    ),
    "bias": _Kind(
        "likely a bias",
        "(one for each head, as for ALiBi or relative positions)",
        "use FlexAttention under torch.compile and add the bias in its score_mod",
    ),
    "rectangle": _Kind(
        "with fewer or more queries than keys",
        "(shared by all sequences and heads)",
        "if it is causal, pass torch.nn.attention.bias.causal_lower_right(queries,"
        f" keys) instead; else {_BLOCKS}",
    ),
    "decode": _Kind(
        "for a single query",
        "(often the filled part of a KV cache)",
        "if it marks the filled part of the KV cache, slice keys and values to that"
        " part and drop attn_mask",
    ),
    "": _Kind(
        "shape unknown",
        "(SDPA prepares a mask)",
        f"{_IF_CAUSAL}; if it masks padding, {_PACK}",
    ),
}
# Masks that are priced as a causal one, of which half is computed.
_CAUSAL = ("causal", "square")

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
    fallback.

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

    ## Measured

    On an H200, in ms a step. ``is_causal=True`` instead of the mask: ``attn_mask_fmha``
    12.2 → 9.3, ``mask_long`` 16.0 → 7.4. No mask where nothing is padded:
    ``encoder_padding_mask`` 11.5 → 10.4. In a host-bound step it saved nothing:
    ``mask_tiny`` 11.1 → 12.0.
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
        ATT001 masked-attention-fallback  saves 2.76 ms/step (23%)
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
            kind, making = _kind(view, row)
            share = attention.flash_share(row, gpu, causal=kind in _CAUSAL)
            rows.append(row | {"kind": kind, "making": making, "share": share})
        for same in ownership.together(rows, "backend", "kind"):
            yield self._finding(view, same)

    def _finding(self, view: View, rows: list[Row]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["mask"] or []))
        calls = sum(row["calls"] for row in rows) / view.steps
        kind = _KINDS[most["kind"]]
        mask = _mask(most)
        return self.finding(
            f"SDPA falls back to {KERNELS[most['backend']]} kernels {often(calls)}"
            f" because of its attn_mask: {f'{mask}, ' if mask else ''}{kind.what}",
            subject=f"{most['backend']} {most['kind']}",
            place=view.place(most),
            count=calls,
            fix=fixes(rows),
            evidence=[
                Evidence(
                    "mask",
                    mask or kind.what,
                    note=kind.note.format(making=most["making"]),
                ),
                *attention_lines(most),
                *kernel_lines(view, [one for row in rows for one in row["kernels"]]),
                *module_line(most["modules"]),
            ],
            data={
                key: most[key] for key in ("backend", "kind", "mask", "query", "key")
            },
            advice=located_advice(view, own_function(most), kind.advice),
            example=None if "is_causal" in kind.advice and not most["via"] else "",
            ops=[op for row in rows for op in row["ops"]],
        )


def _kind(view: View, call: Row) -> tuple[str, str]:
    """Return the kind of a call's mask, and what is seen to make it causal, if any."""
    kind = attention.mask_kind(call)
    if kind not in ("square", "batched"):
        return kind, ""
    rows, columns = call["mask"][-2:]
    making = attention.causal_making(view.trace, rows, columns, call["module"])
    if not making:
        return kind, ""
    return "causal" if kind == "square" else "batched causal", making


def _mask(call: Row) -> str:
    size = attention.mask_shape(call)
    if not size:
        return ""
    added = call["mask_type"] != "bool"
    return f"{dtype_name(call['mask_type'])}{' added' if added else ''} {shape(size)}"

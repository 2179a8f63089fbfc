"""ATT001: attention is not fused well because it is given a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from traceq.analysis.base.device import used_gpu
from traceq.analysis.patterns.attention import (
    fallbacks,
    flash_saving,
    mask_kind,
    mask_shape,
    triangles,
)
from traceq.lint import Bad, Good, Need, Rule, View, inputs
from traceq.lint.evidence import attention_lines, dtype, kernel_lines, module_line
from traceq.model.torch_versions import newer_than
from traceq.words import shape, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

_KERNELS = {"efficient": "mem-efficient", "math": "unfused (math)"}
_PACK = (
    "pack the sequences (torch.nn.attention.varlen, nested jagged tensors or"
    " flash_attn_varlen_func), or use FlexAttention with create_block_mask"
)
_IF_CAUSAL = "if it is the lower triangle, drop attn_mask and pass is_causal=True"
# What a mask of each kind is, how that is known, and what to write instead of it.
_KINDS = {
    "triangle": (
        "causal",
        "tril or triu cuts a triangle of this size",
        "drop attn_mask and pass is_causal=True",
    ),
    "square": (
        "likely causal",
        "one square for all sequences and heads",
        f"{_IF_CAUSAL}; for a sliding window use FlexAttention with create_block_mask",
    ),
    "batched": (
        "likely causal and padding",
        "one square for each sequence",
        f"where nothing is padded, drop it and pass is_causal=True; else {_PACK}",
    ),
    "padding": (
        "likely padding",
        "the same for all queries",
        f"where nothing is padded, drop attn_mask; else {_PACK}",
    ),
    "bias": (
        "likely a bias",
        "one for each head, as ALiBi or relative positions",
        "use FlexAttention under torch.compile and add the bias in its score_mod",
    ),
    "rectangle": (
        "for fewer or more queries than keys",
        "one rectangle for all sequences and heads",
        "if it is causal, pass torch.nn.attention.bias.causal_lower_right(queries,"
        " keys) instead; else use FlexAttention with create_block_mask",
    ),
    "decode": (
        "for a single query",
        "likely the filled part of a key-value cache",
        "cut keys and values to the filled part of the cache and drop attn_mask",
    ),
    "": (
        "whose shape is not known",
        "attention prepares a mask",
        f"{_IF_CAUSAL}; {_PACK}",
    ),
}
_CAUSAL = ("triangle", "square")

_SQUARE = inputs(
    [[8, 12, 1024, 64]] * 3 + [[1024, 1024]],
    ["c10::BFloat16"] * 3 + ["bool"],
)


@dataclass(frozen=True)
class MaskedAttentionFallback(Rule):
    """Attention leaves its fastest kernels because it is given an attn_mask.

    ## What it does

    Looks for ``scaled_dot_product_attention`` on mem-efficient or unfused kernels
    where its ``attn_mask`` is all that flash attention refuses. What the mask is for
    is told from its shape, and from ``tril`` or ``triu`` of the same size; where that
    is a conclusion the finding says "likely". A mask that cuDNN's fused kernels take
    is no fallback.

    ## Why is this bad?

    Flash attention takes no mask. The kernels that do read it from memory for every
    head, and compute the masked half of a causal triangle too.

    ## How to fix it

    Causal: ``is_causal=True`` and no mask. Padding: pack the sequences
    (``torch.nn.attention.varlen``, nested tensors), or FlexAttention with a block
    mask. A bias: FlexAttention with a ``score_mod``. Any mask, on GPUs from compute
    capability 9 on: cuDNN's attention, where it was switched off.

    ## When it is wrong

    The cost compares with flash attention at the rate it has on short sequences. For
    a single query, as in decoding, the kernels differ little. A learned bias must
    stay what it is.
    """

    code = "ATT001"
    needs = frozenset({Need.GPU, Need.OPS})

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
                "SDPA runs on mem-efficient kernels once a step because of its"
                " attn_mask, bool [1024,1024], likely causal",
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
        gpu = used_gpu(view.trace)
        cut = triangles(view.trace)
        groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
        for row in fallbacks(view.trace, view.kernels, gpu):
            if row["causes"] != ["mask"]:
                continue
            kind = mask_kind(row)
            if kind == "square" and tuple(row["mask"][-2:]) in cut:
                kind = "triangle"
            saving = flash_saving(row, gpu, causal=kind in _CAUSAL)
            place = (row["file"], row["line"], row["function"], row["layers"])
            found = groups.setdefault((*place, row["backend"], kind), [])
            found.append(row | {"kind": kind, "saving": saving})
        for rows in groups.values():
            yield self._finding(view, rows)

    def _finding(self, view: View, rows: list[dict[str, Any]]) -> Finding:
        most = max(rows, key=lambda row: (row["gpu_ns"], row["mask"] or []))
        kernels = [kernel for row in rows for kernel in row["kernels"]]
        calls = sum(row["calls"] for row in rows) / view.steps
        kind, seen_by, advice = _KINDS[most["kind"]]
        mask = _mask(most)
        return self.finding(
            f"SDPA runs on {_KERNELS[most['backend']]} kernels {times(calls)} a step"
            f" because of its attn_mask, {mask}{kind}",
            subject=f"{most['backend']} {most['kind']}",
            place=view.place(most),
            count=calls,
            gpu_ns=sum(row["saving"] for row in rows) / view.steps,
            evidence=[
                ("mask", f"{mask}{seen_by}"),
                *attention_lines(most),
                *kernel_lines(view, kernels),
                *module_line(most["modules"]),
            ],
            data={
                key: most[key] for key in ("backend", "kind", "mask", "query", "key")
            },
            advice=_told(view, most["function"], advice),
            ops=[op for row in rows for op in row["ops"]],
            kernels=kernels,
        )


def _mask(row: dict[str, Any]) -> str:
    size = mask_shape(row)
    if not size:
        return ""
    kind = "bool" if row["mask_type"] == "bool" else f"{dtype(row['mask_type'])} added"
    return f"{kind} {shape(size)}, "


def _told(view: View, function: str | None, advice: str) -> str:
    """Say where to do it, and what of it needs a newer torch."""
    newer = newer_than(view.trace.facts, advice)
    notes = "".join(f"; {name} needs torch {first}" for name, first in newer.items())
    return (f"in {function}: " if function else "") + advice + notes

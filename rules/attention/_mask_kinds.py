"""Kinds of attention masks, and what to write instead of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traceq.analysis.patterns import attention
from traceq.linter import View, dtype_name, shape

if TYPE_CHECKING:
    from traceq.linter import Row

_PACKED = (
    "pack the sequences (torch.nn.attention.varlen, nested jagged tensors or"
    " flash_attn_varlen_func)"
)
_BLOCKS = "use FlexAttention with create_block_mask"
_PACK = f"{_PACKED}, or {_BLOCKS}"
_IF_CAUSAL = "if it is the lower triangle, drop attn_mask and pass is_causal=True"


class _Kind(NamedTuple):
    """A kind of mask: its name in the message, the grounds for it, and the advice."""

    what: str
    note: str
    advice: str


KINDS = {
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
        "if it masks padding alone, drop attn_mask where nothing is padded, and"
        f" otherwise {_PACKED}; for any other mask {_BLOCKS}",
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


def kind_of(view: View, call: Row) -> tuple[str, str]:
    """Return the kind of a call's mask, and what is seen to make it causal, if any."""
    kind = attention.mask_kind(call)
    if kind not in ("square", "batched"):
        return kind, ""
    rows, columns = call["mask"][-2:]
    making = attention.causal_making(view.trace, rows, columns, call["module"])
    if not making:
        return kind, ""
    return "causal" if kind == "square" else "batched causal", making


def mask_of(call: Row) -> str:
    size = attention.mask_shape(call)
    if not size:
        return ""
    added = call["mask_type"] != "bool"
    return f"{dtype_name(call['mask_type'])}{' added' if added else ''} {shape(size)}"

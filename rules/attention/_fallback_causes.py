"""Causes of an attention fallback, and the advice for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._shared import INPUTS, dtypes

if TYPE_CHECKING:
    from traceq.linter import Row

# What FlashAttention does not take, and what to do about it; filled in from the call.
_CAUSES = {
    "rank": (
        "its inputs have {rank} dims instead of 4",
        "pass [batch, heads, sequence, head dim]; unsqueeze what is missing",
    ),
    "mixed dtypes": (
        "query, key and value are {types}",
        "cast them to one dtype, as query.to(value.dtype): rotary embeddings in float32"
        " often leave query and key in float32",
    ),
    "dtype": (
        "query, key and value are {types}",
        "{precision}: FlashAttention takes bfloat16 and float16 only; results are"
        " rounded to 8 bits: compare them",
    ),
    "head dims": (
        "query, key and value have head dims {width}, {key_width} and {value_width}",
        "pad them with zeros to one head dim, pass scale={width} ** -0.5, and slice the"
        " result",
    ),
    "head dim": (
        "the head dim is {width}, more than FlashAttention supports on this GPU",
        "if the model may change, use more heads of 64 or 128, which are fastest",
    ),
    "strides": (
        "the last dim of query, key or value is not contiguous",
        "transpose other dims than the last, or call .contiguous() on that input",
    ),
    "batch": (
        "query, key and value have batch sizes {batch}, {key_batch} and {value_batch}",
        "expand them to one batch size",
    ),
    "heads": (
        "query has {heads} heads, key and value have {key_heads}",
        "pass enable_gqa=True",
    ),
    "causal": (
        "is_causal=True is used with {length} queries and {key_length} keys",
        "if the queries are the last positions of the keys, as with a KV cache, pass"
        " attn_mask=torch.nn.attention.bias.causal_lower_right({length}, {key_length})"
        " instead: is_causal=True aligns the mask to the first key",
    ),
    "": (
        "and its arguments do not show why",
        "look for sdpa_kernel(...), enable_flash_sdp(False), or a torch built without"
        " FlashAttention",
    ),
    "unknown": (
        "and this trace does not show why",
        "record with profile(record_shapes=True); likely causes are an attn_mask or"
        " sdpa_kernel(...)",
    ),
}
_TO_BFLOAT16 = "cast query, key and value to bfloat16, or run the model in it with"
# Autocast casts weights and activations, each by a launch.
_PRECISION = {
    "gpu": f"{_TO_BFLOAT16} model.to(torch.bfloat16) or"
    " torch.autocast('cuda', dtype=torch.bfloat16)",
    "host": f"{_TO_BFLOAT16} model.to(torch.bfloat16), not with torch.autocast, whose"
    " casts are launches that this step would wait for",
}
UNEXPLAINED = ("", "unknown")
_DIMS = ("batch", "heads", "length", "width")


def causes(call: Row) -> tuple[str, ...]:
    if call["causes"]:
        return tuple(call["causes"])
    return ("",) if call["query"] else ("unknown",)


def cause_and_advice(call: Row, bound_by: str) -> tuple[str, str]:
    """Return why a call falls back, and what to do about it.

    What is quick depends on whether host or GPU bounds the step.
    """
    causes = [_CAUSES[cause] for cause in call["causes"] if cause != "mask"]
    why = ", and ".join(text for text, _ in causes)
    advice = "; ".join(text for _, text in causes)
    if "mask" in call["causes"]:
        why, advice = f"{why}, and it has an attn_mask", f"{advice}; then see ATT001"
    if call["causes"][0] not in UNEXPLAINED:
        why = f"because {why}"
    sizes = _sizes(call) | {"precision": _PRECISION[bound_by]}
    return why.format(**sizes), advice.format(**sizes)


def _sizes(call: Row) -> dict[str, str]:
    """Return what the texts on causes are filled in with."""
    values = {"types": " and ".join(dtypes(call)) or "float32"}
    if not call["query"]:
        return values
    for part in INPUTS:
        prefix = "" if part == "query" else f"{part}_"
        sizes = zip(_DIMS, call[part], strict=False)
        values |= {f"{prefix}{name}": str(size) for name, size in sizes}
    return values | {"rank": str(len(call["query"]))}

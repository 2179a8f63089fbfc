"""``is_causal=True`` instead of a mask that the recording proves to be causal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.fix.edit import RefusedError
from traceq.fix.program import only
from traceq.fix.syntax import (
    is_literal,
    keyword,
    positional,
    refuse_stars,
    with_keyword,
)

if TYPE_CHECKING:
    import libcst as cst

    from traceq.fix.edit import Replacement
    from traceq.fix.program import Program
    from traceq.fix.syntax import Code
    from traceq.model.finding import Finding

_SDPA = {
    "torch.nn.functional.scaled_dot_product_attention",
    "torch._C._nn.scaled_dot_product_attention",
}
# By position: query, key, value, attn_mask, dropout_p, is_causal.
_MASK, _CAUSAL = 3, 5
_PROVED = "causal"


def edit(program: Program, finding: Finding) -> list[Replacement]:
    """Return the call at the line of the finding without its mask."""
    if finding.code != "ATT005" and finding.data.get("kind") != _PROVED:
        msg = "the recording does not show that the mask is the lower triangle"
        raise RefusedError(msg)
    code = program.code(finding)
    calls = [
        (code, call) for call in code.at(finding.place) if code.name(call.func) in _SDPA
    ]
    _, call = only(calls, "scaled_dot_product_attention(…)", _where(code, finding))
    refuse_stars(code, call)
    mask, causal = (
        _argument(call, "attn_mask", _MASK),
        _argument(call, "is_causal", _CAUSAL),
    )
    if mask is None or is_literal(mask, "None"):
        msg = f"the call at line {code.lines(call)[0]} of {code.file} has no attn_mask"
        raise RefusedError(msg)
    if causal is None and len(positional(call)) <= _MASK + 1:
        return [code.replaced(mask, "is_causal=True")]
    none = code.replaced(mask, "attn_mask=None" if mask.keyword else "None")
    if causal is None:
        return [none, *with_keyword(code, call, "is_causal", "True")]
    if not is_literal(causal, "False"):
        msg = f"`{code.written(causal)}` is decided when the program runs"
        raise RefusedError(msg)
    return [none, code.replaced(causal, "is_causal=True" if causal.keyword else "True")]


def _argument(call: cst.Call, name: str, position: int) -> cst.Arg | None:
    by_position = positional(call)
    if len(by_position) > position:
        return by_position[position]
    return keyword(call, name)


def _where(code: Code, finding: Finding) -> str:
    place = finding.place
    at = "line" if place.exact else "the function at line"
    return f"{at} {place.line} of {code.file}"

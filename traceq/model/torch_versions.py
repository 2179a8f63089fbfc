"""Which parts of torch a trace's own version may not have yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceq.model.facts import Facts

# The torch that first has what advice speaks of.
_FIRST = {
    "FlexAttention": (2, 5),
    "enable_gqa": (2, 5),
    "causal_lower_right": (2, 3),
    "torch.nn.attention.varlen": (2, 10),
}


def newer_than(facts: Facts, text: str) -> dict[str, str]:
    """Return what a text names that the trace's torch may lack, and since when it is.

    A trace that does not say its version may be of any.
    """
    oldest = _version(facts.torch_from)
    return {
        name: ".".join(map(str, first))
        for name, first in _FIRST.items()
        if name in text and oldest < first
    }


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()

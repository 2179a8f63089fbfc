"""Torch versions of the features that advice names, and of the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceq.model.facts import Facts

# The first torch that has what advice names.
_FIRST = {
    "FlexAttention": (2, 5),
    "enable_gqa": (2, 5),
    "causal_lower_right": (2, 3),
    "torch.nn.attention.varlen": (2, 10),
}


def newer_than(facts: Facts, text: str) -> dict[str, str]:
    """Return the names in a text that the trace's torch may lack, with their versions.

    A trace without a version may be of any.
    """
    oldest = version(facts.torch_from)
    return {
        name: ".".join(map(str, first))
        for name, first in _FIRST.items()
        if name in text and oldest < first
    }


def version(text: str) -> tuple[int, ...]:
    """Return a version as numbers that compare; empty if it is not known.

    >>> version("2.11"), version("")
    ((2, 11), ())
    """
    parts = text.split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()

"""Advice on logits in float32, by the operator that asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceq.linter import Row

_OUTSIDE = 'call the loss inside torch.autocast("cuda", enabled=False): '
_OF_RESULT = (
    f"{_OUTSIDE}autocast casts log-probabilities that were computed in {{half}}, which"
    " makes them no more accurate; or "
)
_OF_INPUT = (
    "cross_entropy sums in float32 inside, and rounds only the log-probabilities it"
    " returns to {half}; to keep float32 throughout, "
)


def subject_and_advice(row: Row) -> tuple[str, str]:
    """Return what is cast, and what to do about it."""
    if row["own"]:
        cast = f"drop the cast in {row['function'] or 'the program'}: "
        return "logits", cast + _OF_INPUT
    if "nll_loss" in row["caller"]:
        return "log-probabilities", _OF_RESULT
    return "logits", _OUTSIDE + _OF_INPUT

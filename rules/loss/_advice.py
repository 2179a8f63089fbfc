"""Advice on logits in float32, by the operator that asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import own_function

if TYPE_CHECKING:
    from traceq.linter import Row

# How a loss of one's own takes the place of a library's.
_OWN_LOSS = {
    "transformers": "call the model without labels and compute the loss from its"
    " logits (with a Trainer: compute_loss_func)",
}
_OUTSIDE = 'call the loss inside torch.autocast("cuda", enabled=False): '
_OF_RESULT = (
    f"{_OUTSIDE}autocast casts log-probabilities that were computed in {{half}}, which"
    " makes them no more accurate; or "
)
_OF_INPUT = (
    "cross_entropy sums in float32 inside, and rounds only the log-probabilities it"
    " returns to {half}; to keep float32 throughout, "
)


def _without_cast(row: Row) -> str:
    """Return how to do without a cast that the program, or a library, asks for."""
    if not row["via"]:
        return f"drop the cast in {own_function(row) or 'the program'}: "
    library = row["via"].partition(" (")[2].partition("/")[0]
    own = _OWN_LOSS.get(library, f"compute the loss in the program, without {library}")
    return f"the cast is in {row['via']}: {own}; "


def subject_and_advice(row: Row) -> tuple[str, str]:
    """Return what is cast, and what to do about it."""
    if row["own"]:
        return "logits", _without_cast(row) + _OF_INPUT
    if "nll_loss" in row["caller"]:
        return "log-probabilities", _OF_RESULT
    return "logits", _OUTSIDE + _OF_INPUT

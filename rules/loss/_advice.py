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
_LARGE = (
    "; or use one that never holds all logits at once: Liger's fused linear cross"
    " entropy, or under autocast F.linear_cross_entropy with"
    " options=torch.nn.LinearCrossEntropyOptions() (torch 2.13)"
)
_FUSED = "cast, softmax and their backward are fused then, and the loss stays float32"
_COMPILED = (
    "compile the loss, as torch.compile(F.cross_entropy), and call it under autocast"
    f" as now: {_FUSED}{_LARGE}; without autocast it makes no copy either, but"
    " rounds the loss itself to {half}"
)
_WITH_CAST = (
    f"compile the function that casts and takes the loss: {_FUSED}{_LARGE};"
    " {without} makes no copy either, but rounds the loss itself to {half}"
)
_LIBRARY = "the cast is in {via}: {own}, in a function of the program's; "


def _with_cast(row: Row, half: str) -> str:
    """Return what to do about a cast that the program, or a library, asks for."""
    if not row["via"]:
        own = own_function(row)
        without = f"dropping the cast in {own}" if own else "dropping the cast"
        return _WITH_CAST.format(without=without, half=half)
    library = row["via"].partition(" (")[2].partition("/")[0]
    own = _OWN_LOSS.get(library, f"compute the loss in the program, without {library}")
    there = _LIBRARY.format(via=row["via"], own=own)
    return there + _WITH_CAST.format(without="doing without the cast", half=half)


def subject_and_advice(row: Row, half: str) -> tuple[str, str]:
    """Return what is cast, and what to do about it."""
    if row["own"]:
        return "logits", _with_cast(row, half)
    what = "log-probabilities" if "nll_loss" in row["caller"] else "logits"
    return what, _COMPILED.format(half=half)

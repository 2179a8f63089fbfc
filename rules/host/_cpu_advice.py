"""Advice on operators that work on tensors in host memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from traceq.linter import Evidence

from ._cpu_tensors import InputTensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from traceq.linter import View

# The largest tensor that the advice keeps on the GPU. Heuristic threshold.
_MOST_KEPT = 4 << 30
_DRAWS = (
    r"^aten::(bernoulli|binomial|cauchy|exponential|geometric|log_normal|multinomial"
    r"|normal|poisson|random|randperm|uniform)_?$"
)
_PICKS = r"^aten::(embedding|gather|index|index_select|masked_select|take)$"
_DRAW_THERE = (
    'draw the numbers on the GPU: give device="cuda" to the call, instead of'
    ' .to("cuda") after it; from the same seed other numbers are drawn there'
)
# They take no tensors that could be sent to the GPU.
_MAKES = (
    r"^aten::(arange|eye|full|linspace|logspace|ones|range|tril_indices|triu_indices"
    r"|zeros|\w+_window)$"
)
_MAKE_THERE = (
    'make the tensor on the GPU: give device="cuda" to {call}, instead of .to("cuda")'
    " after {last}; or make it once before the loop, where it is the same in every step"
)
_MAKES_THERE = "make the tensor on the GPU"
_PICK_THERE = (
    "keep the tensor that it picks from on the GPU, if it fits, and pick there; or pick"
    " in the DataLoader's workers"
)
_COPY = "aten::copy_"
_COPY_LESS = (
    "torch.tensor() copies an array, torch.from_numpy() and torch.as_tensor() take its"
    " memory as it is; what .contiguous(), .clone() or an assignment copies can be"
    " copied on the GPU, once the tensor is sent"
)
_CAST_THERE = (
    "send the tensor as it is and cast it on the GPU: .to(device).float(), not"
    " .float().to(device); of fewer bits there is less to send"
)
ADVICE = (
    "send its tensors to the GPU before it, not after it; or do it once before the"
    " loop, where it makes the same in every step; or in the DataLoader's workers,"
    " where it is about the next batch"
)
_ALL_THERE = (
    "send the tensors that the first of them takes to the GPU, so that all of them run"
    " there, and not what the last one makes; or do this in the DataLoader's workers,"
    " where it is about the next batch"
)
_MOST_NAMED = 4


class Advice(NamedTuple):
    """Work of an operator, and advice on it."""

    does: str
    text: str
    example: int | None = None
    """Number of the example on the rule's page that shows it."""

    @property
    def is_edit(self) -> bool:
        """Return whether it takes an argument of the call that makes the tensor."""
        return self.text.startswith((_DRAW_THERE, _MAKES_THERE))


def advice_on(view: View, chain: Sequence[Mapping[str, Any]]) -> Advice:
    """Return advice on operators that run one after another."""
    every = [_advice(view, row) for row in chain]
    first = every[0]
    if len(every) == 1:
        return first
    if first.text == _DRAW_THERE:
        return first._replace(text=f"{_DRAW_THERE}; what follows runs there then")
    if re.match(_MAKES, chain[0]["called"]):
        return Advice("", _made_there(chain[0]["called"], last="what follows"))
    if first.text != ADVICE and {row.text for row in every} == {first.text}:
        return first
    return Advice("", _ALL_THERE)


def _advice(view: View, row: Mapping[str, Any]) -> Advice:
    (shape, size, dtype), source = (
        InputTensor.of(view, row["inputs"], at) for at in (0, 1)
    )
    if re.match(_DRAWS, row["name"]):
        return Advice(f"draws {shape or 'numbers'}", _DRAW_THERE, 0)
    if re.match(_MAKES, row["called"]):
        return Advice(f"makes {shape or 'a tensor'}", _made_there(row["called"]))
    if re.match(_PICKS, row["name"]):
        does = f"picks from {shape or 'a tensor'}"
        fits = not size or size <= _MOST_KEPT
        return Advice(does, _PICK_THERE, 1) if fits else Advice(does, ADVICE)
    if row["name"] == _COPY and shape and source.text:
        if dtype == source.dtype:
            return Advice(f"copies {source.text}", _COPY_LESS)
        return Advice(f"casts {source.text}", _CAST_THERE)
    return Advice(f"works on {shape}" if shape else "works", ADVICE)


def _made_there(called: str, last: str = "it") -> str:
    return _MAKE_THERE.format(call=called.replace("aten::", "torch."), last=last)


def op_lines(view: View, chain: Sequence[Mapping[str, Any]]) -> Iterator[Evidence]:
    """Yield the operators that take longest, with what they take."""
    if len(chain) == 1:
        (row,) = chain
        each = row["usual"] / len(row["ids"])
        yield Evidence("op", row["name"])
        yield Evidence("takes", value=each, unit="ns", note="each, as recorded")
        return
    for row in sorted(chain, key=lambda row: -row["usual"])[:_MOST_NAMED]:
        yield Evidence(
            "op",
            row["called"],
            value=row["usual"] / view.steps,
            unit="ns",
            note="a step, as recorded",
        )

"""Advice on operators that work on tensors in host memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from traceq.linter import Evidence

from ._cpu_causes import OF_BATCH, cause_of_data, changes, compares
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
    " after {last}"
)
_ONCE = "; or make it once before the loop, where it is the same in every step"
_BUFFER = (
    "; or make it once in __init__ and keep it by register_buffer, where it is the same"
    " in every step"
)
_MASK_THERE = (
    "make the mask on the GPU, as torch.arange(n, device=lengths.device) <"
    " lengths[:, None]: then what it compares is sent, which is less, or is there"
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
_SEND_BEFORE = "send its tensors to the GPU before it, not after it"
_WORKERS = "or in the DataLoader's workers, where it is about the next batch"
ADVICE = (
    f"{_SEND_BEFORE}; or do it once before the loop, where it makes the same in every"
    f" step; {_WORKERS}"
)
_EACH_STEP = f"{_SEND_BEFORE}; {_WORKERS.replace('or in', 'or do it in')}"
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
    several = len(every) > 1
    if several and any(row.text == _DRAW_THERE for row in every):
        return first._replace(
            text=f"{_DRAW_THERE}; what follows runs there then",
            example=0,
        )
    if re.match(_MAKES, chain[0]["called"]):
        if several and compares(chain):
            return Advice("", _MASK_THERE)
        made = _made_there(view, chain, last="what follows" if several else "it")
        return first._replace(text=made)
    if first.text in (ADVICE, _CAST_THERE, _COPY_LESS):
        _, size, _ = InputTensor.of(view, chain[0]["inputs"], 0)
        cause = cause_of_data(view, chain, size)
        if cause and not (cause == OF_BATCH and first.text == _CAST_THERE):
            return first._replace(text=cause)
    if several:
        alike = first.text != ADVICE and {row.text for row in every} == {first.text}
        return first if alike else Advice("", _ALL_THERE)
    changing = first.text == ADVICE and chain[0]["kinds"] > 1
    return first._replace(text=_EACH_STEP) if changing else first


def _advice(view: View, row: Mapping[str, Any]) -> Advice:
    (shape, size, dtype), source = (
        InputTensor.of(view, row["inputs"], at) for at in (0, 1)
    )
    if re.match(_DRAWS, row["name"]):
        return Advice(f"draws {shape or 'numbers'}", _DRAW_THERE, 0)
    if re.match(_MAKES, row["called"]):
        return Advice(f"makes {shape or 'a tensor'}", _MAKE_THERE)
    if re.match(_PICKS, row["name"]):
        does = f"picks from {shape or 'a tensor'}"
        fits = not size or size <= _MOST_KEPT
        return Advice(does, _PICK_THERE, 1) if fits else Advice(does, ADVICE)
    if row["name"] == _COPY and shape and source.text:
        if dtype == source.dtype:
            return Advice(f"copies {source.text}", _COPY_LESS)
        return Advice(f"casts {source.text}", _CAST_THERE)
    return Advice(f"works on {shape}" if shape else "works", ADVICE)


def _made_there(view: View, chain: Sequence[Mapping[str, Any]], last: str) -> str:
    call = chain[0]["called"].replace("aten::", "torch.")
    text = _MAKE_THERE.format(call=call, last=last)
    if changes(view, chain):
        return text
    in_model = any(row["modules"] for row in chain)
    return text + (_BUFFER if in_model else _ONCE)


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

"""Advice for attention that is written by hand: which call replaces it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from traceq.analysis.base import assumptions, callers
from traceq.analysis.patterns import attention
from traceq.linter import (
    HALF,
    Gpu,
    View,
    fill_false,
    located_advice,
    named_like,
    own_function,
    rewritten,
)

from ._head_dims import changed, multiple, padded
from ._layouts import layout, timed_first, wide
from ._read_weights import reading

if TYPE_CHECKING:
    from traceq.linter import Row

MODULE = "MultiheadAttention"
# Ops that mask, and which of their inputs is the condition.
_CONDITION = {"aten::masked_fill": 1, "aten::masked_fill_": 1, "aten::where": 0}
_MASKING = tuple(_CONDITION)
_ADDING = ("aten::add", "aten::add_")
_FLEX = "use FlexAttention under torch.compile and write {} in its score_mod"
_JOIN = (
    "join all of its masks into one, conditions with & and what is added as a sum, with"
    " the values that it has now, and call"
)
_SDPA = "F.scaled_dot_product_attention(query, key, value{})"
# What transformers calls for attn_implementation="eager".
_EAGER = "eager_attention_forward"
_NOT_EAGER = (
    'load the model with attn_implementation="sdpa", which calls SDPA; where'
    " transformers has that for the model it is the default: see whether something asks"
    ' for "eager", or for output_attentions'
)
_NO_WEIGHTS = (
    "pass need_weights=False to nn.MultiheadAttention, which then calls fused attention"
)
_BETWEEN = "which fuses what is between the matmuls"
_WHERE = ("file", "function", "via", "module")
# The examples of the page.
_WITH_CAUSAL, _PLAIN, _WITH_MASK, _WITH_BIAS, _WITH_BOTH, _OF_TORCH = range(6)


def _share(row: Row, gpu: Gpu) -> float:
    """Return the share of the GPU time that fused attention would save."""
    if row["type"] not in HALF:
        return assumptions.FLOAT32_ATTENTION_SAVING
    return attention.flash_share(row, gpu, causal=_causal(row))


def _masks(row: Row, names: tuple[str, ...] = _MASKING + _ADDING) -> list[list[int]]:
    """Return the shapes of what ops of these names mask the scores with, or add.

    What is added may have the shape of the scores itself.
    """
    size, masks = prod(row["scores"]), []
    for name, dims in zip(row["steps"] or (), row["given"] or (), strict=True):
        shapes = [shape or [] for shape in dims or ()]
        scores = [prod(shape) == size for shape in shapes]
        if name not in names or not any(scores):
            continue
        if name in _ADDING:
            del shapes[scores.index(True)]
        else:
            at = _CONDITION[name]
            shapes = shapes[at : at + 1]
        masks += [shape for shape in shapes if prod(shape) > 1]
    return masks


def _square_masks(row: Row) -> list[list[int]]:
    """Return the shapes of masks that all heads share, as far as they are squares."""
    square = row["scores"][-2:]
    return [
        dims
        for dims in _masks(row)
        if dims[-2:] == square and square[0] == square[1] and dims[-3:-2] in ([], [1])
    ]


def _causal(row: Row) -> bool:
    """Return whether the mask is taken to be causal, for what remains to compute.

    That is a mask seen to be made so, or a square by which all are masked. Next to
    another mask, which has to stay, it is not.
    """
    rows, columns = row["scores"][-2:]
    if len(_masks(row)) > 1:
        return False
    return bool(row["making"]) or (
        rows == columns
        and any(
            dims[-2:] == [rows, columns] and prod(dims) == rows * columns
            for dims in _masks(row, _MASKING)
        )
    )


def _is_eager(view: View, row: Row) -> bool:
    """Return whether transformers runs its attention op by op."""
    if not (view.trace.frames["function"] == _EAGER).any():
        return False
    moment = view.trace.ops.slice(row["first"], 1)
    running = callers.library_calls(view.trace.frames, moment)["library_function"]
    return bool(fill_false(running == _EAGER).any())


def described(view: View, row: Row) -> Row:
    """Return a row with what its advice and its saving depend on.

    ``making`` is what makes its mask causal, ``share`` the share of the GPU time that
    fused attention saves, ``by_torch`` whether torch's module computes it, ``needed``
    what the head dims would have to be multiples of for fused kernels, ``reading`` the
    advice where its weights are read, ``wide`` whether fused kernels are slow for its
    head dims, and ``minor`` whether to change it may not help.
    """
    row = row | {"making": _making(view, row), "by_torch": _by_torch(view, row)}
    masked = bool(_masks(row)) and not _causal(row)
    needed = multiple(row, view.gpu, masked=masked)
    read = reading(view, row)
    return row | {
        "share": 0.0 if read else _share(row, view.gpu),
        "needed": needed,
        "reading": read,
        "wide": wide(row),
        # Another head dim is another model.
        "minor": bool(read or wide(row) or (row["by_torch"] and needed)),
    }


def advice_for(view: View, row: Row) -> tuple[str, int | None]:
    """Return what to do, and which example of the page shows it, if any."""
    needed = row["needed"]
    if row["reading"]:
        return row["reading"], None
    if row["by_torch"]:
        advice = changed(row, needed, _NO_WEIGHTS) if needed else _NO_WEIGHTS
        advice = located_advice(view, own_function(row), advice)
        return advice, None if needed else _OF_TORCH
    if _is_eager(view, row):
        return located_advice(view, own_function(row), _NOT_EAGER), None
    advice, example = _call(row)
    advice += layout(view, row)
    if needed:
        advice, example = padded(row, needed, advice), None
    if row["wide"]:
        advice, example = timed_first(row, advice), None
    # Where the result is computed is where SDPA is to be called.
    where = view.trace.ops[[*_WHERE]]
    parts = ("first", "last", "weighs")
    first, last, weighs = (where.row(row[part], named=True) for part in parts)
    if not weighs["via"]:
        # A library multiplies for the program, as einops does: the rest is its own.
        first, last = {**first, "via": None}, {**last, "via": None}
    if last["via"]:
        # No line of the user's is like the example.
        advice, example = f"{advice}; or compile the model, {_BETWEEN}", None
    elif example == _WITH_BIAS:
        advice = f"{advice}, or {_FLEX.format('the bias')}"
    makes, uses = rewritten(first), rewritten(last)
    if makes and uses and makes != uses:
        return located_advice(view, None, _apart(makes, uses, advice)), None
    return located_advice(view, uses, advice), example


def _apart(makes: str, uses: str, advice: str) -> str:
    """Return the advice where one function makes the scores and another uses them."""
    return (
        f"pass the query and key that {makes} multiplies to {uses}, instead of the"
        f" scores, and there {advice}"
    )


def _call(row: Row) -> tuple[str, int | None]:
    """Return which call replaces it, and which example of the page shows it, if any."""
    steps = row["steps"] or ()
    if "aten::tanh" in steps:
        return _FLEX.format("the soft cap"), None
    dropout = ", dropout_p=…" if "aten::dropout" in steps else ""
    if len(_masks(row)) > 1:
        return f"{_JOIN} {_SDPA.format(f', attn_mask=mask{dropout}')}", _WITH_BOTH
    if row["making"]:
        padded = any(prod(dims[:-2]) > 1 for dims in _square_masks(row))
        call = f"call {_SDPA.format(f', is_causal=True{dropout}')}"
        call = f"where nothing is padded, {call}; see ATT001" if padded else call
        return call, _WITH_CAUSAL
    if any(not _is_padding(row, dims) for dims in _masks(row, _ADDING)):
        return f"call {_SDPA.format(f', attn_mask=bias{dropout}')}", _WITH_BIAS
    if _causal(row):
        call = _SDPA.format(f", is_causal=True{dropout}")
        return f"if the mask is the lower triangle, call {call}", _WITH_CAUSAL
    masked = _masks(row) or any(name in _MASKING for name in steps)
    mask = f", attn_mask=mask{dropout}" if masked else dropout
    call = f"call {_SDPA.format(mask)}"
    return (f"{call}; see ATT001 for masks", _WITH_MASK) if masked else (call, _PLAIN)


def _is_padding(row: Row, dims: list[int]) -> bool:
    """Return whether a mask is the same for all queries."""
    return dims[-2:-1] in ([], [1]) and dims[-1] == row["scores"][-1]


def _making(view: View, row: Row) -> str:
    """Return what is seen to make the mask of the scores causal, if anything."""
    if not _square_masks(row):
        return ""
    queries, keys = row["scores"][-2:]
    return attention.causal_making(view.trace, queries, keys, row["module"]) or ""


def _by_torch(view: View, row: Row) -> bool:
    """Return whether torch's module computes it, not one of the same name.

    Where no function inside of the module was recorded, the name alone is known.
    """
    if MODULE not in (row["module"] or "").rpartition("/")[2]:
        return False
    frames, moment = view.trace.frames, view.trace.ops.slice(row["first"], 1)
    inner = callers.innermost_calls(frames, moment).row(0, named=True)
    module = frames.filter(named_like(frames, rf"^nn\.Module: {MODULE}"))
    begins = callers.innermost(module, moment)["ts"].item()
    if inner["inner_file"] is None or begins is None:
        return True
    return "torch/nn/" in inner["inner_file"] or inner["inner_start"] < begins

"""Advice on loops whose source shows what one iteration leaves for the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import listed

from ._loop_shapes import joined

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_MOST_NAMED = 3
_NEEDS = (
    "each iteration needs {} of the one before, so that iterations cannot be stacked: "
)
_STATE = (
    "compute what does not need it for all iterations at once, before the loop or"
    " after it, and compile the rest of the body with torch.compile"
)
_SOLVER = (
    "compile the body with torch.compile, or replay one CUDA graph in each iteration"
    ' (mode="reduce-overhead"); take fewer steps where the result allows it; or make'
    " more samples at once, as a batch"
)
_TRAINS = (
    "each iteration updates weights that the next one uses, so that iterations cannot"
    " be stacked: give each more to do, as a larger batch, and compile it, or replay it"
    " as a CUDA graph"
)
_WAITS = "; take the syncs out (SYN001) first, at which a graph breaks"
_APART = "no iteration needs the one before: "
_APART_UNLESS = (
    "no iteration sets what the next one uses, so that, unless something that it calls"
    " keeps a state: "
)
_STACK = "stack what the loop goes over and run its operators once for all iterations"
_LAYERS = (
    "run its layers at once, as one wider layer whose output is split where all have"
    " the same input, or with torch.func.stack_module_state and torch.vmap"
)
_LOSSES = (
    "put the values into one tensor, as torch.stack(list(losses.values())), and do"
    " once for all of them what is done for each"
)
_READ = ", and read the results once, as by one .tolist()"
_FOREACH = (
    "give the tensors of all parameters as lists to torch._foreach_mul_, _foreach_add_"
    " and the like, which take any shapes"
)
_OF_KIND = {"losses": _LOSSES, "parameters": _FOREACH}


def needs_last(row: Mapping[str, Any]) -> bool:
    """Return whether the source shows that an iteration needs the one before."""
    body = row["body"]
    return body is not None and bool(body.carried or body.trains)


def advice_by_body(row: Mapping[str, Any], *, syncs: bool) -> str:
    """Return advice on a loop by its body; empty where the source is not known."""
    body = row["body"]
    if body is None:
        return ""
    if body.trains or body.over == "batches":
        return _TRAINS
    waits = _WAITS if row["syncs"] else ""
    if body.carried:
        needs = _NEEDS.format(listed(list(body.carried), _MOST_NAMED))
        return needs + (_SOLVER if body.over == "steps" else _STATE) + waits
    read = _READ if syncs else ""
    if body.over in _OF_KIND:
        return _OF_KIND[body.over] + read
    if body.leaves:
        return ""
    apart = _APART_UNLESS if body.calls else _APART
    alike = _LAYERS if body.over == "layers" else _STACK
    if row["unequal"]:
        alike = f"iterations differ in shape and cannot be stacked; {joined(row)}"
    return f"{apart}{alike}{read}"


def share_of_loop(row: Mapping[str, Any]) -> float:
    """Return the share of the host's time that goes from a loop.

    Where iterations cannot be one, each has a launch at least.
    """
    if not needs_last(row):
        return 1.0
    launches = row["kernels"] / row["iterations"]
    return 1 - 1 / max(2.0, launches)

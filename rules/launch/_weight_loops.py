"""Loops over weights: averages, updates and norms, and what takes lists of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.linter import View, listed

from ._gradient_loops import READ, gradients, reads_norms

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Ops on one tensor, and those that do the same to all tensors of a list.
_FOREACH = {
    f"aten::{op}": f"torch._foreach_{of_many}"
    for op, of_many in (
        *((name, name) for name in ("mul_", "add_", "lerp_", "copy_", "div_", "zero_")),
        ("linalg_vector_norm", "norm"),
        ("norm", "norm"),
        ("_foreach_norm", "norm"),
        ("_foreach_mul_", "mul_"),
    )
}
_OUT_OF_PLACE = {
    f"aten::{op}": f"torch._foreach_{op}" for op in ("mul", "add", "sub", "div")
}
_CLIPPED = (
    "if one norm of all gradients is meant, call torch.nn.utils.clip_grad_norm_ once"
    " with all parameters; otherwise "
)
# What an average of weights calls, as that of a target network; beside these one op of
# what comes after the loop may be taken for one of its own.
_WRITES = (*("aten::copy_", "aten::lerp_", "aten::_has_compatible_shallow_copy_type"),)
_AVERAGES = (
    *("aten::mul", "aten::add", "aten::sub", "aten::rsub", "aten::lerp", "aten::mul_"),
    *("aten::add_", "aten::detach"),
)
LERP = (
    "if it averages weights with others, as tau * p + (1 - tau) * target, call"
    " torch._foreach_lerp_(targets, parameters, tau) with the lists of both, under"
    " torch.no_grad()"
)
# Two products and a sum, and often a copy; the last iteration may be cut short.
_LAUNCHES_OF_BLEND = 2.5
# What the host reads decides what it does next, or is only written down.
_READ_ONCE = (
    ", and read the results once after the loop, as with torch.stack(results).tolist()"
)


def over_parameters(row: Mapping[str, Any], view: View) -> bool:
    """Return whether a loop has an iteration for each parameter with a gradient."""
    if not set(row["names"]) & set(_FOREACH) and not reads_norms(row, view):
        return False
    return bool(row["longest"] == gradients(view) / view.steps)


def together(row: Mapping[str, Any], *, syncs: bool) -> str:
    """Return what does the same to all parameters at once."""
    if averages(row):
        return LERP
    of_all = _FOREACH | (_OUT_OF_PLACE if updates(row) else {})
    named = dict.fromkeys(of_all[op] for op in row["names"] if op in of_all)
    clips = _CLIPPED if "aten::_foreach_norm" in row["names"] else ""
    once = _READ_ONCE if syncs and set(row["names"]) & set(READ) else ""
    lists = f"give the tensors of all parameters as lists to {listed([*named])}"
    return f"{clips}{lists}{once}"


def updates(row: Mapping[str, Any]) -> bool:
    """Return whether each iteration only averages a tensor with another, in place."""
    names = set(row["names"])
    return bool(names & set(_WRITES)) and len(names - set(_WRITES + _AVERAGES)) <= 1


def averages(row: Mapping[str, Any]) -> bool:
    """Return whether each iteration writes the sum of two tensors times a factor."""
    names = set(row["names"])
    if not updates(row) or "aten::sub" in names:
        return False
    blends = {"aten::mul", "aten::add"} <= names
    launches = row["kernels"] / row["iterations"] - ("aten::copy_" in names)
    return "aten::lerp" in names or (blends and launches >= _LAUNCHES_OF_BLEND)

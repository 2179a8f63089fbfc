"""Pinned batches, and copies to the GPU that do not block the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from traceq.fix.edit import RefusedError
from traceq.fix.loaders import bound_names, loader_of, loops, pinned, switched_on
from traceq.fix.syntax import keyword, positional

if TYPE_CHECKING:
    from traceq.fix.edit import Replacement
    from traceq.fix.program import Program
    from traceq.fix.syntax import Code
    from traceq.model.finding import Finding

# Arguments by position before non_blocking: to(device, dtype), cuda(device).
_BEFORE = {"to": 2, "cuda": 1}
_TO_GPU = "to the GPU"


def edit(program: Program, finding: Finding) -> list[Replacement]:
    """Return the loader of the copied batch and the copies at the line, changed."""
    if finding.data.get("direction") != _TO_GPU:
        msg = "a copy to the host needs a buffer, and a sync before it is read"
        raise RefusedError(msg)
    code = program.code(finding)
    copies = [call for call in code.at(finding.place) if _is_copy(code, call)]
    if not copies:
        at = "line" if finding.place.exact else "the function at line"
        msg = f"{at} {finding.place.line} of {code.file} has no .to(…) or .cuda(…)"
        raise RefusedError(msg)
    codes = [code, *program.codes(finding)[1:]]
    made = [loader_of(codes, _loop(code, call)) for call in copies]
    if any(row[1] is not made[0][1] for row in made):
        msg = f"the copies of {code.file} are of batches of several DataLoaders"
        raise RefusedError(msg)
    changes = pinned(*made[0])
    if not changes:
        msg = (
            "its DataLoader pins already: a batch of a class of its own needs a"
            " pin_memory() method"
        )
        raise RefusedError(msg)
    for call in copies:
        changes += switched_on(code, call, "non_blocking")
    return changes


def _is_copy(code: Code, call: cst.Call) -> bool:
    """Return whether a call copies a variable, or an item of one, to a device."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value not in _BEFORE:
        return False
    if not _root(func.value) or len(positional(call)) > _BEFORE[func.attr.value]:
        return False
    if func.attr.value == "cuda":
        return True
    first = positional(call)
    device = first[0] if first else keyword(call, "device")
    if device is None:
        return False
    # A dtype is no device.
    name = code.name(device.value)
    return not (name.startswith("torch.") and isinstance(device.value, cst.Attribute))


def _root(node: cst.CSTNode) -> str:
    """Return the variable that an expression is, or is an item of."""
    while isinstance(node, cst.Subscript):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def _loop(code: Code, call: cst.Call) -> cst.For:
    """Return the loop that binds what is copied, if the batch is not written to."""
    name = _root(call.func.value) if isinstance(call.func, cst.Attribute) else ""
    for loop in loops(code, call):
        if name in bound_names(loop.target):
            _refuse_writes(code, loop, name)
            return loop
    msg = f"`{name}` in {code.file} is not a batch of a loop over a DataLoader"
    raise RefusedError(msg)


def _refuse_writes(code: Code, loop: cst.For, name: str) -> None:
    """Raise if the loop writes to the batch, which a copy may still be reading."""
    for node in code.calls:
        func = node.func
        inside = loop in set(code.parents(node))
        in_place = (
            isinstance(func, cst.Attribute)
            and func.attr.value.endswith("_")
            and _root(func.value) == name
        )
        if inside and in_place:
            break
    else:
        return
    msg = f"{code.file} writes to `{name}` in the loop, which a copy may be reading"
    raise RefusedError(msg)

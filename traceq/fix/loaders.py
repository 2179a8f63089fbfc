"""DataLoaders of a program: the one that a loop takes its batches from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from traceq.fix.edit import RefusedError
from traceq.fix.program import only
from traceq.fix.syntax import (
    is_literal,
    keyword,
    positional,
    refuse_stars,
    with_keyword,
)

if TYPE_CHECKING:
    from traceq.fix.edit import Replacement
    from traceq.fix.syntax import Code

_NAMES = {
    "torch.utils.data.DataLoader",
    "torch.utils.data.dataloader.DataLoader",
}
_CALL = "DataLoader(…)"
# By position: dataset, batch_size, shuffle, sampler, batch_sampler, num_workers,
# collate_fn, pin_memory.
_WORKERS, _PINNED = 5, 7
# Functions around a loader that hand on its batches.
_AROUND = ("enumerate", "iter", "tqdm", "trange", "track")


def loops(code: Code, node: cst.CSTNode) -> list[cst.For]:
    """Return the loops around a node in its own function, innermost first."""
    results: list[cst.For] = []
    for above in code.parents(node):
        if isinstance(above, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            break
        if isinstance(above, cst.For):
            results.append(above)
    return results


def bound_names(target: cst.CSTNode) -> set[str]:
    """Return the names that the target of a loop binds."""
    if isinstance(target, cst.Name):
        return {target.value}
    if isinstance(target, cst.Tuple | cst.List):
        return {
            name for element in target.elements for name in bound_names(element.value)
        }
    return set()


def loader_of(codes: list[Code], loop: cst.For) -> tuple[Code, cst.Call]:
    """Return the constructor of the loader that a loop of the first file goes over.

    Raises:
        RefusedError: It is not certain which one that is.

    """
    code = codes[0]
    over = _unwrapped(code, loop.iter)
    calls = [(item, call) for item in codes for call in item.calls_of(_NAMES)]
    if isinstance(over, cst.Call) and code.name(over.func) in _NAMES:
        return code, over
    written = code.written(over)
    own = [
        call for call in calls if call[0] is code and code.target(call[1]) == written
    ]
    if own:
        if _assignments(code, written) != len(own):
            msg = f"{code.file} assigns several things to `{written}`"
            raise RefusedError(msg)
        return only(own, _CALL, code.file)
    if isinstance(over, cst.Name) and not _is_parameter(code, loop, over.value):
        msg = f"`{written}` in {code.file} is not made by torch's DataLoader"
        raise RefusedError(msg)
    return only(calls, _CALL, "the program")


def _unwrapped(code: Code, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the loader inside of ``enumerate`` and progress bars."""
    while (
        isinstance(node, cst.Call) and node.args and code.name(node.func) not in _NAMES
    ):
        name = code.written(node.func).rpartition(".")[2]
        if name not in _AROUND or node.args[0].star or node.args[0].keyword:
            break
        node = node.args[0].value
    if isinstance(node, cst.Name | cst.Attribute | cst.Call):
        return node
    msg = f"`{code.written(node)}` in {code.file} may be more than a DataLoader"
    raise RefusedError(msg)


def _assignments(code: Code, written: str) -> int:
    """Return how often something is assigned to a name."""
    assigned = [
        target.target
        for node in code.nodes(cst.Assign)
        if isinstance(node, cst.Assign)
        for target in node.targets
    ]
    assigned += [
        node.target
        for node in code.nodes(cst.AnnAssign)
        if isinstance(node, cst.AnnAssign) and node.value is not None
    ]
    parts = [
        part
        for target in assigned
        for part in (
            [element.value for element in target.elements]
            if isinstance(target, cst.Tuple | cst.List)
            else [target]
        )
    ]
    return sum(code.written(part) == written for part in parts)


def _is_parameter(code: Code, node: cst.CSTNode, name: str) -> bool:
    function = code.function(node)
    if function is None:
        return False
    every = function.params
    params = (*every.params, *every.kwonly_params, *every.posonly_params)
    return any(param.name.value == name for param in params)


def workers(call: cst.Call) -> int | None:
    """Return the number of workers that a loader is made with; None if not written."""
    by_position = positional(call)
    arg = keyword(call, "num_workers")
    if len(by_position) > _WORKERS:
        arg = by_position[_WORKERS]
    if arg is None:
        return 0
    value = arg.value
    return int(value.value, 0) if isinstance(value, cst.Integer) else None


def pinned(code: Code, call: cst.Call) -> list[Replacement]:
    """Return a loader that pins its batches; nothing if it does already."""
    if len(positional(call)) > _PINNED:
        msg = f"the DataLoader of {code.file} takes pin_memory by position"
        raise RefusedError(msg)
    return switched_on(code, call, "pin_memory")


def switched_on(code: Code, call: cst.Call, name: str) -> list[Replacement]:
    """Return a call with a switch on; nothing if it is on already."""
    refuse_stars(code, call)
    arg = keyword(call, name)
    if arg is None:
        return with_keyword(code, call, name, "True")
    if is_literal(arg, "True"):
        return []
    if is_literal(arg, "False"):
        return [code.replaced(arg, f"{name}=True")]
    msg = f"`{code.written(arg)}` in {code.file} is decided when the program runs"
    raise RefusedError(msg)

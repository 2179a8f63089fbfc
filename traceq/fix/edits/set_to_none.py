"""``zero_grad(set_to_none=True)``: no kernel fills the gradients with zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from traceq.fix.edit import RefusedError
from traceq.fix.program import only
from traceq.fix.syntax import is_literal, keyword, with_keyword
from traceq.model.torch_versions import version

if TYPE_CHECKING:
    from traceq.fix.edit import Replacement
    from traceq.fix.program import Program
    from traceq.model.finding import Finding

# The first torch that does so by itself.
_DEFAULT = (2, 0)


def edit(program: Program, finding: Finding) -> list[Replacement]:
    """Return the one call that keeps gradients as tensors of zeros."""
    old = (version(program.torch) or _DEFAULT) < _DEFAULT
    calls = [
        (code, call)
        for code in program.codes(finding)
        for call in code.calls
        if isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "zero_grad"
        and _keeps(call, old=old)
    ]
    code, call = only(calls, "zero_grad(set_to_none=False)", "the program")
    arg = keyword(call, "set_to_none")
    if arg is None and call.args:
        msg = f"`{code.written(call)}` passes its argument by position"
        raise RefusedError(msg)
    if arg is None:
        return with_keyword(code, call, "set_to_none", "True")
    return [code.replaced(arg, "set_to_none=True")]


def _keeps(call: cst.Call, *, old: bool) -> bool:
    arg = keyword(call, "set_to_none")
    if arg is None:
        return old
    return is_literal(arg, "False")

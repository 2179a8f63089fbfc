"""``fused=True`` for the optimizer whose steps were recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from traceq.fix.edit import RefusedError
from traceq.fix.program import only
from traceq.fix.syntax import is_literal, keyword, refuse_stars, with_keyword
from traceq.model.torch_versions import version

if TYPE_CHECKING:
    from traceq.fix.edit import Replacement
    from traceq.fix.program import Program
    from traceq.fix.syntax import Code
    from traceq.model.finding import Finding

# The first torch whose class takes fused=True.
_SINCE = {"Adam": (2, 0), "AdamW": (2, 0), "SGD": (2, 3), "Adagrad": (2, 4)}
_LOOP = "LCH003"


def edit(program: Program, finding: Finding) -> list[Replacement]:
    """Return the constructor with ``fused=True``, instead of ``foreach``."""
    name = str(finding.data.get("optimizer", finding.subject))
    since = _SINCE.get(name)
    if since is None or (version(program.torch) or since) < since:
        msg = f"torch.optim.{name} has no fused implementation in this torch"
        raise RefusedError(msg)
    full = {f"torch.optim.{name}", f"torch.optim.{name.lower()}.{name}"}
    codes = program.codes(finding)
    calls = [(code, call) for code in codes for call in code.calls_of(full)]
    may = [item for item in calls if _may_be(finding.code, item[1])]
    if len(may) > 1:
        may = _of_step(codes[0], finding, may) or may
    code, call = only(may, f"torch.optim.{name}(…)", codes[0].file)
    return _fused(code, call)


def _may_be(rule: str, call: cst.Call) -> bool:
    """Return whether a constructor makes an optimizer as it was recorded."""
    loops = is_literal(keyword(call, "foreach"), "False")
    if rule == _LOOP:
        return loops
    return not loops and not is_literal(keyword(call, "fused"), "True")


def _of_step(
    code: Code, finding: Finding, calls: list[tuple[Code, cst.Call]]
) -> list[tuple[Code, cst.Call]]:
    """Return the constructors of the variable whose ``step()`` is at the line."""
    receivers = {
        code.written(call.func.value)
        for call in code.at(finding.place)
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "step"
    }
    if not finding.place.exact or len(receivers) != 1:
        return []
    (receiver,) = receivers
    return [
        call for call in calls if call[0] is code and code.target(call[1]) == receiver
    ]


def _fused(code: Code, call: cst.Call) -> list[Replacement]:
    refuse_stars(code, call)
    differentiable = keyword(call, "differentiable")
    fused, foreach = keyword(call, "fused"), keyword(call, "foreach")
    if differentiable and not is_literal(differentiable, "False"):
        msg = "a differentiable optimizer has no fused implementation"
        raise RefusedError(msg)
    for arg in filter(None, (fused, foreach)):
        if not is_literal(arg, "False", "True", "None"):
            msg = f"`{code.written(arg)}` is decided when the program runs"
            raise RefusedError(msg)
    if fused and foreach and is_literal(foreach, "True"):
        return [
            code.replaced(fused, "fused=True"),
            code.replaced(foreach, "foreach=None"),
        ]
    if fused:
        return [code.replaced(fused, "fused=True")]
    if foreach:
        return [code.replaced(foreach, "fused=True")]
    return with_keyword(code, call, "fused", "True")

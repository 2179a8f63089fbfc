"""``torch.set_float32_matmul_precision("high")`` after the program's imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from traceq.fix.edit import RefusedError
from traceq.fix.syntax import positional

if TYPE_CHECKING:
    from traceq.fix.edit import Replacement
    from traceq.fix.program import Program
    from traceq.fix.syntax import Code
    from traceq.model.finding import Finding

_SETTER = "torch.set_float32_matmul_precision"
_SWITCH = "torch.backends.cuda.matmul.allow_tf32"
# Whatever else sets the precision of matmuls.
_WORDS = ("set_float32_matmul_precision", "allow_tf32", "fp32_precision")


def edit(program: Program, finding: Finding) -> list[Replacement]:
    """Return the setting that is there changed, else a new one after the imports."""
    own = program.code(finding)
    codes = program.codes(finding)
    setting = [code for code in codes if any(word in code.text for word in _WORDS)]
    if len(setting) > 1:
        msg = "several files set the precision of float32 matmuls"
        raise RefusedError(msg)
    if setting:
        return _changed(setting[0])
    entry = program.entry_code()
    return _added(entry if entry and _torch(entry) else own)


def _changed(code: Code) -> list[Replacement]:
    """Return the one setting of a file, if it is written out and says float32."""
    count = sum(code.text.count(word) for word in _WORDS)
    for call in code.calls_of({_SETTER}):
        arguments = positional(call)
        value = arguments[0].value if len(arguments) == len(call.args) == 1 else None
        if not isinstance(value, cst.SimpleString) or value.raw_value != "highest":
            continue
        if count == 1:
            return [code.replaced(value, value.quote + "high" + value.quote)]
    for node in code.nodes(cst.Assign):
        if not isinstance(node, cst.Assign) or count != 1 or len(node.targets) != 1:
            continue
        target, value = node.targets[0].target, node.value
        off = isinstance(value, cst.Name) and value.value == "False"
        if code.name(target) == _SWITCH and off:
            return [code.replaced(value, "True")]
    msg = f"{code.file} sets the precision of float32 matmuls itself"
    raise RefusedError(msg)


def _added(code: Code) -> list[Replacement]:
    torch = _torch(code)
    if torch is None:
        msg = f"{code.file} has no `import torch` at its beginning"
        raise RefusedError(msg)
    name, _ = torch
    end = code.end(_last_import(code))
    rest = code.text[end:].partition("\n")[0]
    call = f'{name}.set_float32_matmul_precision("high")'
    return [code.inserted(end + len(rest.rstrip("\r")), f"\n\n{call}")]


def _imports(code: Code) -> list[cst.SimpleStatementLine]:
    """Return the imports with which a file begins, after its docstring."""
    lines: list[cst.SimpleStatementLine] = []
    for number, statement in enumerate(code.module.body):
        if not isinstance(statement, cst.SimpleStatementLine):
            break
        small = statement.body[0]
        if isinstance(small, cst.Import | cst.ImportFrom):
            lines.append(statement)
        elif number or not isinstance(small, cst.Expr):
            break
    return lines


def _last_import(code: Code) -> cst.CSTNode:
    return _imports(code)[-1].body[-1]


def _torch(code: Code) -> tuple[str, cst.CSTNode] | None:
    """Return the name that a file's first imports give torch."""
    for line in _imports(code):
        for small in line.body:
            if not isinstance(small, cst.Import):
                continue
            for alias in small.names:
                full = code.written(alias.name)
                if alias.asname is None and full.partition(".")[0] == "torch":
                    return "torch", small
                if full == "torch" and alias.asname:
                    return code.written(alias.asname.name), small
    return None

"""``F.rms_norm`` for a module whose forward is an RMSNorm and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from traceq.fix.edit import RefusedError
from traceq.fix.rms_chain import chain_of
from traceq.model.torch_versions import version

if TYPE_CHECKING:
    from traceq.fix.edit import Replacement
    from traceq.fix.program import Program
    from traceq.fix.syntax import Code
    from traceq.model.finding import Finding

# The first torch whose kernel is fused.
_FUSED = (2, 9)


def edit(program: Program, finding: Finding) -> list[Replacement]:
    """Return the body of the forward as one call."""
    if finding.data.get("kind") != "RMSNorm":
        msg = "only an RMSNorm over the last dim is rewritten"
        raise RefusedError(msg)
    if (version(program.torch) or _FUSED) < _FUSED:
        msg = "torch before 2.9 has no fused RMSNorm: compile the model"
        raise RefusedError(msg)
    code = program.code(finding)
    function = code.function_at(finding.place)
    if not isinstance(function, cst.FunctionDef) or function.name.value != "forward":
        msg = f"{finding.place.function} is not the forward of a module"
        raise RefusedError(msg)
    chain = chain_of(function)
    if chain is None:
        line = code.lines(function)[0]
        msg = f"the forward at line {line} of {code.file} is not exactly an RMSNorm"
        raise RefusedError(msg)
    norm, x = f"{_functional(code)}.rms_norm", chain.input
    inside, outside = chain.weight or "None", ""
    if chain.weight and chain.weight_outside and not _in_float32(finding):
        # The product has the dtype that the weight gives it.
        inside, outside = "None", f" * {chain.weight}"
    _refuse_others(code, function, chain.eps, inside)
    call = f"{norm}({x}, ({x}.size(-1),), {inside}, {chain.eps}){outside}"
    body = _statements(function)
    start, end = code.start(body[0]), code.end(body[-1])
    return [code.span(start, end, f"return {call}")]


def _in_float32(finding: Finding) -> bool:
    """Return whether the recorded input was float32: then so is the result."""
    input_dtypes = [entry.name for entry in finding.evidence if entry.label == "input"]
    return any(dtype.startswith("float32 ") for dtype in input_dtypes)


def _refuse_others(
    code: Code, function: cst.FunctionDef, eps: str, weight: str
) -> None:
    """Raise unless epsilon is a number and the weight has the one dim of the norm."""
    made = _attributes(code, function)
    number = made.get(eps)
    plain = cst.Name | cst.Float | cst.Integer
    if not eps[0].isdigit() and not isinstance(number, plain):
        msg = f"{code.file} does not show that {eps} is a number"
        raise RefusedError(msg)
    if weight != "None" and not _is_vector(code, made.get(weight)):
        msg = f"{code.file} does not show that {weight} has one dim"
        raise RefusedError(msg)


def _attributes(code: Code, function: cst.FunctionDef) -> dict[str, cst.BaseExpression]:
    """Return what the class of a method assigns to its attributes, each once."""
    owner = next(code.parents(function), None)
    while owner is not None and not isinstance(owner, cst.ClassDef):
        owner = next(code.parents(owner), None)
    made: dict[str, cst.BaseExpression] = {}
    twice = set()
    for node in code.nodes(cst.Assign):
        if not isinstance(node, cst.Assign) or owner not in set(code.parents(node)):
            continue
        for target in node.targets:
            name = code.written(target.target)
            twice |= {name} & made.keys()
            made[name] = node.value
    return {name: value for name, value in made.items() if name not in twice}


def _is_vector(code: Code, value: cst.BaseExpression | None) -> bool:
    """Return whether a value is ``nn.Parameter(torch.ones(dim))`` or alike."""
    if not isinstance(value, cst.Call) or len(value.args) != 1:
        return False
    inner = value.args[0].value
    if code.name(value.func) not in {
        "torch.nn.Parameter",
        "torch.nn.parameter.Parameter",
    }:
        return False
    if not isinstance(inner, cst.Call):
        return False
    sizes = [arg for arg in inner.args if arg.keyword is None]
    made = code.name(inner.func) in {"torch.ones", "torch.empty", "torch.zeros"}
    plain = cst.Name | cst.Attribute | cst.Integer
    return made and len(sizes) == 1 and isinstance(sizes[0].value, plain)


def _statements(function: cst.FunctionDef) -> list[cst.CSTNode]:
    """Return the statements of a function after its docstring."""
    lines = [
        line for line in function.body.body if isinstance(line, cst.SimpleStatementLine)
    ]
    small = [item for line in lines for item in line.body]
    text = isinstance(small[0], cst.Expr) and isinstance(
        small[0].value, cst.SimpleString | cst.ConcatenatedString
    )
    return [*small[1:]] if text else [*small]


def _functional(code: Code) -> str:
    """Return what a file calls torch.nn.functional, by its imports at the top."""
    names = {}
    for statement in code.module.body:
        small = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
        for item in small:
            if isinstance(item, cst.Import):
                module, aliases = "", item.names
            elif isinstance(item, cst.ImportFrom) and item.module and not item.relative:
                if isinstance(item.names, cst.ImportStar):
                    continue
                module, aliases = code.written(item.module) + ".", item.names
            else:
                continue
            for alias in aliases:
                full = module + code.written(alias.name)
                short = alias.asname.name if alias.asname else alias.name
                names[full] = code.written(short)
    if "torch.nn.functional" in names:
        return names["torch.nn.functional"]
    if "torch.nn" in names:
        return f"{names['torch.nn']}.functional"
    if "torch" in names:
        return f"{names['torch']}.nn.functional"
    msg = f"{code.file} does not import torch at its beginning"
    raise RefusedError(msg)

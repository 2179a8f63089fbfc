"""Straight-line forwards, computed with symbols: whether one is an RMSNorm."""

from __future__ import annotations

from typing import TypeAlias

import libcst as cst
from msgspec import Struct

# What an expression computes: its operation, and what it is applied to.
Value: TypeAlias = "tuple[str | Value, ...] | str"
_OPERATORS: dict[type[cst.BaseBinaryOp], str] = {
    cst.Multiply: "mul",
    cst.Add: "add",
    cst.Power: "pow",
    cst.Divide: "div",
}
_LAST = {"-1", "(-1,)", "[-1]", "(-1)"}


class Chain(Struct, frozen=True):
    """The parts of an RMSNorm, as a program writes them."""

    input: str
    weight: str
    """Empty if it has none."""
    eps: str
    weight_outside: bool
    """True if the weight multiplies what was cast back, or nothing is cast."""


class _UnknownError(Exception):
    """Something that is no part of a norm."""


def chain_of(function: cst.FunctionDef) -> Chain | None:
    """Return the RMSNorm that a function of one argument computes; None if another."""
    params = function.params
    extra = (*params.kwonly_params, *params.posonly_params)
    two = 2
    if len(params.params) != two or extra or params.star_kwarg or function.decorators:
        return None
    if isinstance(params.star_arg, cst.Param):
        return None
    me, x = (param.name.value for param in params.params)
    try:
        return _matched(_returned(function, me, x), x)
    except _UnknownError:
        return None


def _returned(function: cst.FunctionDef, me: str, x: str) -> Value:
    """Return what a function returns after assignments, and nothing but those."""
    reader = _Reader(me, x)
    lines = list(function.body.body)
    if lines and _is_docstring(lines[0]):
        lines = lines[1:]
    for line in lines:
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            raise _UnknownError
        (statement,) = line.body
        if isinstance(statement, cst.Return) and statement.value and line is lines[-1]:
            return reader.value(statement.value)
        if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
            raise _UnknownError
        target = statement.targets[0].target
        if not isinstance(target, cst.Name):
            raise _UnknownError
        reader.known[target.value] = reader.value(statement.value)
    raise _UnknownError


def _is_docstring(line: cst.CSTNode) -> bool:
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    statement = line.body[0]
    texts = cst.SimpleString | cst.ConcatenatedString
    return isinstance(statement, cst.Expr) and isinstance(statement.value, texts)


class _Reader:
    """Values of expressions; what is none of a norm's raises ``_UnknownError``."""

    def __init__(self, me: str, x: str) -> None:
        self.me = me
        self.known: dict[str, Value] = {x: "x"}

    def value(self, node: cst.BaseExpression) -> Value:
        """Return what an expression computes."""
        if isinstance(node, cst.Name) and node.value in self.known:
            return self.known[node.value]
        if isinstance(node, cst.Integer | cst.Float):
            return ("number", node.value)
        if isinstance(node, cst.Attribute):
            return self._attribute(node)
        if isinstance(node, cst.BinaryOperation):
            name = _OPERATORS.get(type(node.operator), "")
            if name:
                return (name, self.value(node.left), self.value(node.right))
        if isinstance(node, cst.Call):
            return self._call(node)
        raise _UnknownError

    def _attribute(self, node: cst.Attribute) -> Value:
        if isinstance(node.value, cst.Name) and node.value.value == self.me:
            return ("own", f"{self.me}.{node.attr.value}")
        if node.attr.value == "dtype":
            return ("dtype", self.value(node.value))
        if _text(node) == "torch.float32" and "torch" not in self.known:
            return ("float32",)
        raise _UnknownError

    def _call(self, node: cst.Call) -> Value:
        """Return the value of a method of a tensor, or of the function of torch."""
        if not isinstance(node.func, cst.Attribute) or any(
            arg.star for arg in node.args
        ):
            raise _UnknownError
        by_name = {
            arg.keyword.value: _text(arg.value) for arg in node.args if arg.keyword
        }
        plain = [arg.value for arg in node.args if not arg.keyword]
        owner = node.func.value
        of_torch = isinstance(owner, cst.Name) and owner.value == "torch"
        if of_torch and plain and "torch" not in self.known:
            owner, plain = plain[0], plain[1:]
        name, of = node.func.attr.value, self.value(owner)
        if name == "mean":
            return _mean(of, [_text(expression) for expression in plain], by_name)
        if by_name:
            raise _UnknownError
        return _method(name, of, [self.value(expression) for expression in plain])


def _mean(of: Value, plain: list[str], by_name: dict[str, str]) -> Value:
    """Return the mean over the last dim, which is kept."""
    arguments = dict(zip(("dim", "keepdim"), plain, strict=False)) | by_name
    if len(arguments) != len(plain) + len(by_name) or arguments.keys() != {
        "dim",
        "keepdim",
    }:
        raise _UnknownError
    if arguments["dim"] not in _LAST or arguments["keepdim"] != "True":
        raise _UnknownError
    return ("mean", of)


def _method(name: str, of: Value, inner: list[Value]) -> Value:
    match name, inner:
        case (("rsqrt" | "sqrt" | "square" | "float"), []):
            return (name, of)
        case "pow", [exponent]:
            return ("pow", of, exponent)
        case "to", [("float32",)]:
            return ("float", of)
        case ("to", [("dtype", "x")]) | ("type_as", ["x"]):
            return ("back", of)
    raise _UnknownError


def _text(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _matched(value: Value, x: str) -> Chain | None:
    """Return the parts of a value that is an RMSNorm."""
    back = value[0] == "back"
    inside = value[1] if back else value
    scaled, weight = _without_weight(inside)
    middle = scaled[0] == "back"
    if middle and back:
        return None
    normed = scaled[1] if middle else scaled
    parts = _normed(normed)
    if parts is None:
        return None
    base, eps = parts
    wide = base == ("float", "x")
    if base != "x" and not wide:
        return None
    # In float32 without a cast back the result is float32, as rms_norm's is not.
    if wide and not (back or middle):
        return None
    outside = bool(weight) and not back
    return Chain(x, weight, eps, outside)


def _without_weight(value: Value) -> tuple[Value, str]:
    """Return a product without its factor of the module's own, and that factor."""
    if value[0] == "mul":
        for first, other in ((value[1], value[2]), (value[2], value[1])):
            if first[0] == "own" and isinstance(first[1], str):
                return other, first[1]
    return value, ""


def _normed(value: Value) -> tuple[Value, str] | None:
    """Return the input and epsilon of ``x * rsqrt(mean(x²) + eps)``."""
    if value[0] == "mul":
        pairs = ((value[1], value[2]), (value[2], value[1]))
        of = [(x, root[1]) for x, root in pairs if root[0] == "rsqrt"]
    elif value[0] == "div" and value[2][0] == "sqrt":
        of = [(value[1], value[2][1])]
    else:
        return None
    for x, inside in of:
        if inside[0] != "add":
            continue
        for mean, eps in ((inside[1], inside[2]), (inside[2], inside[1])):
            if mean[0] != "mean" or eps[0] not in {"own", "number"}:
                continue
            square, text = mean[1], eps[1]
            is_square = square in (
                ("square", x),
                ("mul", x, x),
                ("pow", x, ("number", "2")),
            )
            if is_square and isinstance(text, str):
                return x, text
    return None

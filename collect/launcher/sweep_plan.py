"""The runs of a sweep: configurations of a grid, their names, and their order."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import itertools
import operator
import random
import re
from typing import Any, Mapping, NamedTuple, Sequence

LONGEST_NAME = 100
_PLAIN = re.compile(r"[^\w.=+-]+")
_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_MOST = 1e30
_ERRORS = (
    *(SyntaxError, ValueError, ZeroDivisionError),
    *(OverflowError, RecursionError, MemoryError),
)
_LARGEST_POWER = 8


class Run(NamedTuple):
    """One run of a configuration."""

    name: str
    labels: dict[str, str]
    repeat: int


def runs(grid: Mapping[str, Sequence[str]], repeat: int, seed: int) -> list[Run]:
    """Return all runs in random order: each configuration once, then again.

    A drift of the machine then falls on all configurations alike, and a sweep that is
    interrupted has each of them about equally often.
    """
    configurations = [
        dict(zip(grid, values)) for values in itertools.product(*grid.values())
    ]
    chance = random.Random(seed)  # noqa: S311 - no secret
    results = []
    for number in range(1, repeat + 1):
        chance.shuffle(configurations)
        results += [
            Run(_name(configuration, number), configuration, number)
            for configuration in configurations
        ]
    return results


def filled(text: str, labels: Mapping[str, str]) -> str:
    """Return a text with the values of labels: ``{seq_len}`` becomes ``512``."""
    return re.sub(r"\{(\w+)\}", lambda result: labels.get(result[1], result[0]), text)


def used(words: Sequence[str], key: str) -> bool:
    """Return whether a label is part of a command."""
    return any(f"{{{key}}}" in word for word in words)


def amount(text: str, labels: Mapping[str, str]) -> float:
    """Return the value of an expression of labels: ``{batch} * {seq_len}``.

    Raises ``ValueError`` if it is no number.
    """
    value = -1.0
    with contextlib.suppress(*_ERRORS):
        value = _value(ast.parse(filled(text, labels).strip(), mode="eval").body)
    if not 0 <= value <= _MOST:
        msg = f"{text!r} is no number"
        raise ValueError(msg)
    return value


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) > _LARGEST_POWER:
            raise ValueError(node)
        result = _OPERATORS[type(node.op)](left, right)
        if isinstance(result, complex):
            raise ValueError(node)
        return float(result)
    raise ValueError(node)


def _name(labels: Mapping[str, str], repeat: int) -> str:
    """Return the name of a run's folder, which says what it is a run of."""
    exact = "-".join(f"{key}={value}" for key, value in labels.items())
    plain = _PLAIN.sub("_", exact)[:LONGEST_NAME].strip(".-")
    if plain != exact:  # two configurations may have become one
        plain += f"-{hashlib.sha256(exact.encode()).hexdigest()[:8]}"
    return f"{plain}-{repeat}"

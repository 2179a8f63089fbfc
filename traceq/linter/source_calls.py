"""Calls of a class in the program's source: the line that makes an object."""

from __future__ import annotations

import ast
from itertools import islice
from typing import TYPE_CHECKING

from traceq.common.words import MODULE_LEVEL
from traceq.linter.finding_lines import program_of
from traceq.model.finding import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from traceq.graph.source.control_flow import Program
    from traceq.model.trace import Trace

# Of models' sources a tenth. Sources are untrusted: longer ones are left alone.
_MOST_NODES = 200_000
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def made_at(
    trace: Trace, name: str, file: str | None, lines: Iterable[int], method: str
) -> list[Place]:
    """Return the lines that make the objects of a class whose method is called.

    The method is called at lines of a file, on ``self.optimizer``, for example: that
    is made where it is assigned in this file. Else it is the only call of the class in
    all of the program's sources that were recorded. None is guessed: where two may be
    meant there is no place.
    """
    sources = trace.rank.sources if trace.rank else {}
    calls = _calls_of(sources, name)
    source = sources.get(file or "", "")
    called = [_receiver(source, line, method) for line in lines]
    found = []
    for receiver in called:
        here = [place for place, to in calls if receiver in to and place.file == file]
        if not receiver or len(here) != 1:
            break
        found.append(here[0])
    else:
        if found:
            return [*dict.fromkeys(found)]
    return [calls[0][0]] if len(calls) == 1 else []


def _calls_of(
    sources: Mapping[str, str], name: str
) -> list[tuple[Place, tuple[str, ...]]]:
    """Return the calls of a class, each with what it is assigned to."""
    calls = []
    for file, source in sources.items():
        if name not in source:
            continue
        program = program_of(source)
        assigned = {}
        for node in _nodes(program):
            if isinstance(node, ast.Assign):
                targets = tuple(ast.unparse(target) for target in node.targets)
                assigned[id(node.value)] = targets
            if isinstance(node, ast.Call) and _name(node.func) == name:
                place = _place(file, program, node.lineno)
                calls.append((place, assigned.get(id(node), ())))
    return calls


def _receiver(source: str, line: int, method: str) -> str:
    """Return on what a method is called at a line, if it is called once there."""
    called = {
        ast.unparse(node.func.value)
        for node in _nodes(program_of(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    }
    return called.pop() if len(called) == 1 else ""


def _nodes(program: Program) -> Iterator[ast.AST]:
    """Yield all of a source, from the outside to the inside."""
    if program.functions:
        # The first one is of the file's own statements, with all of its functions.
        nodes = [*islice(ast.walk(program.functions[0].node), _MOST_NODES + 1)]
        if len(nodes) <= _MOST_NODES:
            yield from nodes


def _name(called: ast.expr) -> str:
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def _place(file: str, program: Program, line: int) -> Place:
    """Return a line with the innermost function that it is in."""
    around = [
        (function.begins, function.name)
        for function in program.functions
        if isinstance(function.node, _FUNCTIONS)
        and function.begins <= line <= (function.ends or line)
    ]
    begins, name = max(around, default=(None, MODULE_LEVEL))
    return Place(file, line, name, line_is="call", begins=begins)

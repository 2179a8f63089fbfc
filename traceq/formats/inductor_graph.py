"""Reader of graphs of torch.compile that were written as text.

All of it is untrusted: it is read line by line, never run, and lines of an unexpected
form are skipped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from traceq.model.compiled_graphs import Frame, LoweredNode, Node, Size

if TYPE_CHECKING:
    from collections.abc import Iterator

# Short dtypes in the graph's text, where they differ from torch's own names.
_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "b8": "bool",
}
_LOWERED = re.compile(r' *(\w+)(?:: "([^"]*)")? = (?:torch\.ops\.)?([\w.]+)([^;]*)')
_PARAMETER = re.compile(r'\b(\w{1,500}): "([^"]*)"')
_WORD = re.compile(r"[A-Za-z_]\w*")
_SIZE = re.compile(r"(\w+)\[([^\]]*)\]")
_RETURN = " return ("
# A size of a changing shape: what is computed with it ties no ops together.
_NUMBER = "Sym("
# Before it may be what activation checkpointing says of the ops.
_FILE = " File: "
_NO_FILE = "# No stacktrace"
_SIGNATURE = "def forward("
# A node of the program: an operator between two, a call, or a part of something.
_ALIAS = re.compile(r" +(\w+) = (\w+)$")
_NODE = re.compile(r' +(\w+)(?:: "([^"]*)")? = ([^;]+)')
_CALL = re.compile(r"([\w.]+)\(")
_OPERATOR = re.compile(r"\S+ (\*\*|//|[-+*/@%&|^]|==|!=|<=|>=|<|>) \S")
_OPERATORS = {
    "@": "matmul",
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "**": "pow",
}
_OPS = "torch.ops."


def read_lowered(text: str) -> dict[str, LoweredNode]:
    """Return the nodes of a graph that was written as text, by name, in order."""
    nodes: dict[str, LoweredNode] = {}
    for line, frame in _framed(text):
        if line.lstrip().startswith(_SIGNATURE):
            for name, size in _PARAMETER.findall(line):
                if size.startswith(_NUMBER):
                    continue
                nodes[name] = LoweredNode(name, "placeholder", (), None, _size(size))
        elif node := _LOWERED.match(line):
            name, size, target, rest = node.groups()
            # A name that is given twice could make a node depend on itself.
            if name in nodes or (size and size.startswith(_NUMBER)):
                continue
            words = (target, *_WORD.findall(rest))
            used = tuple(dict.fromkeys(word for word in words if word in nodes))
            short = target.rsplit(".", 1)[0] if "." in target else "getitem"
            nodes[name] = LoweredNode(name, short, used, frame, _size(size or ""))
    return nodes


def _framed(text: str) -> Iterator[tuple[str, Frame | None]]:
    """Yield the lines of a graph, each with the place that the comment before names."""
    frame: Frame | None = None
    for line in text.splitlines():
        comment = line.strip()
        if comment.startswith("#") and _FILE in comment:
            frame = _frame(comment)
        elif comment.startswith(_NO_FILE):
            frame = None
        else:
            yield line, frame


def outputs_of(text: str) -> tuple[str, ...]:
    """Return the names of what a graph returns, in order."""
    _, _, last = text.rpartition(_RETURN)
    inside, closed, _ = last.partition(")")
    return names_in(inside) if closed else ()


def _frame(line: str) -> Frame | None:
    """Return the place in ``# File: model.py:17 in forward, code: …``."""
    place = line.split(_FILE, 1)[1].split(", code: ", 1)[0]
    where, _, function = place.rpartition(" in ")
    file, _, number = where.rpartition(":")
    if not file or not number.isascii() or not number.isdigit():
        return None
    at = int(number[:10])
    return Frame(file, None, function, at) if is_line(at) else None


def _size(text: str) -> Size | None:
    match = _SIZE.match(text)
    if not match:
        return None
    return Size(names_in(match[2]), _DTYPES.get(match[1], match[1]))


def read_program(text: str) -> tuple[Node, ...]:
    """Return the program's ops of a graph of Dynamo's, in order, each with its line."""
    sizes: dict[str, str] = {}
    nodes: dict[str, Node] = {}
    for line, frame in _framed(text):
        if line.lstrip().startswith(_SIGNATURE):
            sizes = dict(_PARAMETER.findall(line))
        elif (alias := _ALIAS.match(line)) and alias[2] in sizes:
            name, target = alias.groups()
            size = _size(sizes[target])
            nodes[name] = Node(name, "placeholder", target, (), (), (), size)
        elif (node := _NODE.match(line)) and node[1] not in nodes:
            name, size_text, made = node.groups()
            used = dict.fromkeys(
                match for match in _WORD.findall(made) if match in nodes
            )
            frames = (frame,) if frame else ()
            size = _size(size_text or "")
            nodes[name] = Node(
                name, "call_function", _target(made), tuple(used), frames, (), size
            )
    return tuple(nodes.values())


def _target(made: str) -> str:
    """Return the function of an expression, as a graph's node names it.

    >>> [_target(text) for text in ("torch._C._nn.gelu(x)", "x @ w", "x.sin()", "x[0]")]
    ['gelu', 'matmul', 'sin', 'getitem']
    >>> _target("torch.ops.aten.mm.default(x, w)")
    'mm'
    """
    if call := _CALL.match(made):
        parts = call[1].split(".")
        overload = made.startswith(_OPS) and len(parts) > len(_OPS.split("."))
        return parts[-2] if overload else parts[-1]
    if operator := _OPERATOR.match(made):
        return _OPERATORS.get(operator[1], operator[1])
    return "getitem"


def is_line(value: object) -> bool:
    """Return whether a value can be the number of a line."""
    return type(value) is int and 0 < value < 1 << 31


def names_in(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas."""
    return tuple(name for part in text.split(",") if (name := part.strip()))

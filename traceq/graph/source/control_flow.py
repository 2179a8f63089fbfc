"""Control-flow graph of a function's source: possible calls, their order and lines.

A node is something that a trace may show: a call, an operator between tensors, an
index, an attribute, a truth value. An edge leads to a possible next node. Nothing is
run: the source is only parsed.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from msgspec import Struct, field

from traceq.common.words import MODULE_LEVEL

ENTRY, EXIT = 0, 1
CALL, ATTRIBUTE, TRUTH, OTHER = "call", "attribute", "truth", "other"
GET, SET = "get item", "set item"
IN_PLACE = "="
"""Suffix of the kind of an operator that changes its operand in place, as Add=."""
# Types whose call asks a tensor for its value, without a call that a trace shows.
SCALARS = ("float", "int", "bool", "complex", "range")
NO_OP = "none"
"""Of an index that is no op of a tensor: of a dict, or of a shape."""
SLICE_OF_VALUES = "slice item _local_scalar_dense"
"""Of a slice whose ends may be tensors, which are asked for their values."""
_SHAPE, _SIZES = "shape", ("size", "stride")
# Built-in functions whose result is a number or a truth value.
_PLAIN = ("callable", "hasattr", "isinstance", "issubclass", "len")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
# Functions of their own: a generator always, the others before Python 3.12.
_COMPREHENSIONS = {
    ast.ListComp: "<listcomp>",
    ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>",
    ast.GeneratorExp: "<genexpr>",
}

Ends = set[int]


class Node(Struct, frozen=True):
    """One operation of a function."""

    kind: str
    """CALL and its like, or the operator's name in the syntax tree, as Mult."""
    name: str
    """Of a call or an attribute: the last name of what is called.

    Of an index the ops that a part of it may be, empty if it may be any; of what is
    assigned to one, those of all of its parts.
    """
    line: int
    """The line that Python reports while it runs the operation."""
    last: int
    """The last line of the expression."""


class Graph(Struct):
    """The operations of a function, and the possible successors of each."""

    nodes: list[Node]
    after: list[set[int]]
    first: int = 0
    """The lines of the function."""
    last: int = 0


class Function(Struct, frozen=True):
    """A function of a source file."""

    begins: int
    name: str
    node: ast.AST

    @property
    def ends(self) -> int:
        """The last line of the function."""
        return getattr(self.node, "end_lineno", None) or self.begins

    def loop(self, first: int, last: int) -> tuple[int, int] | None:
        """Return the lines of its smallest loop around these lines, if there is one."""
        spans = [
            (loop.lineno, loop.end_lineno or loop.lineno)
            for loop in ast.walk(self.node)
            if isinstance(loop, _LOOPS)
        ]
        around = [span for span in spans if span[0] <= first and last <= span[1]]
        return min(around, key=lambda span: span[1] - span[0], default=None)


class Loop(NamedTuple):
    """A loop of a function: a statement, or a comprehension."""

    line: int
    first: int
    """The first line of its body."""
    last: int


def loops_of(function: Function) -> list[Loop]:
    """Return the loops of a function, without those of functions in it."""
    loops = []
    waiting = [function.node]
    while waiting:
        node = waiting.pop()
        last = getattr(node, "end_lineno", None) or 0
        if isinstance(node, _LOOPS):
            loops.append(Loop(node.lineno, node.body[0].lineno, last))
        elif isinstance(node, tuple(_COMPREHENSIONS)):
            loops.append(Loop(node.lineno, node.lineno, last))  # type: ignore[attr-defined]
        waiting += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, (*_FUNCTIONS, ast.Lambda))
        ]
    return sorted(loops)


class Program(Struct):
    """The functions of a source file, by first line and name."""

    functions: list[Function] = field(default_factory=list)

    def find(self, name: str, line: int | None) -> Function | None:
        """Return the function of a name that begins at a line, if there is one.

        A line that is not known leaves the only one of that name; a module has no
        line to speak of.
        """
        named = [function for function in self.functions if function.name == name]
        if name != MODULE_LEVEL and line is not None:
            named = [function for function in named if function.begins == line]
        return named[0] if len(named) == 1 else None


def read_program(source: str) -> Program:
    """Return the functions of a source; none if it cannot be parsed."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Program()
    functions = [Function(1, MODULE_LEVEL, tree)]
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            lines = [decorator.lineno for decorator in node.decorator_list]
            functions.append(Function(min([node.lineno, *lines]), node.name, node))
        elif isinstance(node, ast.Lambda):
            functions.append(Function(node.lineno, "<lambda>", node))
        elif type(node) in _COMPREHENSIONS:
            name = _COMPREHENSIONS[type(node)]
            functions.append(Function(node.lineno, name, node))  # type: ignore[attr-defined]
    return Program(functions)


def graph_of(function: Function) -> Graph:
    """Return the control-flow graph of a function."""
    node = function.node
    builder = _Builder()
    if isinstance(node, ast.Lambda):
        ends = builder.expression(node.body, {ENTRY})
    elif isinstance(node, ast.DictComp):
        ends = builder.loop(node, node.generators, [node.key, node.value], {ENTRY})
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        ends = builder.loop(node, node.generators, [node.elt], {ENTRY})
    else:
        ends = builder.body(getattr(node, "body", []), {ENTRY})
    builder.connect(ends, EXIT)
    return Graph(builder.nodes, builder.after, function.begins, function.ends)


class _Loop(Struct):
    breaks: Ends = field(default_factory=set)
    continues: Ends = field(default_factory=set)


class _Builder:
    """Walks a function in the order in which Python evaluates it."""

    def __init__(self) -> None:
        self.nodes = [Node(OTHER, "", 0, 0), Node(OTHER, "", 0, 0)]
        self.after: list[set[int]] = [set(), set()]
        self.loops: list[_Loop] = []

    def connect(self, ends: Ends, to: int) -> None:
        for end in ends:
            self.after[end].add(to)

    def add(self, kind: str, at: ast.AST, ends: Ends, name: str = "") -> Ends:
        line = getattr(at, "lineno", 0)
        last = getattr(at, "end_lineno", None) or line
        self.nodes.append(Node(kind, name, line, last))
        self.after.append(set())
        self.connect(ends, len(self.nodes) - 1)
        return {len(self.nodes) - 1}

    # Statements.

    def body(self, statements: list[ast.stmt], ends: Ends) -> Ends:
        for statement in statements:
            ends = self.statement(statement, ends)
        return ends

    def statement(self, node: ast.stmt, ends: Ends) -> Ends:
        visit = getattr(self, f"_{type(node).__name__.lower()}", None)
        if visit is not None:
            after: Ends = visit(node, ends)
            return after
        if isinstance(node, (ast.Expr, ast.Delete)):
            return self._all(ast.iter_child_nodes(node), ends)
        return ends

    def _all(self, parts: object, ends: Ends) -> Ends:
        for part in parts:  # type: ignore[attr-defined]  # an iterator of nodes
            if isinstance(part, ast.expr):
                ends = self.expression(part, ends)
        return ends

    def _assign(self, node: ast.Assign, ends: Ends) -> Ends:
        ends = self.expression(node.value, ends)
        for target in node.targets:
            ends = self.store(target, ends)
        return ends

    def _annassign(self, node: ast.AnnAssign, ends: Ends) -> Ends:
        if node.value is None:
            return ends
        return self.store(node.target, self.expression(node.value, ends))

    def _augassign(self, node: ast.AugAssign, ends: Ends) -> Ends:
        ends = self.load(node.target, ends)
        ends = self.expression(node.value, ends)
        ends = self.add(type(node.op).__name__ + IN_PLACE, node, ends)
        return self.set_to(node.target, ends)

    def _if(self, node: ast.If, ends: Ends) -> Ends:
        ends = self.truth(node.test, ends)
        return self.body(node.body, ends) | self.body(node.orelse, ends)

    def _while(self, node: ast.While, ends: Ends) -> Ends:
        (head,) = self.add(OTHER, node.test, ends)
        tested = self.truth(node.test, {head})
        self.loops.append(_Loop())
        around = self.body(node.body, tested)
        loop = self.loops.pop()
        self.connect(around | loop.continues, head)
        return self.body(node.orelse, tested) | loop.breaks

    def _for(self, node: ast.For, ends: Ends) -> Ends:
        ends = self.expression(node.iter, ends)
        (head,) = self.add(OTHER, node.iter, ends)
        self.loops.append(_Loop())
        around = self.body(node.body, self.store(node.target, {head}))
        loop = self.loops.pop()
        self.connect(around | loop.continues, head)
        return self.body(node.orelse, {head}) | loop.breaks

    _asyncfor = _for

    def _break(self, _one: ast.Break, ends: Ends) -> Ends:
        self.loops[-1].breaks |= ends
        return set()

    def _continue(self, _one: ast.Continue, ends: Ends) -> Ends:
        self.loops[-1].continues |= ends
        return set()

    def _with(self, node: ast.With, ends: Ends) -> Ends:
        for item in node.items:
            ends = self.expression(item.context_expr, ends)
            ends = self.add(OTHER, item.context_expr, ends)
            if item.optional_vars is not None:
                ends = self.store(item.optional_vars, ends)
        ends = self.body(node.body, ends)
        for item in reversed(node.items):
            ends = self.add(OTHER, item.context_expr, ends)
        return ends

    _asyncwith = _with

    def _try(self, node: ast.Try, ends: Ends) -> Ends:
        start = len(self.nodes)
        body = self.body(node.body, ends)
        anywhere = ends | {*range(start, len(self.nodes))}
        handled: Ends = set()
        for handler in node.handlers:
            caught = (
                self.expression(handler.type, anywhere) if handler.type else anywhere
            )
            handled |= self.body(handler.body, caught)
        done = self.body(node.orelse, body) | handled
        return self.body(node.finalbody, done | anywhere) if node.finalbody else done

    _trystar = _try

    def _return(self, node: ast.Return, ends: Ends) -> Ends:
        if node.value is not None:
            ends = self.expression(node.value, ends)
        self.connect(ends, EXIT)
        return set()

    def _raise(self, node: ast.Raise, ends: Ends) -> Ends:
        self.connect(self._all(ast.iter_child_nodes(node), ends), EXIT)
        return set()

    def _assert(self, node: ast.Assert, ends: Ends) -> Ends:
        tested = self.truth(node.test, ends)
        if node.msg is not None:
            self.connect(self.expression(node.msg, tested), EXIT)
        return tested

    def _import(self, node: ast.stmt, ends: Ends) -> Ends:
        return self.add(OTHER, node, ends)

    _importfrom = _import

    def _functiondef(self, node: ast.FunctionDef, ends: Ends) -> Ends:
        for part in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            if part is not None:
                ends = self.expression(part, ends)
        for part in node.decorator_list:
            ends = self.add(CALL, part, ends, _last_name(part))
        return ends

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef, ends: Ends) -> Ends:
        return self.add(OTHER, node, self._all(node.bases, ends))

    def _match(self, node: ast.Match, ends: Ends) -> Ends:
        ends = self.expression(node.subject, ends)
        done = set(ends)
        for case in node.cases:
            begun = self.truth(case.guard, ends) if case.guard else ends
            done |= self.body(case.body, begun)
        return done

    # Targets.

    def load(self, target: ast.expr, ends: Ends) -> Ends:
        """Evaluate a target that is changed in place."""
        if isinstance(target, ast.Subscript):
            return self._subscript(target, ends)
        if isinstance(target, ast.Attribute):
            ends = self.expression(target.value, ends)
            return self.add(ATTRIBUTE, target, ends, target.attr)
        return ends

    def set_to(self, target: ast.expr, ends: Ends) -> Ends:
        """Store into a target whose parts are evaluated already."""
        if isinstance(target, ast.Subscript):
            return self.add(SET, target, ends, " ".join(_picks(target)))
        if isinstance(target, ast.Attribute):
            return self.add(ATTRIBUTE, target, ends, target.attr)
        return ends

    def store(self, target: ast.expr, ends: Ends) -> Ends:
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                ends = self.store(part, ends)
            # Taking a tensor apart is a call of its __iter__.
            return ends
        if isinstance(target, ast.Starred):
            return self.store(target.value, ends)
        if isinstance(target, ast.Subscript):
            ends = self._all((target.value, target.slice), ends)
        elif isinstance(target, ast.Attribute):
            ends = self.expression(target.value, ends)
        return self.set_to(target, ends)

    # Expressions.

    def truth(self, test: ast.expr, ends: Ends) -> Ends:
        """Evaluate a condition and its truth value, if a tensor may have that."""
        ends = self.expression(test, ends)
        return ends if _is_plain(test) else self.add(TRUTH, test, ends)

    def expression(self, node: ast.expr, ends: Ends) -> Ends:
        visit = getattr(self, f"_{type(node).__name__.lower()}", None)
        if visit is not None:
            after: Ends = visit(node, ends)
            return after
        return self._all(ast.iter_child_nodes(node), ends)

    def _boolop(self, node: ast.BoolOp, ends: Ends) -> Ends:
        done: Ends = set()
        for value in node.values[:-1]:
            ends = self.truth(value, ends)
            done |= ends
        return done | self.expression(node.values[-1], ends)

    def _ifexp(self, node: ast.IfExp, ends: Ends) -> Ends:
        ends = self.truth(node.test, ends)
        return self.expression(node.body, ends) | self.expression(node.orelse, ends)

    def _binop(self, node: ast.BinOp, ends: Ends) -> Ends:
        ends = self._all((node.left, node.right), ends)
        return self.add(type(node.op).__name__, node, ends)

    def _unaryop(self, node: ast.UnaryOp, ends: Ends) -> Ends:
        ends = self.expression(node.operand, ends)
        if isinstance(node.op, ast.Not) and _is_plain(node.operand):
            return ends
        kind = TRUTH if isinstance(node.op, ast.Not) else type(node.op).__name__
        return self.add(kind, node, ends)

    def _compare(self, node: ast.Compare, ends: Ends) -> Ends:
        ends = self.expression(node.left, ends)
        done: Ends = set()
        for place, (operator, value) in enumerate(
            zip(node.ops, node.comparators, strict=True)
        ):
            if place:
                ends = self.add(TRUTH, node, ends)
                done |= ends
            ends = self.expression(value, ends)
            ends = self.add(type(operator).__name__, node, ends)
        return done | ends

    def _call(self, node: ast.Call, ends: Ends) -> Ends:
        ends = self.expression(node.func, ends)
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        # Python evaluates arguments as they are written, keywords among them.
        values.sort(key=lambda value: (value.lineno, value.col_offset))
        ends = self._all(values, ends)
        return self.add(CALL, node, ends, _last_name(node.func))

    def _attribute(self, node: ast.Attribute, ends: Ends) -> Ends:
        ends = self.expression(node.value, ends)
        return self.add(ATTRIBUTE, node, ends, node.attr)

    def _subscript(self, node: ast.Subscript, ends: Ends) -> Ends:
        ends = self._all((node.value, node.slice), ends)
        # One op after the other for each part, of which any may be missing.
        for picked in _picks(node) or [""]:
            ends = self.add(GET, node, ends, picked)
        return ends

    def _formattedvalue(self, node: ast.FormattedValue, ends: Ends) -> Ends:
        return self.add(OTHER, node, self._all(ast.iter_child_nodes(node), ends))

    def _lambda(self, node: ast.Lambda, ends: Ends) -> Ends:
        return self._all(node.args.defaults, ends)

    def _generatorexp(self, node: ast.GeneratorExp, ends: Ends) -> Ends:
        return self.expression(node.generators[0].iter, ends)

    def _listcomp(self, node: ast.ListComp, ends: Ends) -> Ends:
        ends = self.expression(node.generators[0].iter, ends)
        return self.loop(node, node.generators, [node.elt], ends)

    def _setcomp(self, node: ast.SetComp, ends: Ends) -> Ends:
        ends = self.expression(node.generators[0].iter, ends)
        return self.loop(node, node.generators, [node.elt], ends)

    def _dictcomp(self, node: ast.DictComp, ends: Ends) -> Ends:
        ends = self.expression(node.generators[0].iter, ends)
        return self.loop(node, node.generators, [node.key, node.value], ends)

    def loop(
        self,
        node: ast.expr,
        generators: list[ast.comprehension],
        values: list[ast.expr],
        ends: Ends,
    ) -> Ends:
        """Take a comprehension for the loop that it is since Python 3.12.

        Before, it is a function of its own: then its parts are not seen here.
        """
        (start,) = self.add(OTHER, node, ends)
        inner, skipped = {start}, {start}
        for place, generator in enumerate(generators):
            if place:
                inner = self.expression(generator.iter, inner)
            for test in generator.ifs:
                inner = self.truth(test, inner)
                skipped |= inner
        inner = self._all(values, inner)
        self.connect(inner | skipped, start)
        return {start}


def _last_name(function: ast.expr) -> str:
    if isinstance(function, ast.Call):
        return _last_name(function.func)
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_plain(test: ast.expr) -> bool:
    """Return whether a condition is Python's own, whatever its parts are."""
    if isinstance(test, ast.BoolOp):
        return all(_is_plain(value) for value in test.values)
    if isinstance(test, ast.UnaryOp):
        return isinstance(test.op, ast.Not)
    if isinstance(test, ast.Compare):
        return all(isinstance(op, (ast.Is, ast.IsNot)) for op in test.ops)
    called = test.func if isinstance(test, ast.Call) else None
    return isinstance(called, ast.Name) and called.id in _PLAIN


def _picks(node: ast.Subscript) -> list[str]:
    """Return the ops that the parts of an index may be; none if one may be any.

    What has a name for an index is a dict, and what a shape has are numbers.
    """
    value = node.value
    asked = isinstance(value, ast.Call) and _last_name(value) in _SIZES
    if asked or (isinstance(value, ast.Attribute) and value.attr == _SHAPE):
        return [NO_OP]
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    picks = [_picked(part) for part in parts]
    if NO_OP in picks:
        return [NO_OP]
    return [] if "" in picks else picks


def _picked(part: ast.expr) -> str:
    """Return the ops that a part of an index may be, empty if it may be any."""
    if isinstance(part, ast.Slice):
        ends = (part.lower, part.upper, part.step)
        constant = all(end is None or _picked(end) == "select" for end in ends)
        return "slice" if constant else SLICE_OF_VALUES
    if isinstance(part, ast.JoinedStr):
        return NO_OP
    if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
        part = part.operand
    if not isinstance(part, ast.Constant) or isinstance(part.value, bool):
        return ""
    kinds = {int: "select", str: NO_OP, type(None): "unsqueeze", type(...): "alias"}
    return kinds.get(type(part.value), "")

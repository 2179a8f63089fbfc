"""Values that an iteration of a loop needs of the one before, by its source."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceq.graph.source.control_flow import Function

PARAMETERS, LOSSES, STEPS, BATCHES, LAYERS = (
    *("parameters", "losses", "steps", "batches"),
    "layers",
)
_OVER = (
    (LOSSES, r"loss\w*\.(items|values|keys)\(\)|\blosses\b"),
    (PARAMETERS, r"parameters\b|param_groups|state_dict\(|buffers\(|\bparams\b"),
    (STEPS, r"timesteps|sigmas|scheduler|inference_steps|diffusion|sampl\w*_steps"),
    (BATCHES, r"loader|batches"),
    (LAYERS, r"layers|blocks|heads|modules|convs|towers|branches|discriminators"),
)
# Names are compared with names, branch by branch. Those of models have a tenth of it.
_MOST_NODES = 20_000
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_COLLECTS = ("append", "extend", "appendleft", "update")
_ADDS = ("add_", "sub_", "index_add_", "scatter_add_")
_TRAINS = ("backward", "step")
_BUILTIN = (
    *("range", "len", "zip", "enumerate", "print", "int", "float", "min", "max"),
    *("list", "tuple", "dict", "set", "sum", "abs", "slice", "isinstance", "sorted"),
    *("reversed", "str", "any", "all", "getattr", "hasattr"),
)


class LoopBody(Struct, frozen=True):
    """Dependence of a loop's iterations on each other."""

    over: str
    """One of the kinds above; empty if it is none of them."""
    carried: tuple[str, ...]
    """Names whose values the next iteration needs, but for sums."""
    trains: bool = False
    """True if weights are updated in each iteration."""
    leaves: bool = False
    """True if an iteration may end the loop."""
    calls: bool = False
    """True if it calls functions or layers of the program's, which may keep a state."""


def body_of(function: Function, line: int) -> LoopBody | None:
    """Return the body of a function's loop at a line.

    None if there is none, or if the function is too long or too deep to follow:
    sources are untrusted.
    """
    nodes = [*islice(ast.walk(function.node), _MOST_NODES + 1)]
    if len(nodes) > _MOST_NODES:
        return None
    with suppress(RecursionError):
        return _body_at(nodes, line)
    return None


def _body_at(nodes: Iterable[ast.AST], line: int) -> LoopBody | None:
    for node in nodes:
        if getattr(node, "lineno", None) != line:
            continue
        if isinstance(node, _LOOPS):
            return _of_statement(node)
        if isinstance(node, _COMPREHENSIONS):
            over = ast.unparse(node.generators[0].iter)
            elements = [*ast.iter_child_nodes(node)]
            return LoopBody(_over(over), (), calls=_calls(elements))
    return None


def _of_statement(node: ast.For | ast.AsyncFor | ast.While) -> LoopBody:
    own = set() if isinstance(node, ast.While) else set(_keys(node.target))
    tested = [node.test] if isinstance(node, ast.While) else []
    reader = _Reader(own)
    for test in tested:
        reader.reads(test)
    reader.body(node.body, set())
    # What is written anywhere and read before is left by the iteration before.
    carried = [
        name
        for name in reader.read_first
        if name in reader.written and name not in own and name not in reader.only_summed
    ]
    carried += [name for name in reader.parts if name not in carried]
    over = "" if tested else ast.unparse(node.iter)  # type: ignore[union-attr]
    return LoopBody(
        _over(over),
        tuple(dict.fromkeys(carried)),
        trains=reader.trains,
        leaves=any(
            isinstance(part, (ast.Break, ast.Return))
            for statement in node.body
            for part in ast.walk(statement)
        ),
        calls=_calls(node.body),
    )


def _calls(nodes: Iterable[ast.AST]) -> bool:
    """Return whether anything is called that is no function of torch or of Python."""
    for node in nodes:
        for part in ast.walk(node):
            function = part.func if isinstance(part, ast.Call) else None
            if isinstance(function, ast.Name) and function.id not in _BUILTIN:
                return True
            if isinstance(function, ast.Attribute) and _key(function).startswith(
                "self."
            ):
                return True
            if isinstance(function, ast.Subscript):
                return True
    return False


def _over(iterated: str) -> str:
    return next((kind for kind, pattern in _OVER if re.search(pattern, iterated)), "")


class _Reader:
    """Walks a body in the order in which it runs: what is read, and what written."""

    def __init__(self, own: set[str]) -> None:
        self.own = own
        self.read_first: dict[str, None] = {}
        self.written: set[str] = set()
        self.summed: set[str] = set()
        self.others: set[str] = set()
        self.trains = False
        self._stored: dict[str, set[str]] = {}
        self._collected: dict[str, set[str]] = {}
        self._loaded: dict[str, set[str]] = {}
        self._now: set[str] = set()

    @property
    def only_summed(self) -> set[str]:
        """Names that values are added to, and that nothing else reads."""
        return self.summed - self.others

    @property
    def parts(self) -> list[str]:
        """Names of which one part is written and another one read, or lists' last."""
        written = [
            name
            for name, stored in self._stored.items()
            if self._loaded.get(name, set()) - stored
        ]
        collected = [name for name, before in self._collected.items() if before]
        return [name for name in written + collected if name not in self.own]

    def body(self, statements: Iterable[ast.stmt], written: set[str]) -> set[str]:
        """Go through statements; return what is certainly written after them."""
        self._now = written
        for statement in statements:
            self._statement(statement)
        return self._now

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            self._assign(node.targets, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign([node.target], node.value)
        elif isinstance(node, ast.AugAssign):
            self._augmented(node)
        elif isinstance(node, ast.If):
            self.reads(node.test)
            before = set(self._now)
            then = self.body(node.body, set(before))
            self._now = then & self.body(node.orelse, set(before))
        elif isinstance(node, (*_LOOPS, ast.With, ast.Try)):
            self._nested(node)
        elif not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            for child in ast.iter_child_nodes(node):
                self.reads(child)

    def _nested(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self.reads(node.iter)
            self._writes(node.target)
        elif isinstance(node, ast.While):
            self.reads(node.test)
        elif isinstance(node, ast.With):
            for item in node.items:
                self.reads(item.context_expr)
        self.body(getattr(node, "body", []), self._now)

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        names = {key for target in targets for key in _keys(target)}
        if names & _counted_up(value):
            return
        added = _added_to(value) & names
        self.summed |= added
        self.reads(value, but=added)
        for name in added:
            self._first(name)
        for target in targets:
            self._writes(target)

    def _augmented(self, node: ast.AugAssign) -> None:
        self.reads(node.value)
        (key, *_) = [*_keys(node.target), ""]
        if isinstance(node.target, ast.Subscript) or isinstance(
            node.value, ast.Constant
        ):
            return
        if key:
            self._first(key)
            kinds = (ast.Add, ast.Sub)
            (self.summed if isinstance(node.op, kinds) else self.others).add(key)
            self.written.add(key)

    def _writes(self, target: ast.expr) -> None:
        if isinstance(target, ast.Subscript):
            self.reads(target.slice)
            for key in _keys(target.value):
                at = ast.unparse(target.slice)
                self._stored.setdefault(key, set()).add(at)
            return
        for key in _keys(target):
            self.written.add(key)
            self._now.add(key)

    def _first(self, key: str) -> None:
        if key not in self._now:
            self.read_first.setdefault(key)

    def reads(self, node: ast.AST, but: Iterable[str] = ()) -> None:
        """Note what an expression reads, and what its calls change in place."""
        if isinstance(node, ast.Subscript):
            # What is read by a fixed name, as of a batch, is no part among others.
            named = isinstance(node.slice, ast.Constant) and isinstance(
                node.slice.value, str
            )
            for key in [] if named else _keys(node.value):
                self._loaded.setdefault(key, set()).add(ast.unparse(node.slice))
            self.reads(node.slice)
            # A part of it is read: the whole is not what is left for the next.
            if not isinstance(node.value, (ast.Name, ast.Attribute)):
                self.reads(node.value)
            return
        key = _key(node)
        if key and not isinstance(getattr(node, "ctx", None), ast.Store):
            # Of `x.tanh` it is `x` that is read.
            for read in dict.fromkeys((key, key.partition(".")[0])):
                if read not in but:
                    self._first(read)
                    self.others.add(read)
            return
        called = node.func if isinstance(node, ast.Call) else None
        method = called if isinstance(called, ast.Attribute) else None
        for child in ast.iter_child_nodes(node):
            # What is added to is not read, as far as the order of sums goes.
            if not (child is method and method.attr in _ADDS):
                self.reads(child, but)
        if method:
            self._called(method)

    def _called(self, function: ast.Attribute) -> None:
        key, name = _key(function.value), function.attr
        if name in _TRAINS and (name == "backward" or "optim" in (key or "")):
            self.trains = True
        if not key or key in self.own:
            return
        if name in _COLLECTS:
            self._collected.setdefault(key, set(self._loaded.get(key, ())))
        elif name.endswith("_") and not name.endswith("__"):
            self.written.add(key)
            self._first(key)
            (self.summed if name in _ADDS else self.others).add(key)


def _counted_up(value: ast.expr) -> set[str]:
    """Return the name that a constant is added to, as of a counter."""
    if isinstance(value, ast.BinOp) and isinstance(value.right, ast.Constant):
        return {_key(value.left)} - {""}
    return set()


def _added_to(value: ast.expr) -> set[str]:
    """Return the names that an expression only adds to: ``total`` of ``total + x``."""
    everywhere = [_key(part) for part in ast.walk(value)]
    names: set[str] = set()
    while isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub)):
        names |= {_key(value.left), _key(value.right)} - {""}
        value = value.left
    return {name for name in names if everywhere.count(name) == 1}


def _keys(target: ast.expr) -> list[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [key for part in target.elts for key in _keys(part)]
    if isinstance(target, ast.Starred):
        return _keys(target.value)
    key = _key(target)
    return [key] if key else []


def _key(node: ast.AST) -> str:
    """Return a name, or an attribute of one, as ``self.h``; empty if it is neither."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""

"""Origins of the ops of generated code: lines and modules of the program's ops.

The forward's code names the program's ops themselves. The backward's names those of the
graph that it was lowered from, which have the innermost line of their forward, but not
its callers and modules. The data flow identifies these: a backward op of a line that
reads a parameter, writes a parameter's gradient or reads a value that the forward saved
belongs to the op of that line that uses the same parameter or value. The others lie
between: a gradient flows from later ops to earlier ones.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from traceq.model.compiled_graphs import CPP, EXTERN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from traceq.model.compiled_graphs import (
        CompiledCode,
        Frame,
        GeneratedCode,
        KernelCall,
        LoweredNode,
        Module,
        Node,
        Size,
    )

_T = TypeVar("_T")
Line: TypeAlias = "tuple[str, int]"

GEMM = "gemm"
ATTENTION = "attention"
CONVOLUTION = "convolution"
LOOKUP = "lookup"
_KINDS = (
    (
        GEMM,
        "mm addmm bmm baddbmm _int_mm _scaled_mm addmv mv dot linear matmul einsum"
        " tensordot __matmul__ __rmatmul__ bilinear",
    ),
    (
        LOOKUP,
        "embedding embedding_dense_backward embedding_bag index index_select gather",
    ),
    (
        "view",
        "view reshape permute transpose t T mT unsqueeze squeeze expand select slice"
        " getitem _unsafe_view alias detach flatten unflatten chunk split unbind"
        " as_strided view_as expand_as split_with_sizes diagonal swapaxes movedim",
    ),
    (
        "cast",
        "to float half bfloat16 double type _to_copy convert_element_type clone"
        " contiguous type_as",
    ),
    ("sum", "add sub iadd isub add_ sub_"),
)
_KIND_OF = {name: kind for kind, names in _KINDS for name in names.split()}
_PARTS = (
    (ATTENTION, re.compile(r"scaled_dot_product|flash_attention|efficient_attention")),
    (CONVOLUTION, re.compile(r"^_?conv|convolution")),
    ("norm", re.compile(r"_norm|^norm")),
)
# What a line runs as it is written; nothing else of that line is made of it.
_WHOLE = (GEMM, ATTENTION, CONVOLUTION)
_PASSING = ("view", "cast")
_PARAMETER = re.compile(r"primals_(\d+)$")
# Heuristic limit: programs need less than a tenth of it.
_MOST_LOOKS = 5_000_000
_LONGEST_CHAIN = 32


def kind_of(target: str) -> str:
    """Return the kind of an op, as far as it tells ops of one line apart.

    >>> kind_of("aten.addmm"), kind_of("linear"), kind_of("conv2d"), kind_of("mul")
    ('gemm', 'gemm', 'convolution', '')
    """
    name = target.rpartition(".")[2]
    if fixed_kind := _KIND_OF.get(name):
        return fixed_kind
    return next((kind for kind, part in _PARTS if part.search(name)), "")


class Origin(NamedTuple):
    """The place of an op's call: functions and modules around it, outermost first."""

    frames: tuple[Frame, ...]
    modules: tuple[Module, ...]


class Part(NamedTuple):
    """One of the ops that a kernel computes."""

    name: str
    target: str
    origin: Origin
    size: Size | None
    inputs: tuple[Size, ...]


@dataclass(frozen=True)
class Origins:
    """Origins of the nodes that one piece of generated code names."""

    code: GeneratedCode
    nodes: Sequence[Node]
    """The program's ops, in order; none where they were not recorded."""
    forward: GeneratedCode | None
    """The code of the forward, where this is its backward."""

    def part(self, name: str, call: KernelCall) -> Part | None:
        """Return a node that a call names, if it is known where it comes from.

        Graphs that a graph calls may name theirs alike: then it is the one that uses
        the inputs that are read, else what all have in common. Without the program's
        ops there is the graph that they were lowered to, if that is known.
        """
        nodes = [] if call.of_lowered else self._by_name.get(name, [])
        if len(nodes) > 1:
            nodes = self._users(nodes, call.reads) or nodes
        if nodes and (nodes[0].frames or nodes[0].modules):
            node = nodes[0]
            sizes = (self._size(one) for one in node.inputs)
            return Part(name, node.target, _origin(nodes), node.size, _known(sizes))
        # A node of the program may have the name that another one was lowered to.
        named = self.code.lowered.get(name)
        lowered = named if call.of_lowered else self._lowered_to(name, call) or named
        origin = self._lowered_origin(lowered) if lowered else None
        if lowered is None or origin is None:
            return None
        of = self.code.lowered
        sizes = (of[one].size for one in lowered.inputs)
        return Part(name, lowered.target, origin, lowered.size, _known(sizes))

    def _lowered_to(self, name: str, call: KernelCall) -> LoweredNode | None:
        """Return the last node that an op was lowered to, if that is known."""
        lowered = self.code.lowered
        if self.nodes:
            return None
        made = [
            lowered[one]
            for one in self.code.made_of.get(call.name, {}).get(name, ())
            if one in lowered
        ]
        if call.kind == EXTERN and call.reads and name == call.nodes[-1]:
            kind, reads = kind_of(call.name.rpartition("::")[2]), {*call.reads}
            made = [
                node
                for node in lowered.values()
                if kind_of(node.target) == kind
                and reads <= _parameters_read(lowered, node)
            ]
            made = made if len(made) == 1 else []
        return made[-1] if made else None

    def _size(self, name: str) -> Size | None:
        nodes = self._by_name.get(name)
        return nodes[0].size if nodes else None

    def _users(self, nodes: Sequence[Node], reads: Sequence[int]) -> list[Node]:
        placeholders = [node.name for node in self.nodes if node.op == "placeholder"]
        names = {placeholders[at - 1] for at in reads if 0 < at <= len(placeholders)}
        return [node for node in nodes if names & {*node.inputs}]

    @cached_property
    def of_call(self) -> list[tuple[str, ...]]:
        """The names of the nodes that each call computes, as far as they are certain.

        The code does not say it of kernels in C++. Such a kernel computes the ops that
        come after the operators that are called before it, and before those after it.
        """
        calls = self.code.calls
        named = [call.nodes for call in calls]
        unnamed = [at for at, call in enumerate(calls) if call.kind == CPP]
        if not unnamed or any(named[at] for at in unnamed):
            return named
        at_call = {nodes[-1]: at for at, nodes in enumerate(named) if nodes}
        for name, (after, before) in self._sides(at_call).items():
            among = unnamed[bisect_right(unnamed, after) : bisect_left(unnamed, before)]
            if len(among) == 1:
                named[among[0]] = (*named[among[0]], name)
        return named

    def _sides(self, at_call: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Return after and before which calls each node that is in none is computed."""
        graph: Mapping[str, Node | LoweredNode] = self.code.lowered
        if not self.code.backward:
            graph = {
                name: nodes[0]
                for name, nodes in self._by_name.items()
                if len(nodes) == 1
            }
        after: dict[str, int] = {}
        for name, node in graph.items():
            sides = (at_call.get(one, after.get(one, -1)) for one in node.inputs)
            after[name] = max(sides, default=-1)
        before = dict.fromkeys(graph, len(self.code.calls))
        for name, node in [*graph.items()][::-1]:
            for one in node.inputs:
                if one in before:
                    least = at_call.get(name, before[name])
                    before[one] = min(before[one], least)
        return {
            name: (after[name], before[name])
            for name, node in graph.items()
            if name not in at_call
            and node.inputs
            and kind_of(node.target) not in (*_WHOLE, "view")
        }

    @cached_property
    def _by_name(self) -> dict[str, list[Node]]:
        by_name: dict[str, list[Node]] = {}
        for node in self.nodes:
            by_name.setdefault(node.name, []).append(node)
        return by_name

    def _lowered_origin(self, node: LoweredNode) -> Origin | None:
        nodes = [self.nodes[at] for at in self._located.get(node.name, ())]
        if not nodes:
            return Origin((node.frame,), ()) if node.frame else None
        return _origin(nodes)

    @cached_property
    def _located(self) -> dict[str, tuple[int, ...]]:
        program = _Program(self.nodes)
        if self.forward is None:
            return _forward(program, self.code)
        before = _forward(program, self.forward)
        return _backward(program, self.code, self.forward, before)


def origins_of(compiled: CompiledCode) -> dict[int, Origins]:
    """Return the origins of each piece of code, by its place in the list."""
    forward = {one.graph: one for one in compiled.code if not one.backward}
    return {
        at: Origins(
            one,
            compiled.graphs.get(one.graph, ()),
            forward.get(one.graph) if one.backward else None,
        )
        for at, one in enumerate(compiled.code)
    }


def _origin(nodes: Sequence[Node]) -> Origin:
    """Return the place of a call, as far as these nodes agree on it."""
    return Origin(
        # Of one line, but maybe of several callers.
        _common([one.frames[::-1] for one in nodes])[::-1],
        _common([one.modules for one in nodes]),
    )


def _known(sizes: Iterable[Size | None]) -> tuple[Size, ...]:
    return tuple(size for size in sizes if size is not None)


def _common(paths: Sequence[tuple[_T, ...]]) -> tuple[_T, ...]:
    """Return the common prefix."""
    first = min(paths, key=len)
    same = takewhile(
        lambda at: all(path[at] == first[at] for path in paths), range(len(first))
    )
    return first[: sum(1 for _ in same)]


class _Program:
    """Indexes of the program's ops, by line, name and kind; an op is its position."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.last = max(len(nodes) - 1, 0)
        self.of_line: dict[Line, list[int]] = {}
        self._uses: dict[str, list[int]] = {}
        self._users: dict[tuple[int, Line], set[int]] = {}
        self._kinds = [kind_of(node.target) for node in nodes]
        self._left = _MOST_LOOKS
        parameters = []
        for at, node in enumerate(nodes):
            if node.op == "placeholder":
                parameters.append(node.name)
            elif node.frames:
                self.of_line.setdefault(_line(node.frames[-1]), []).append(at)
            for name in node.inputs:
                self._uses.setdefault(name, []).append(at)
        self._parameters = parameters
        self._place: dict[str, list[int]] = {}
        for at, node in enumerate(nodes):
            self._place.setdefault(node.name, []).append(at)

    def named(self, name: str) -> int | None:
        places = self._place.get(name, [])
        return places[0] if len(places) == 1 else None

    def users(self, parameter: int, line: Line) -> set[int]:
        """Return the ops of a line that read a parameter, or a view or cast of it."""
        if not 0 < parameter <= len(self._parameters):
            return set()
        if (parameter, line) not in self._users:
            self._users[parameter, line] = self._found_users(parameter, line)
        return self._users[parameter, line]

    def _found_users(self, parameter: int, line: Line) -> set[int]:
        users: set[int] = set()
        names = [self._parameters[parameter - 1]]
        while names:
            for at in self._uses.get(names.pop(), ()):
                node = self.nodes[at]
                if at not in users and node.frames and _line(node.frames[-1]) == line:
                    users.add(at)
                    if kind_of(node.target) in _PASSING:
                        names.append(node.name)
        return users

    def between(self, line: Line, low: int, high: int) -> list[int]:
        """Return the ops of a line between two; none once that is too much work."""
        of = self.of_line.get(line, [])
        ops = of[bisect_left(of, low) : bisect_right(of, high)]
        self._left -= len(ops)
        return ops if self._left > 0 else []

    def nearest(self, target: str, line: Line, bound: int, *, up: bool) -> int | None:
        """Return the first op of a line from a bound on, or the last one up to it.

        One that an op of this kind can come from, if there is any.
        """
        of = self.of_line.get(line, [])
        at = bisect_left(of, bound) if up else bisect_right(of, bound) - 1
        step = 1 if up else -1
        kind = kind_of(target)
        for place in range(at, len(of) if up else -1, step):
            self._left -= 1
            if self._left < 0 or _may_be(kind, self._kinds[of[place]]):
                return of[place]
        return of[at] if 0 <= at < len(of) else None

    def narrowed(self, target: str, places: Iterable[int]) -> list[int]:
        """Return those of a line's ops that an op of this kind can come from."""
        ordered = sorted(places)
        kind = kind_of(target)
        return [at for at in ordered if _may_be(kind, self._kinds[at])] or ordered


def _may_be(kind: str, program: str) -> bool:
    """Return whether an op of a kind can come from an op of another kind."""
    if kind in (*_WHOLE, "norm", LOOKUP):
        return program == kind
    return kind in ("view", "cast", "sum") or program not in (*_WHOLE, "view")


def _line(frame: Frame) -> Line:
    return frame.file, frame.line


def _parameters_read(lowered: Mapping[str, LoweredNode], node: LoweredNode) -> set[int]:
    """Return the parameters that a node reads, as they are or through views."""
    parameters: set[int] = set()
    for name in node.inputs:
        one = lowered[name]
        for _ in range(_LONGEST_CHAIN):
            if not one.inputs or kind_of(one.target) not in _PASSING:
                break
            one = lowered[one.inputs[0]]
        if number := _PARAMETER.match(one.name):
            parameters.add(int(number[1]))
    return parameters


def _anchored(
    program: _Program, lowered: Mapping[str, LoweredNode], node: LoweredNode
) -> set[int]:
    """Return the ops that a node comes from, told by the parameters that it reads."""
    if not node.frame:
        return set()
    line = _line(node.frame)
    users = [program.users(one, line) for one in _parameters_read(lowered, node)]
    common = set.intersection(*users) if users else set()
    return set(program.narrowed(node.target, common))


def _forward(program: _Program, code: GeneratedCode) -> dict[str, tuple[int, ...]]:
    """Return the ops that each node of a forward may come from.

    An op comes no earlier than what it reads, and no later than what reads it.
    """
    lowered = code.lowered
    origins = _told(program, code)
    for node in lowered.values():
        if node.name not in origins and (anchored := _anchored(program, lowered, node)):
            origins[node.name] = anchored
    edges = [(one, node.name) for node in lowered.values() for one in node.inputs]
    return _bounded(program, lowered, origins, edges, [*lowered])


def _told(program: _Program, code: GeneratedCode) -> dict[str, set[int]]:
    """Return the ops of nodes, from the comments on kernels."""
    named: dict[str, set[int]] = {}
    for names in code.made_of.values():
        for source, lowered in names.items():
            at = program.named(source)
            # A node that was lowered under its own name has not come from an op.
            if at is not None and program.nodes[at].frames:
                for name in lowered:
                    if name in code.lowered and _same_line(program, code, name, at):
                        named.setdefault(name, set()).add(at)
    return named


def _same_line(program: _Program, code: GeneratedCode, name: str, at: int) -> bool:
    frame = code.lowered[name].frame
    return frame is not None and _line(frame) == _line(program.nodes[at].frames[-1])


def _bounded(
    program: _Program,
    lowered: Mapping[str, LoweredNode],
    origins: Mapping[str, set[int]],
    edges: Sequence[tuple[str, str]],
    order: Sequence[str],
) -> dict[str, tuple[int, ...]]:
    """Return the possible origins of nodes, where no edge leads to an earlier op.

    ``order`` are the nodes, each after those that have an edge to it.
    """
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for first, then in edges:
        before.setdefault(then, []).append(first)
        after.setdefault(first, []).append(then)
    low: dict[str, int] = {}
    for name in order:
        least = max((low[one] for one in before.get(name, ()) if one in low), default=0)
        low[name] = _nearest(program, lowered[name], origins.get(name), least, up=True)
    high: dict[str, int] = {}
    for name in reversed(order):
        most = min(
            (high[one] for one in after.get(name, ()) if one in high),
            default=program.last,
        )
        high[name] = _nearest(program, lowered[name], origins.get(name), most, up=False)
    return {
        name: tuple(_chosen(program, node, origins.get(name), low[name], high[name]))
        for name, node in lowered.items()
        if node.frame
    }


def _nearest(
    program: _Program,
    node: LoweredNode,
    candidates: set[int] | None,
    bound: int,
    *,
    up: bool,
) -> int:
    """Return the first, or last, op that a node may come from, given its bound."""
    if node.frame is None:
        return bound
    line = _line(node.frame)
    if candidates:
        return min(candidates) if up else max(candidates)
    nearest = program.nearest(node.target, line, bound, up=up)
    return bound if nearest is None else nearest


def _chosen(
    program: _Program,
    node: LoweredNode,
    candidates: set[int] | None,
    low: int,
    high: int,
) -> list[int]:
    if candidates:
        return sorted(candidates)
    if node.frame is None:
        return []
    line = _line(node.frame)
    between = program.between(line, low, high) or program.between(line, 0, program.last)
    return program.narrowed(node.target, between)


def _backward(
    program: _Program,
    code: GeneratedCode,
    forward: GeneratedCode,
    before: Mapping[str, tuple[int, ...]],
) -> dict[str, tuple[int, ...]]:
    """Return the ops that each node of a backward may be the backward of."""
    lowered = code.lowered
    named = _told(program, code)
    again = {name for name in lowered if name in forward.lowered or name in named}
    origins = {name: {*before[name]} for name in again if before.get(name)} | named
    saved = _Saved(program, forward, before)
    gradients = _gradients(code)
    for node in lowered.values():
        if node.name in origins or node.frame is None:
            continue
        line = _line(node.frame)
        candidates = _anchored(program, lowered, node)
        for number in [gradients[node.name]] if node.name in gradients else []:
            users = set(program.narrowed(node.target, program.users(number, line)))
            candidates = candidates & users or users or candidates
        if not candidates:
            candidates = saved.users(node, line)
        if candidates:
            origins[node.name] = candidates
    edges = [
        (node.name, one)
        for node in lowered.values()
        for one in node.inputs
        if node.name not in again and one not in again
    ]
    return _bounded(program, lowered, origins, edges, [*lowered][::-1])


def _gradients(code: GeneratedCode) -> dict[str, int]:
    """Return the parameter whose gradient each node computes, views and casts too."""
    gradients: dict[str, int] = {}
    for number, output in enumerate(code.outputs, start=1):
        name = output
        for _ in range(_LONGEST_CHAIN):
            node = code.lowered.get(name)
            if node is None:
                break
            gradients[name] = number
            if kind_of(node.target) not in _PASSING or not node.inputs:
                break
            name = node.inputs[0]
    return gradients


class _Saved:
    """The values that a forward saves: which of its ops make and read them."""

    def __init__(
        self,
        program: _Program,
        forward: GeneratedCode,
        located: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._program = program
        self._forward = forward.lowered
        self._located = located
        self._readers: dict[str, list[str]] = {}
        for node in forward.lowered.values():
            for one in node.inputs:
                self._readers.setdefault(one, []).append(node.name)

    def users(self, node: LoweredNode, line: Line) -> set[int]:
        """Return the ops of a line that make or read what a backward node reads."""
        of_inputs = [set(self._of(name, line)) for name in node.inputs]
        sets = [places for places in of_inputs if places]
        if not sets:
            return set()
        ops = set.intersection(*sets) or set.union(*sets)
        return set(self._program.narrowed(node.target, ops))

    def _of(self, name: str, line: Line) -> Iterator[int]:
        for one in (name, *self._readers.get(name, ())):
            node = self._forward.get(one)
            if node and node.frame and _line(node.frame) == line:
                yield from self._located.get(one, ())

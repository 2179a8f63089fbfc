"""Origins of the ops of generated code: lines and modules of the program's ops."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from traceq.graph.inductor.lowered_origins import (
    backward_origins,
    forward_origins,
    parameters_read,
)
from traceq.graph.inductor.op_kinds import UNFUSED, kind_of
from traceq.graph.inductor.program_ops import ProgramOps
from traceq.model.compiled_graphs import CPP, EXTERN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
            sizes = (self._size(read) for read in node.inputs)
            return Part(
                name, node.target, _origin(nodes), node.size, _without_unknown(sizes)
            )
        # A node of the program may have the name that another one was lowered to.
        named = self.code.lowered.get(name)
        lowered = named if call.of_lowered else self._lowered_to(name, call) or named
        origin = self._lowered_origin(lowered) if lowered else None
        if lowered is None or origin is None:
            return None
        of = self.code.lowered
        sizes = (of[read].size for read in lowered.inputs)
        return Part(name, lowered.target, origin, lowered.size, _without_unknown(sizes))

    def _lowered_to(self, name: str, call: KernelCall) -> LoweredNode | None:
        """Return the last node that an op was lowered to, if that is known."""
        lowered = self.code.lowered
        if self.nodes:
            return None
        made = [
            lowered[node_name]
            for node_name in self.code.made_of.get(call.name, {}).get(name, ())
            if node_name in lowered
        ]
        if call.kind == EXTERN and call.reads and name == call.nodes[-1]:
            kind, reads = kind_of(call.name.rpartition("::")[2]), {*call.reads}
            made = [
                node
                for node in lowered.values()
                if kind_of(node.target) == kind
                and reads <= parameters_read(lowered, node)
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
            sides = (at_call.get(read, after.get(read, -1)) for read in node.inputs)
            after[name] = max(sides, default=-1)
        before = dict.fromkeys(graph, len(self.code.calls))
        for name, node in [*graph.items()][::-1]:
            for read in node.inputs:
                if read in before:
                    least = at_call.get(name, before[name])
                    before[read] = min(before[read], least)
        return {
            name: (after[name], before[name])
            for name, node in graph.items()
            if name not in at_call
            and node.inputs
            and kind_of(node.target) not in (*UNFUSED, "view")
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
        program = ProgramOps(self.nodes)
        if self.forward is None:
            return forward_origins(program, self.code)
        before = forward_origins(program, self.forward)
        return backward_origins(program, self.code, self.forward, before)


def origins_of(compiled: CompiledCode) -> dict[int, Origins]:
    """Return the origins of each piece of code, by its place in the list."""
    forward = {code.graph: code for code in compiled.code if not code.backward}
    return {
        at: Origins(
            code,
            compiled.graphs.get(code.graph, ()),
            forward.get(code.graph) if code.backward else None,
        )
        for at, code in enumerate(compiled.code)
    }


def _origin(nodes: Sequence[Node]) -> Origin:
    """Return the place of a call, as far as these nodes agree on it."""
    return Origin(
        # Of one line, but maybe of several callers.
        _common([node.frames[::-1] for node in nodes])[::-1],
        _common([node.modules for node in nodes]),
    )


def _without_unknown(sizes: Iterable[Size | None]) -> tuple[Size, ...]:
    return tuple(size for size in sizes if size is not None)


def _common(paths: Sequence[tuple[_T, ...]]) -> tuple[_T, ...]:
    """Return the common prefix."""
    first = min(paths, key=len)
    same = takewhile(
        lambda at: all(path[at] == first[at] for path in paths), range(len(first))
    )
    return first[: sum(1 for _ in same)]

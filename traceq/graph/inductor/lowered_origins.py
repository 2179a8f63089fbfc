"""Origins of lowered nodes: the program's ops that they may come from.

The forward's code names the program's ops themselves. The backward's names those of the
graph that it was lowered from, which have the innermost line of their forward, but not
its callers and modules. The data flow identifies these: a backward op of a line that
reads a parameter, writes a parameter's gradient or reads a value that the forward saved
belongs to the op of that line that uses the same parameter or value. The others lie
between: a gradient flows from later ops to earlier ones.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from traceq.graph.inductor.op_kinds import PASSING, kind_of
from traceq.graph.inductor.program_ops import Line, ProgramOps, line_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from traceq.model.compiled_graphs import (
        GeneratedCode,
        LoweredNode,
    )

_PARAMETER = re.compile(r"primals_(\d+)$")
_LONGEST_CHAIN = 32


def parameters_read(lowered: Mapping[str, LoweredNode], node: LoweredNode) -> set[int]:
    """Return the parameters that a node reads, as they are or through views."""
    parameters: set[int] = set()
    for name in node.inputs:
        lowered_node = lowered[name]
        for _ in range(_LONGEST_CHAIN):
            if not lowered_node.inputs or kind_of(lowered_node.target) not in PASSING:
                break
            lowered_node = lowered[lowered_node.inputs[0]]
        if number := _PARAMETER.match(lowered_node.name):
            parameters.add(int(number[1]))
    return parameters


def _anchored(
    program: ProgramOps, lowered: Mapping[str, LoweredNode], node: LoweredNode
) -> set[int]:
    """Return the ops that a node comes from, told by the parameters that it reads."""
    if not node.frame:
        return set()
    line = line_of(node.frame)
    users = [
        program.users(parameter, line) for parameter in parameters_read(lowered, node)
    ]
    common = set.intersection(*users) if users else set()
    return set(program.narrowed(node.target, common))


def forward_origins(
    program: ProgramOps, code: GeneratedCode
) -> dict[str, tuple[int, ...]]:
    """Return the ops that each node of a forward may come from.

    An op comes no earlier than what it reads, and no later than what reads it.
    """
    lowered = code.lowered
    origins = _named_in_comments(program, code)
    for node in lowered.values():
        if node.name not in origins and (anchored := _anchored(program, lowered, node)):
            origins[node.name] = anchored
    edges = [(read, node.name) for node in lowered.values() for read in node.inputs]
    return _bounded(program, lowered, origins, edges, [*lowered])


def _named_in_comments(program: ProgramOps, code: GeneratedCode) -> dict[str, set[int]]:
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


def _same_line(program: ProgramOps, code: GeneratedCode, name: str, at: int) -> bool:
    frame = code.lowered[name].frame
    return frame is not None and line_of(frame) == line_of(program.nodes[at].frames[-1])


def _bounded(
    program: ProgramOps,
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
        least = max(
            (low[near] for near in before.get(name, ()) if near in low), default=0
        )
        low[name] = _nearest(program, lowered[name], origins.get(name), least, up=True)
    high: dict[str, int] = {}
    for name in reversed(order):
        most = min(
            (high[near] for near in after.get(name, ()) if near in high),
            default=program.last,
        )
        high[name] = _nearest(program, lowered[name], origins.get(name), most, up=False)
    return {
        name: tuple(
            _possible_origins(program, node, origins.get(name), low[name], high[name])
        )
        for name, node in lowered.items()
        if node.frame
    }


def _nearest(
    program: ProgramOps,
    node: LoweredNode,
    candidates: set[int] | None,
    bound: int,
    *,
    up: bool,
) -> int:
    """Return the first, or last, op that a node may come from, given its bound."""
    if node.frame is None:
        return bound
    line = line_of(node.frame)
    if candidates:
        return min(candidates) if up else max(candidates)
    nearest = program.nearest(node.target, line, bound, up=up)
    return bound if nearest is None else nearest


def _possible_origins(
    program: ProgramOps,
    node: LoweredNode,
    candidates: set[int] | None,
    low: int,
    high: int,
) -> list[int]:
    if candidates:
        return sorted(candidates)
    if node.frame is None:
        return []
    line = line_of(node.frame)
    between = program.between(line, low, high) or program.between(line, 0, program.last)
    return program.narrowed(node.target, between)


def backward_origins(
    program: ProgramOps,
    code: GeneratedCode,
    forward: GeneratedCode,
    before: Mapping[str, tuple[int, ...]],
) -> dict[str, tuple[int, ...]]:
    """Return the ops that each node of a backward may be the backward of."""
    lowered = code.lowered
    named = _named_in_comments(program, code)
    again = {name for name in lowered if name in forward.lowered or name in named}
    origins = {name: {*before[name]} for name in again if before.get(name)} | named
    saved = _SavedValues(program, forward, before)
    gradients = _gradients(code)
    for node in lowered.values():
        if node.name in origins or node.frame is None:
            continue
        line = line_of(node.frame)
        candidates = _anchored(program, lowered, node)
        for number in [gradients[node.name]] if node.name in gradients else []:
            users = set(program.narrowed(node.target, program.users(number, line)))
            candidates = candidates & users or users or candidates
        if not candidates:
            candidates = saved.users(node, line)
        if candidates:
            origins[node.name] = candidates
    edges = [
        (node.name, item)
        for node in lowered.values()
        for item in node.inputs
        if node.name not in again and item not in again
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
            if kind_of(node.target) not in PASSING or not node.inputs:
                break
            name = node.inputs[0]
    return gradients


class _SavedValues:
    """The values that a forward saves: which of its ops make and read them."""

    def __init__(
        self,
        program: ProgramOps,
        forward: GeneratedCode,
        located: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._program = program
        self._forward = forward.lowered
        self._located = located
        self._readers: dict[str, list[str]] = {}
        for node in forward.lowered.values():
            for read in node.inputs:
                self._readers.setdefault(read, []).append(node.name)

    def users(self, node: LoweredNode, line: Line) -> set[int]:
        """Return the ops of a line that make or read what a backward node reads."""
        of_inputs = [set(self._of(name, line)) for name in node.inputs]
        sets = [places for places in of_inputs if places]
        if not sets:
            return set()
        ops = set.intersection(*sets) or set.union(*sets)
        return set(self._program.narrowed(node.target, ops))

    def _of(self, name: str, line: Line) -> Iterator[int]:
        for reader in (name, *self._readers.get(name, ())):
            node = self._forward.get(reader)
            if node and node.frame and line_of(node.frame) == line:
                yield from self._located.get(reader, ())

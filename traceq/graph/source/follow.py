"""Matching of a function's traced events with a path through its control-flow graph.

Each call and each op that the function ran must be a node of the graph, one after the
other along its edges. Nodes that a trace need not show may be skipped: an operator may
be one between numbers, and a call one that no trace shows; but a call that was seen
once would have been seen again. An op's line is known if all paths agree on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from traceq.graph.source.control_flow import (
    ATTRIBUTE,
    CALL,
    ENTRY,
    EXIT,
    GET,
    IN_PLACE,
    NO_OP,
    SCALARS,
    SET,
    SLICE_OF_VALUES,
    TRUTH,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceq.graph.source.control_flow import Graph, Node

_BETWEEN = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mult",
    "div": "Div",
    "true_divide": "Div",
    "floor_divide": "FloorDiv",
    "remainder": "Mod",
    "pow": "Pow",
    "matmul": "MatMult",
    "__and__": "BitAnd",
    "__iand__": "BitAnd",
    "bitwise_and": "BitAnd",
    "__or__": "BitOr",
    "__ior__": "BitOr",
    "bitwise_or": "BitOr",
    "__xor__": "BitXor",
    "__ixor__": "BitXor",
    "bitwise_xor": "BitXor",
    "__lshift__": "LShift",
    "__rshift__": "RShift",
    "lt": "Lt",
    "le": "LtE",
    "gt": "Gt",
    "ge": "GtE",
    "eq": "Eq",
    "ne": "NotEq",
    "neg": "USub",
    "bitwise_not": "Invert",
}
_VIEWS = ("slice", "select", "unsqueeze", "alias", "index", "nonzero", "expand", "view")
_WRITES = ("copy", "fill", "index_put", "_index_put_impl", "masked_fill")
# An index of constants may be these, and what is assigned to it.
_ALWAYS = ("alias",)
_STORED = ("copy", "fill", "expand", "view", "unsqueeze", "slice")
_INDEXES = (GET, SET)
_VALUES = ("item", "is_nonzero", "_local_scalar_dense")
_TRANSPOSED = (
    "numpy_T",
    "t",
    "transpose",
    "permute",
    "mT",
    "mH",
    "matrix_H",
    "adjoint",
)
_ATTRIBUTES = ("T", "mT", "H", "mH")
# Autocast casts what an operator is given before it runs.
_CASTS = ("to", "_to_copy")
_FLOOR = {"div": {"Div", "FloorDiv"}}


class Event(NamedTuple):
    """A traced operation of a function."""

    kind: str
    """``op`` for one that it ran itself, ``call`` for anything else."""
    name: str
    """Of the op, without aten::; or of what was called, empty if that says nothing."""
    line: int | None = None
    """The line of a call, where that was recorded."""


@dataclass
class Follower:
    """Matches events with one function's graph; memoizes its attempts."""

    graph: Graph
    sequences: Sequence[Sequence[Event]]
    _matches: dict[Event, frozenset[int]] = field(default_factory=dict)
    _next: dict[tuple[int, Event], frozenset[int]] = field(default_factory=dict)
    _ending: frozenset[int] | None = None
    _seen: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Find the calls that cannot have been skipped."""
        self._seen = self._seen_once(
            {
                event
                for events in self.sequences
                for event in events
                if event.kind == CALL
            }
        )

    def lines(
        self, events: Sequence[Event], *, begun: bool = False, unfinished: bool = False
    ) -> list[int | None]:
        """Return the line of each event, None if it is ambiguous.

        ``begun`` and ``unfinished`` say that the trace may not have what the function
        did first, and last.
        """
        matched = [event for event in events if self.matching(event)]
        ways = self._ways(matched, begun=begun, unfinished=unfinished)
        positions = iter(ways)
        lines: list[int | None] = []
        for event in events:
            if not self.matching(event):
                lines.append(event.line)
                continue
            at = {self.graph.nodes[node].line for node in next(positions, ())}
            lines.append(event.line or (at.pop() if len(at) == 1 else None))
        return _with_casts(events, lines)

    def _ways(
        self, events: Sequence[Event], *, begun: bool, unfinished: bool
    ) -> list[set[int]]:
        """Return for each event the nodes that it can be, given all the others."""
        if not events:
            return []
        everywhere = range(len(self.graph.nodes))
        now = set(everywhere) if begun else {ENTRY}
        ways: list[set[int]] = []
        for event in events:
            now = {node for before in now for node in self._following(before, event)}
            ways.append(now)
        if begun:
            ways[0] |= self.matching(events[0])
        if not unfinished:
            ways[-1] &= self._at_end()
        for place in range(len(events) - 2, -1, -1):
            after, event = ways[place + 1], events[place + 1]
            ways[place] = {
                node for node in ways[place] if self._following(node, event) & after
            }
        return ways

    def _following(self, node: int, event: Event) -> frozenset[int]:
        """Return the nodes that an event can be after another node."""
        key = (node, event)
        if key not in self._next:
            wanted = self.matching(event)
            nodes = set()
            if self._repeats(node, event):
                nodes.add(node)
            done, waiting = set(), [*self.graph.after[node]]
            while waiting:
                next_node = waiting.pop()
                if next_node in done:
                    continue
                done.add(next_node)
                if next_node in wanted:
                    nodes.add(next_node)
                if next_node not in self._seen:
                    waiting += self.graph.after[next_node]
            self._next[key] = frozenset(nodes)
        return self._next[key]

    def _repeats(self, node: int, event: Event) -> bool:
        """Return whether a node that was an event before can be this one as well."""
        if node not in self.matching(event):
            return False
        if event.kind == CALL:
            # Several calls of a line may be known by the line alone.
            return event.line is not None and not self._named(event)
        kind, name = self.graph.nodes[node].kind, self.graph.nodes[node].name
        return kind == SET or (kind == GET and name in ("", SLICE_OF_VALUES))

    def _at_end(self) -> frozenset[int]:
        """Return the nodes after which the function can end."""
        if self._ending is None:
            before: dict[int, set[int]] = {}
            for node, after in enumerate(self.graph.after):
                for next_node in after:
                    before.setdefault(next_node, set()).add(node)
            done: set[int] = set()
            waiting = [EXIT]
            while waiting:
                for earlier in before.get(waiting.pop(), ()):
                    if earlier not in done:
                        done.add(earlier)
                        if earlier not in self._seen:
                            waiting.append(earlier)
            self._ending = frozenset(done)
        return self._ending

    def matching(self, event: Event) -> frozenset[int]:
        """Return the nodes that an event can be."""
        if event not in self._matches:
            nodes = self._calls(event) if event.kind == CALL else self._ops(event)
            self._matches[event] = frozenset(nodes)
        return self._matches[event]

    def _calls(self, event: Event) -> Iterable[int]:
        if event.line is None:
            return self._named(event) if event.name else ()
        there = [
            (at, node.kind)
            for at, node in enumerate(self.graph.nodes)
            if node.line <= event.line <= node.last
        ]
        # A function may be a property; one with such a name, whatever the line does.
        kinds = {CALL, ATTRIBUTE} if event.name else {CALL}
        likely = [at for at, kind in there if kind in kinds]
        if _is_special(event.name) or not likely:
            return [at for at, _ in there]
        return self._named(event) or likely

    def _named(self, event: Event) -> list[int]:
        """Return the calls of a name, at a line if that is known."""
        line = event.line
        return [
            at
            for at, node in enumerate(self.graph.nodes)
            if node.kind == CALL
            and node.name == event.name
            and (line is None or node.line <= line <= node.last)
        ]

    def _ops(self, event: Event) -> Iterable[int]:
        base = _base(event)
        kinds: set[str] = set()
        if base in _BETWEEN:
            between = _FLOOR.get(base, {_BETWEEN[base]})
            kinds |= {kind + IN_PLACE for kind in between}
            kinds |= between if base == event.name else set()
        if base in _VIEWS:
            kinds |= {GET, SET}
        if base in _WRITES:
            kinds.add(SET)
        if base in _VALUES:
            kinds |= {TRUTH, GET, SET}
        for at, node in enumerate(self.graph.nodes):
            if node.kind in _INDEXES and not _may_be(node, base):
                continue
            if node.kind in kinds or (
                (base in _VALUES and node.kind == CALL and node.name in SCALARS)
                or (
                    base in _TRANSPOSED
                    and node.kind == ATTRIBUTE
                    and node.name in _ATTRIBUTES
                )
            ):
                yield at

    def _seen_once(self, calls: set[Event]) -> frozenset[int]:
        """Return the calls of the graph that the trace has, so that each shows."""
        seen_calls = set()
        for event in calls:
            likely = self.matching(event)
            if len(likely) == 1:
                seen_calls |= {at for at in likely if self.graph.nodes[at].kind == CALL}
        return frozenset(seen_calls)


def _may_be(node: Node, op: str) -> bool:
    """Return whether an index may be an op, by what is written in it.

    What is assigned to it is made to fit, by views, and is written by other ops.
    """
    if not node.name:
        return True
    picks = node.name.split()
    if NO_OP in picks:
        return False
    stored = node.kind == SET and op in _STORED
    return op in picks or op in _ALWAYS or stored


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _base(event: Event) -> str:
    """Return an op's name without its in-place suffix."""
    return event.name if event.name.endswith("__") else event.name.rstrip("_")


def _with_casts(events: Sequence[Event], lines: list[int | None]) -> list[int | None]:
    """Give autocast's casts the line of the operator that follows."""
    for place in range(len(events) - 2, -1, -1):
        one, following = events[place], events[place + 1]
        if CALL not in (one.kind, following.kind) and _base(one) in _CASTS:
            lines[place] = lines[place + 1]
    return lines

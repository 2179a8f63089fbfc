"""Index of the program's ops, by line, name and kind."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, TypeAlias

from traceq.graph.inductor.op_kinds import LOOKUP, PASSING, UNFUSED, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceq.model.compiled_graphs import (
        Frame,
        Node,
    )

Line: TypeAlias = "tuple[str, int]"
# Heuristic limit: programs need less than a tenth of it.
_MOST_LOOKS = 5_000_000


class ProgramOps:
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
                self.of_line.setdefault(line_of(node.frames[-1]), []).append(at)
            for name in node.inputs:
                self._uses.setdefault(name, []).append(at)
        self._parameters = parameters
        self._place: dict[str, list[int]] = {}
        for at, node in enumerate(nodes):
            self._place.setdefault(node.name, []).append(at)

    def named(self, name: str) -> int | None:
        """Return the op of this name; None if there are several, or none."""
        places = self._place.get(name, [])
        return places[0] if len(places) == 1 else None

    def users(self, parameter: int, line: Line) -> set[int]:
        """Return the ops of a line that read a parameter, or a view or cast of it."""
        if not 0 < parameter <= len(self._parameters):
            return set()
        if (parameter, line) not in self._users:
            self._users[parameter, line] = self._find_users(parameter, line)
        return self._users[parameter, line]

    def _find_users(self, parameter: int, line: Line) -> set[int]:
        users: set[int] = set()
        names = [self._parameters[parameter - 1]]
        while names:
            for at in self._uses.get(names.pop(), ()):
                node = self.nodes[at]
                if at not in users and node.frames and line_of(node.frames[-1]) == line:
                    users.add(at)
                    if kind_of(node.target) in PASSING:
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
    if kind in (*UNFUSED, "norm", LOOKUP):
        return program == kind
    return kind in ("view", "cast", "sum") or program not in (*UNFUSED, "view")


def line_of(frame: Frame) -> Line:
    """Return file and line of a frame."""
    return frame.file, frame.line

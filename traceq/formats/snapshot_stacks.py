"""Call stacks of a memory snapshot, each stored once."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.formats.snapshot_columns import (
    as_table,
    number_column,
    text_column,
    with_ids,
)
from traceq.model.snapshot import (
    SNAPSHOT_TABLES,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


_MOST_ALIKE = 16
_LINES = 1 << 31


class StackTable:
    """Call stacks and their frames, each kept once."""

    def __init__(self) -> None:
        self._frames: dict[tuple[Any, Any, Any], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        # A snapshot names the same frame object again and again. Looking objects up
        # by id is right only as long as they live, so they are kept alive.
        self._alive: list[Any] = []
        self._frame_by_id: dict[int, int] = {}
        self._alike: dict[tuple[int, int, int], list[tuple[list[Any], int]]] = {}
        self._flat = True
        self._named: dict[bytes, int | None] = {}

    def keep(self, name: bytes, stack: list[Any]) -> None:
        """Remember a stack by its name, which ``numbers`` may be given instead."""
        self._named[name] = self._number(stack) if stack else None

    def numbers(self, stacks: Sequence[Any]) -> list[int | None]:
        """Return each stack's number; none where there is no stack."""
        with suppress(LookupError, TypeError):
            return [*map(self._named.__getitem__, stacks)]
        numbers: list[int | None] = []
        before, number = None, None
        for stack in stacks:
            # The two events of a free have the same stack.
            if stack is not before:
                before = stack
                if isinstance(stack, bytes):
                    number = self._named[stack]
                else:
                    number = self._number(stack) if stack else None
            numbers.append(number)
        return numbers

    def _number(self, stack: list[Any]) -> int:
        """Return a stack's number.

        Comparing with one that looks the same is much faster than looking up.
        """
        looks = (len(stack), id(stack[len(stack) // 2]), id(stack[-1]))
        for other, number in self._alike.get(looks, ()):
            if other == stack:
                return number
        return self._new(stack, looks)

    def _new(self, stack: list[Any], looks: tuple[int, int, int]) -> int:
        key = tuple(map(self._frame, stack))
        number = self._stacks.setdefault(key, len(self._stacks))
        # Lists of lists of lists, or many of one look, could take forever to compare.
        alike = self._alike.setdefault(looks, [])
        if self._flat and len(alike) < _MOST_ALIKE:
            alike.append((stack, number))
        return number

    def _frame(self, frame: dict[str, Any]) -> int:
        number = self._frame_by_id.get(id(frame))
        if number is None:
            key = (frame["filename"], frame["line"], frame["name"])
            number = self._frames.setdefault(key, len(self._frames))
            self._frame_by_id[id(frame)] = number
            self._alive.append(frame)
            # Lists of lists of lists can take forever to compare.
            self._flat &= all(isinstance(value, str | int) for value in frame.values())
        return number

    @property
    def count(self) -> int:
        """Number of stacks."""
        return len(self._stacks)

    def sort(self, order: list[int]) -> None:
        """Put the stacks in this order, and their frames as the stacks name them."""
        stacks, frames = [*self._stacks], [*self._frames]
        stacks = [stacks[number] for number in order]
        named = chain(chain.from_iterable(stacks), range(len(frames)))
        moved = {old: new for new, old in enumerate(dict.fromkeys(named))}
        self._frames = {frames[old]: new for old, new in moved.items()}
        self._stacks = {
            tuple(map(moved.__getitem__, stack)): new
            for new, stack in enumerate(stacks)
        }

    def stacks(self) -> pl.DataFrame:
        """Return the stacks table."""
        dtypes = SNAPSHOT_TABLES["stacks"].dtypes
        frames = pl.Series(list(map(list, self._stacks)), dtype=dtypes["frames"])
        return with_ids("stacks", pl.DataFrame({"frames": frames}))

    def frames(self) -> pl.DataFrame:
        """Return the frames table."""
        columns = {
            # A file's name may hold bytes that are no text.
            "file": text_column([_clean(file) for file, _, _ in self._frames]),
            "line": number_column([_line(line) for _, line, _ in self._frames]),
            "function": text_column([_clean(name) for _, _, name in self._frames]),
        }
        return with_ids("frames", as_table("frames", columns))


def _line(number: int) -> int | None:
    """Return the number of a line; none for 2^64 - 1, which is -1 without its sign."""
    return number if number < _LINES else None


def _clean(text: str) -> str:
    return text.encode(errors="replace").decode()

"""Events of an allocator history as columns, read by compiled code where it was built.

The compiled reader (native/snapshot_events.c) takes the events that are pickled as
Python pickles what torch records, nearly all of a snapshot. What it does not take is
read as without it, by pickled_events.py: that is the reference, and the tables are the
same.

A column of numbers is complete at once. The unpickler knows the other values: a number
from 0 on in a column is an index into its memo, and a number below 0 is a value that
commands build, a text or a stack. The unpickler is asked once for each of them.

Later events may get values that earlier ones put in the memo. So the unpickler receives
commands that put the same values: for each event ``N`` in place of its dict, its texts,
and the name of its stack in place of the list. A name is five bytes, and a stack is
passed on with it when it occurs for the first time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from itertools import islice
from typing import Any

import polars as pl

from traceq.native import _native

_MISSING = -(1 << 63)
_LAST_PLACE = (1 << 32) - 1
_INT = 8
# First bytes of a stack: its frames, where other values begin with their command.
_FRAMES = (b"(", b"j", b"h")
# Columns have a price of their own.
_FEWEST = 64
# Stacks that are all different would take more than what they save.
_MOST_KEPT = 64 << 20


@dataclass(frozen=True)
class Column:
    """A value of each event."""

    numbers: pl.Series
    among: list[Any] | None
    """The values that are meant, if the numbers are places in this list."""


@dataclass(frozen=True)
class Batch:
    """Events as columns, up to the values that the unpickler is asked for."""

    columns: list[pl.Series]
    counts: list[int | None]
    """Number of values after the keys that each column refers to; none if it has its
    own numbers."""

    @property
    def height(self) -> int:
        """Number of events."""
        return len(self.columns[0])

    def by_key(self, values: list[Any]) -> dict[Any, Column]:
        """Return the columns by their keys."""
        keys = values[: len(self.columns)]
        others = iter(values[len(self.columns) :])
        columns = {
            key: Column(column, None if count is None else [*islice(others, count)])
            for key, column, count in zip(keys, self.columns, self.counts, strict=True)
        }
        if len(columns) < len(keys):
            raise ValueError(keys)
        return columns

    def last_keys(self, values: list[Any]) -> list[Any]:
        """Return the keys of the last event."""
        columns = zip(values, self.columns, strict=False)
        return [key for key, column in columns if column[-1] is not None]


class CompiledEvents:
    """Reads events as columns."""

    def __init__(self, *, implicit: bool) -> None:
        self._implicit = implicit
        self._made: dict[bytes, int] = {}
        """The numbers of what makes values."""
        self._makers: list[bytes] = []
        """The maker of the value of each number; of a stack its name."""
        self._size = 0

    def read(self, data: bytes, at: int, size: int) -> tuple[int, bytes, Batch] | None:
        """Return the end of the events that begin at a place, and their columns.

        Between them are commands to be run instead of the events. They leave a list,
        of which all but the first are the values that the columns need.
        """
        if self._size > _MOST_KEPT:
            return None
        places = min(size, _LAST_PLACE)
        end, puts, batch = _native.events(
            data, at, len(data), self._made, places, self._implicit
        )
        if not batch or len(batch[0][2]) < _FEWEST * _INT:
            return None
        named = b"".join(self._name_new())
        requested = [key for key, _, _ in batch]
        columns, counts = [], []
        for _, coded, numbers in batch:
            column = _column(numbers)
            count = None
            if coded:
                codes = column.drop_nulls().unique().sort()
                requested.append(self._commands(codes.to_list()))
                count = len(codes)
                column = _places(column, codes)
            columns.append(column)
            counts.append(count)
        commands = b"".join((named, b"(", puts, b"1](\x88", *requested, b"e"))
        return end, commands, Batch(columns, counts)

    def _name_new(self) -> list[bytes]:
        """Return commands that hand on new stacks with their names."""
        commands = []
        for made in islice(self._made, len(self._makers), None):
            maker = made
            if made.startswith(_FRAMES):
                maker = b"C\x05" + len(self._makers).to_bytes(5, "little")
                commands.append(maker + b"]" + made + b"\x86Q0")
            self._makers.append(maker)
            self._size += len(made)
        return commands

    def _commands(self, codes: list[int]) -> bytes:
        """Return the commands that make, or get, the values of these sorted numbers."""
        gotten = bisect_left(codes, 0)
        places = array("I", codes[gotten:]).tobytes()
        gets = bytearray(b"j" * 5 * (len(codes) - gotten))
        for at in range(4):
            gets[at + 1 :: 5] = places[at::4]
        return b"".join((*(self._makers[-1 - code] for code in codes[:gotten]), gets))


def _column(numbers: bytes) -> pl.Series:
    array_of = pl.Array(pl.Int64, len(numbers) // _INT)
    column = pl.Series([numbers], dtype=pl.Binary).bin.reinterpret(dtype=array_of)
    column = column.explode()
    return column.replace(_MISSING, None) if column.min() == _MISSING else column


def _places(column: pl.Series, ordered: pl.Series) -> pl.Series:
    """Return the positions of a column's values in a sorted series of them."""
    places = ordered.search_sorted(column)
    return places.set(column.is_null(), None) if column.has_nulls() else places

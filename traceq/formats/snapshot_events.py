"""Allocator events of a memory snapshot, most of them read as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.common.units import NS_PER_US
from traceq.formats.pickled_columns import Column
from traceq.formats.snapshot_columns import (
    DictRows,
    as_table,
    checked_types,
    enum_column,
    number_column,
    pool_names,
    text_column,
    with_ids,
)
from traceq.model.schema import NUMBER
from traceq.model.snapshot import (
    ACTIONS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from traceq.formats.pickled_columns import Batch
    from traceq.formats.snapshot_stacks import StackTable

_CHUNK = 100_000
_ROWS = 20_000
# More events than can lie between two that are taken.
_GAP = 1 << 32
_MOST_SHAPES = 64
# An annotation says something of an allocation, which has its size.
_SIZELESS = ("annotate", "other")


@dataclass(frozen=True)
class EventRun:
    """The replacement for events that were taken out of their list."""

    begin: int
    end: int
    last: Collection[str]
    """The keys of the last."""


class EventReader:
    """The events of all devices, of which most are taken while the file is read."""

    def __init__(self, stacks: StackTable) -> None:
        self.stacks = stacks
        self.keep = stacks.keep
        self._rows: list[tuple[Any, ...]] = []
        self._taken = 0
        self._parts: list[dict[str, pl.Series]] = []
        self._add(DictRows([]), [])

    def take(self, events: list[tuple[Any, ...]]) -> EventRun:
        """Turn events into columns: tuples of key, value, key, value."""
        begin = self._taken
        self._taken += len(events)
        self._rows += events
        if len(self._rows) > _ROWS:
            self._make_columns()
        return EventRun(begin, self._taken, events[-1][::2])

    def take_columns(self, events: Batch, values: list[Any]) -> EventRun:
        """Take events that are columns already."""
        self._make_columns()
        begin = self._taken
        self._taken += events.height
        columns = events.by_key(values)
        if columns["action"].numbers.has_nulls():
            raise LookupError
        place = pl.int_range(begin + 1, self._taken + 1, dtype=pl.Int64, eager=True)
        self._add(_Compiled(columns, events.height), place * _GAP - 1)
        return EventRun(begin, self._taken, events.last_keys(values))

    def table(self, traces: list[list[Any]]) -> pl.DataFrame:
        """Return the events of all lists; empties them, which are large, on its way."""
        self._make_columns()
        counts = []
        taken = left = 0
        for trace in traces:
            before = taken + left
            alone: list[Any] = []
            places: list[int] = []
            for event in trace:
                if not isinstance(event, EventRun):
                    alone.append(event)
                    places.append(taken * _GAP + left)
                    left += 1
                elif event.begin == taken:
                    taken = event.end
                else:
                    raise ValueError(event)
            trace[:] = [None] * len(trace)
            counts.append(taken + left - before)
            for start in range(0, len(alone), _CHUNK):
                chunk = alone[start : start + _CHUNK]
                alone[start : start + _CHUNK] = [None] * len(chunk)
                self._add(DictRows(chunk), places[start : start + _CHUNK])
        devices = [_device(device, count) for device, count in enumerate(counts)]
        columns = {"device": pl.concat([_device(0, 0), *devices])}
        return with_ids("events", as_table("events", columns | self._in_order()))

    def _make_columns(self) -> None:
        rows, self._rows = self._rows, []
        begin = self._taken - len(rows)
        for places, columns in _by_keys(rows):
            place = pl.Series(places, dtype=pl.Int64) + begin + 1
            self._add(DictRows(places, columns), place * _GAP - 1)

    def _add(self, events: DictRows | _Compiled, places: pl.Series | list[int]) -> None:
        """Add columns of events; ``place`` orders them."""
        part = as_table("events", _event_columns(events, self.stacks)).to_dict()
        self._parts.append(part | {"place": pl.Series(places, dtype=pl.Int64)})

    def _in_order(self) -> dict[str, pl.Series]:
        """Return all columns; one at a time, since all of them twice are large."""
        place = pl.concat([part.pop("place") for part in self._parts])
        order = None if place.is_sorted() else place.arg_sort()
        columns = {}
        for name in [*self._parts[0]]:
            column = pl.concat([part.pop(name) for part in self._parts], rechunk=True)
            columns[name] = column if order is None else column.gather(order)
        return columns


def _device(device: int, count: int) -> pl.Series:
    return pl.repeat(device, count, dtype=NUMBER, eager=True).alias("device")


def _by_keys(
    rows: list[tuple[Any, ...]],
) -> Iterator[tuple[Sequence[int], dict[str, Sequence[Any]]]]:
    """Yield the columns of rows that have the same keys, and which rows these are."""
    if not rows:
        return
    if len({*map(len, rows)}) == 1:
        columns = [*zip(*rows, strict=True)]
        keys = checked_types(rows[0][::2], str)
        if all(
            column.count(key) == len(rows)
            for key, column in zip(keys, columns[::2], strict=True)
        ):
            yield range(len(rows)), dict(zip(keys, columns[1::2], strict=True))
            return
    places: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row[::2], []).append(place)
    if len(places) > _MOST_SHAPES:
        raise ValueError(len(places))
    for keys, alike in places.items():
        columns = [*zip(*(rows[place][1::2] for place in alike), strict=True)]
        yield alike, dict(zip(keys, columns, strict=True))


def _event_columns(
    events: DictRows | _Compiled, stacks: StackTable
) -> dict[str, pl.Series]:
    def stack_numbers(values: Sequence[Any]) -> pl.Series:
        return number_column(stacks.numbers(values))

    action = _made(_actions, events["action"])
    size = _made(number_column, events.get("size"))
    if (size.is_null() & ~action.is_in(_SIZELESS)).any():
        raise LookupError
    return {
        "action": action,
        "address": _made(number_column, events.get("addr")),
        "size": size.fill_null(0),
        "stream": _made(number_column, events.get("stream")),
        "ts": _made(number_column, events.get("time_us")) * NS_PER_US,
        "stack": _made(stack_numbers, events.get("frames")),
        "device_free": _made(number_column, events.get("device_free")),
        "pool": _made(_pool_texts, events.get("pool_id")),
        "compile_context": _made(text_column, events.get("compile_context")),
        "user_metadata": _made(text_column, events.get("user_metadata")),
    }


def _made(
    make: Callable[[Sequence[Any]], pl.Series], values: Sequence[Any] | Column
) -> pl.Series:
    """Return a column of the table; made of each value once, where these are known."""
    if not isinstance(values, Column):
        return make(values)
    if values.among is not None:
        return make(values.among).gather(values.numbers)
    if make is not number_column:
        raise TypeError
    return values.numbers


def _actions(values: Sequence[Any]) -> pl.Series:
    return enum_column(ACTIONS, values)


def _pool_texts(values: Sequence[Any]) -> pl.Series:
    return text_column(pool_names(values))


@dataclass(frozen=True)
class _Compiled:
    """Columns of events; a key that they lack is none."""

    columns: dict[str, Column]
    height: int

    def get(self, key: str) -> Column | list[None]:
        """Return one value of each event."""
        return self.columns.get(key) or [None] * self.height

    def __getitem__(self, key: str) -> Column:
        """Return one value of each event, which every snapshot has."""
        return self.columns[key]

"""Compiled event scanner, used where it was built: three times faster.

The compiled scanner (native/scan.c) takes the events that are written as PyTorch writes
them, nearly all of a file. What it does not take is decoded as without it, by
events.py and tables.py: they are the reference, and the tables are the same. Without
a compiler traceq installs and works as well; TRACEQ_PURE=1 leaves the scanner out.
"""

from __future__ import annotations

import secrets
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct

from traceq.common.expressions import constant, rows_where
from traceq.formats import event_heads, tables
from traceq.formats.events import EVENTS, Tally, decode_pieces, whole_events
from traceq.model import schema
from traceq.native import _native
from traceq.native.columns import to_series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.formats.events import Layout, Piece, Row

_TABLES = ("ops", "kernels", "runtime", "annotations", "frames", "memory")
_NUMBERS = {table: number for number, table in enumerate(_TABLES)}
# Treatments of an argument by the scanner, and the values where there is none.
_IGNORED, _NUMBER, _TEXT, _REFUSED = range(4)
_NO_NUMBER = -(1 << 63)
_NO_TABLE = -1
_INPUTS = "inputs"
# Size of the text left by the scanner that is decoded together.
_MOST_LEFT = 4 << 20
# Keys that stand behind the times, if an event is as it should be.
_DUR, _ARGS = b'"dur":', b'"args":'


class _Columns(Struct, frozen=True, dict=True):
    """The columns that the scanner fills for a table, in its order."""

    table: str

    @cached_property
    def numbers(self) -> list[str]:
        return ["ts", "dur", *(name for name in self._args if self._is_number(name))]

    @property
    def args(self) -> list[str]:
        """The columns of arguments that are numbers."""
        return self.numbers[2:]

    @cached_property
    def texts(self) -> list[str]:
        named = [name for name in self._args if not self._is_number(name)]
        # The four lists of inputs are one text, the last.
        return ["head", *named, *([_INPUTS] if self.table == "ops" else [])]

    @cached_property
    def refused(self) -> dict[str, schema.Column]:
        """Columns of collectives: kernels that have them are left to the reference."""
        columns = schema.TABLES[self.table].columns
        return {
            name: columns[name]
            for name, key in tables.keys_of(self.table).items()
            if name in columns
            and (columns[name].of_collectives or key == tables.COLLECTIVE)
        }

    @cached_property
    def _args(self) -> dict[str, str]:
        keys = tables.keys_of(self.table)
        return {name: key for name, key in keys.items() if name not in self.refused}

    def _is_number(self, name: str) -> bool:
        column = schema.TABLES[self.table].columns.get(name)
        return column is not None and column.dtype == pl.Int64

    @property
    def scanner_table(
        self,
    ) -> tuple[int, int, list[tuple[bytes, int, int, bool, bool]]]:
        """The table for the scanner: its numbers of columns, and the keys of events."""
        places: dict[str, tuple[int, int]] = {}
        for name, key in self._args.items():
            if self._is_number(name):
                places[key] = _NUMBER, self.numbers.index(name)
            else:
                places[key] = _TEXT, self.texts.index(name)
        refused = [tables.keys_of(self.table)[name] for name in self.refused]
        # With a phase among its arguments it is more than one event.
        places |= dict.fromkeys([*refused, "ph"], (_REFUSED, 0))
        spans = tables.INPUTS + tables.IDS if self.table == "ops" else ()
        keys = [
            (
                key.encode(),
                *places.get(key, (_IGNORED, 0)),
                key in spans and key in tables.INPUTS,
                key in spans and key in tables.IDS,
            )
            for key in {**places, **dict.fromkeys(spans)}
        ]
        return len(self.numbers), len(self.texts), keys


@lru_cache
def columns() -> tuple[_Columns, ...]:
    """Return the columns that the scanner fills, table by table."""
    return tuple(_Columns(table) for table in _TABLES)


def classify(text: bytes) -> int:
    """Return the number of the table that events with this head go to."""
    if _DUR in text or _ARGS in text:
        return _NO_TABLE
    table = tables.table_of(event_heads.parse_head(text.decode(errors="replace")))
    return _NUMBERS.get(table, _NO_TABLE)


class Scan:
    """The events of one file on their way through the compiled scanner."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._scanner = _native.Scanner(
            layout.separator,
            classify,
            [table.scanner_table for table in columns()],
            # Nobody can know which texts would collide.
            secrets.randbits(64),
        )
        self.categories: set[str] = set()
        self._events = 0
        self._left: list[tuple[int, bytes]] = []
        self._nothing = pl.DataFrame(schema=EVENTS)

    def decode(
        self, chunk: Sequence[Piece], *, whole: bool
    ) -> tuple[pl.DataFrame, Tally]:
        """Scan a chunk; return what else was decoded, and what was counted.

        What the scanner leaves of many chunks is decoded together: each time costs.
        """
        tally = Tally()
        pieces, rows = whole_events(chunk, self._layout, tally, whole=whole)
        for part in pieces:
            events, flows, left = self.feed(*part)
            self._left += [(self._events + at, text) for at, text in left]
            self._events += events
            tally.events += events
            tally.flows += flows
        if not rows and sum(len(text) for _, text in self._left) < _MOST_LEFT:
            return self._nothing, tally
        return self._decode_left(tally, rows), tally

    def feed(
        self, block: bytes, start: int, end: int
    ) -> tuple[int, int, list[tuple[int, bytes]]]:
        """Scan a part of a block; return events, flows, and what was left, by index."""
        return self._scanner.feed(block, start, end)

    def finish(self) -> tuple[pl.DataFrame, Tally]:
        """Decode what the scanner left and is not decoded yet."""
        tally = Tally()
        return self._decode_left(tally, []), tally

    def _decode_left(self, tally: Tally, rows: Sequence[Row]) -> pl.DataFrame:
        places, pieces = [at for at, _ in self._left], [text for _, text in self._left]
        self._left.clear()
        return decode_pieces(places, pieces, self._layout, tally, rows)

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the raw tables that have rows of what was scanned.

        Sets ``categories``.
        """
        heads = [event_heads.parse_head(text) for text in self._scanner.heads()]
        taken = {number: self._take(number) for number, _ in enumerate(_TABLES)}
        return {
            _TABLES[number]: self._table(number, taken.pop(number), heads)
            for number in [*taken]
            if taken[number].height
        }

    def _take(self, number: int) -> pl.DataFrame:
        """Return the rows of a table as the scanner has them, which has none then."""
        names = columns()[number].numbers + columns()[number].texts
        return pl.DataFrame([*map(to_series, self._scanner.take(number))], names)

    def _table(
        self, number: int, rows: pl.DataFrame, heads: list[event_heads.Head]
    ) -> pl.DataFrame:
        asked = columns()[number]
        is_used = constant(value=False, count=len(heads) + 1, dtype=pl.Boolean)
        used = rows_where(is_used.scatter(rows["head"], values=True))
        own = [heads[at - 1] for at in used.to_list()]
        self.categories |= {head.category for head in own}
        of_head = tables.from_heads(asked.table, own)
        places = constant(0, len(heads) + 1, pl.UInt32)
        place = places.scatter(used, pl.int_range(len(used), eager=True))[rows["head"]]
        made = [rows["ts"], rows["dur"]]
        made += of_head[place].iter_columns()
        made += [
            self._column(number, at, rows[name])
            for at, name in enumerate(asked.texts[1:], start=1)
        ]
        args = [pl.when(pl.col(name) != _NO_NUMBER).then(name) for name in asked.args]
        made += rows.select(args).iter_columns()
        made += [
            constant(None, rows.height, column.dtype).alias(name)
            for name, column in asked.refused.items()
        ]
        return pl.DataFrame(made)

    def _column(self, number: int, column: int, rows: pl.Series) -> pl.Series:
        """Return a column of texts: the value that each row has by its number."""
        asked, texts = columns()[number], self._scanner.texts(number, column)
        name = asked.texts[column]
        dtype = tables.dtypes(asked.table)[name]
        if not texts:
            return constant(None, len(rows), dtype).alias(name)
        if name == _INPUTS:
            values = pl.Series(texts, dtype=dtype)
        else:
            values = tables.read_values(asked.table, name, texts)
        # Texts count from 1: what has none gets the null in front.
        return pl.concat([constant(None, 1, dtype), values])[rows].alias(name)

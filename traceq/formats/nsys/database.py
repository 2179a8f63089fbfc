"""Tables of an SQLite export, read column by column.

The file is untrusted: it is opened read-only, nothing in it is executed (only real
tables are read, never views), and corrupt content ends in one sentence. SQLite itself
packs the values of a column into one JSON text per chunk of rows, which is several
times faster than a Python object for each row.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import orjson
import polars as pl

from traceq.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from traceq.formats.nsys.export import Filter

# Rows that are packed together: their text stays in the processor's cache.
_ROWS = 16_384
_FIRST_ROW = -(1 << 63)
# Virtual instructions of SQLite between two looks at the clock.
_INSTRUCTIONS = 1_000_000
_LONGEST_TEXT = 1 << 28
_MOST_COLUMNS = 2_000
_LONGEST_REASON = 100
_SECONDS_PER_MB = 1.0
_LEAST_SECONDS = 60.0
_INTEGER = "INTEGER"
_TEXT = "TEXT"
# A damaged file may have names that are no UTF-8.
_ERRORS = (sqlite3.Error, orjson.JSONDecodeError, OverflowError, UnicodeError)
_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    getattr(sqlite3, "SQLITE_RECURSIVE", 33),
}


class Database:
    """An SQLite export: its tables, and the columns of each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: list[str] = []
        self._connection = self._open()
        try:
            self.tables = self._tables()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def read(
        self,
        table: str,
        columns: Mapping[str, pl.DataType],
        only: Filter | None = None,
        reduce: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
        present: str = "",
    ) -> pl.DataFrame:
        """Return columns of a table; a column that it lacks is null.

        Only integers, texts and bytes are read, of the rows of ``only`` that have a
        value in the column ``present``. ``reduce`` makes each chunk smaller before it
        is stored.
        """
        there = {name for name in columns if name in self.tables.get(table, ())}
        empty = pl.DataFrame(schema=dict(columns))
        parts = [empty if reduce is None else reduce(empty)]
        if there:
            chunks = self._chunks(table, columns, there, only, present)
            parts.extend(chunk if reduce is None else reduce(chunk) for chunk in chunks)
        return pl.concat(parts)

    def _open(self) -> sqlite3.Connection:
        # Immutable: no lock, no journal and no other file beside it is looked for.
        # The path may be shown by another name.
        place = quote(str(Path(os.fspath(self.path)).absolute()))
        uri = f"file:{place}?mode=ro&immutable=1"
        try:
            connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._unreadable(error) from None
        connection.text_factory = bytes
        if sys.version_info >= (3, 11):
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
        allowed = self.path.stat().st_size / 1e6 * _SECONDS_PER_MB
        self._deadline = time.monotonic() + max(_LEAST_SECONDS, allowed)
        connection.set_progress_handler(self._too_late, _INSTRUCTIONS)
        with self._trouble():
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            connection.execute("PRAGMA mmap_size = 0")
            connection.execute("PRAGMA cache_size = -8192")
        connection.set_authorizer(_only_reads)
        return connection

    def _too_late(self) -> int:
        return int(time.monotonic() > self._deadline)

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except _ERRORS as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> InputError:
        what = "takes too long to read" if self._late(error) else "cannot be read"
        return InputError(
            f"{self.path} {what} as an SQLite database ({_why(error)}): export it"
            " again with"
            " nsys export --type sqlite"
        )

    def _late(self, error: Exception) -> bool:
        return "interrupted" in str(error)

    def _tables(self) -> dict[str, dict[str, None]]:
        """Return the columns of each real table, by name."""
        with self._trouble():
            made = self._connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
                " AND sql LIKE 'CREATE TABLE%'"
            ).fetchall()
        names = [name.decode(errors="replace") for (name,) in made if _is_text(name)]
        return {name: self._columns(name) for name in names if name.isidentifier()}

    def _columns(self, table: str) -> dict[str, None]:
        try:
            cursor = self._connection.execute(f'SELECT * FROM "{table}" LIMIT 0')  # noqa: S608 - an identifier
        except _ERRORS as error:
            self._left_out(table, error)
            return {}
        names = [description[0] for description in cursor.description]
        return dict.fromkeys(names[:_MOST_COLUMNS])

    def _left_out(self, table: str, error: Exception) -> None:
        if self._late(error):
            raise self._unreadable(error)
        self.damage.append(f"{table} could not be read in full ({_why(error)})")

    def _chunks(
        self,
        table: str,
        columns: Mapping[str, pl.DataType],
        there: set[str],
        only: Filter | None,
        present: str,
    ) -> Iterator[pl.DataFrame]:
        where = "rowid >= ?"
        values: tuple[int, ...] = ()
        if present:
            if present not in self.tables[table]:
                return
            where += f' AND "{present}" IS NOT NULL'
        if only is not None:
            if only.column not in self.tables[table]:
                return
            where += f' AND ("{only.column}" >> {only.shift}) = ?'
            values = (only.value,)
        read = [name for name in columns if name in there]
        names = ", ".join(f'"{name}"' for name in read)
        packed = ", ".join(
            f"json_group_array({_cast(name, columns[name])})" for name in read
        )
        query = (
            f"SELECT max(row_number), {packed} FROM (SELECT rowid AS row_number,"  # noqa: S608 - identifiers
            f' {names} FROM "{table}" WHERE {where} LIMIT {_ROWS})'
        )
        at: int | None = _FIRST_ROW
        while at is not None:
            try:
                row = self._connection.execute(query, (at, *values)).fetchone()
                frame = _unpacked(row[1:], columns, there)
            except (*_ERRORS, ValueError) as error:
                self._left_out(table, error)
                return
            if frame.height:
                yield frame
            last = row[0]
            more = frame.height == _ROWS and isinstance(last, int)
            # A damaged table may lead back to rows that were read.
            at = last + 1 if more and at <= last < -_FIRST_ROW - 1 else None


def _why(error: Exception) -> str:
    """Return SQLite's reason in a few words: it may quote the file."""
    words = " ".join(str(error).split())
    return words if len(words) <= _LONGEST_REASON else f"{words[:_LONGEST_REASON]}…"


def _is_text(value: object) -> bool:
    return isinstance(value, bytes)


def _cast(name: str, dtype: pl.DataType) -> str:
    if dtype == pl.Binary:
        # JSON has no bytes.
        return f'hex("{name}")'
    kind = _TEXT if dtype == pl.String else _INTEGER
    return f'CAST("{name}" AS {kind})'


def _unpacked(
    row: tuple[bytes, ...], columns: Mapping[str, pl.DataType], there: set[str]
) -> pl.DataFrame:
    """Return a chunk of rows, from the JSON text of each column."""
    texts = iter(row)
    series = {
        name: _series(name, _values(next(texts)), dtype)
        for name, dtype in columns.items()
        if name in there
    }
    height = len(next(iter(series.values())))
    return pl.DataFrame(
        [
            series[name]
            if name in series
            else pl.repeat(None, height, dtype=dtype, eager=True).alias(name)
            for name, dtype in columns.items()
        ]
    )


def _series(name: str, values: list[object], dtype: pl.DataType) -> pl.Series:
    if dtype == pl.Binary:
        digits = pl.Series(name, values, pl.String, strict=False)
        return digits.str.decode("hex", strict=False)
    return pl.Series(name, values, dtype, strict=False)


def _values(text: bytes) -> list[object]:
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        # Texts of a damaged file may be no UTF-8.
        values = orjson.loads(text.decode(errors="replace"))
    return list(values)


def _only_reads(action: int, *_details: object) -> int:
    """Allow what reads tables, and nothing else."""
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY

"""Columns of a memory snapshot's tables, from lists of dicts."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.model.schema import ID, NUMBER, TEXT
from traceq.model.snapshot import (
    SNAPSHOT_TABLES,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class DictRows:
    """Many dicts by their keys; a key that a dict lacks is none there."""

    def __init__(
        self, rows: Sequence[Any], columns: dict[str, Sequence[Any]] | None = None
    ) -> None:
        self._rows = rows
        self._columns = columns or _alike(rows)

    def get(self, key: str) -> Sequence[Any]:
        """Return one value of each row."""
        if self._columns is None:
            return [row.get(key) for row in self._rows]
        if key in self._columns:
            return self._columns[key]
        return [None] * len(self._rows)

    def __getitem__(self, key: str) -> Sequence[Any]:
        """Return one value of each row, which every snapshot has."""
        if self._columns is None:
            return [row[key] for row in self._rows]
        return self._columns[key] if self._rows else []


def _alike(rows: Sequence[dict[str, Any]]) -> dict[str, Sequence[Any]] | None:
    """Return the columns of dicts that all have the same keys, at once."""
    if not rows:
        return {}
    keys = tuple(rows[0])
    if set(map(len, rows)) != {len(keys)} or len(keys) == 1:
        return None
    try:
        return dict(
            zip(keys, zip(*map(itemgetter(*keys), rows), strict=True), strict=True)
        )
    except KeyError:
        return None


def checked_types(values: Sequence[Any], *kinds: type) -> Sequence[Any]:
    """Return the values, all of these types or none.

    Polars walks into lists and dicts to find out what they hold, and one that holds
    itself has no end.
    """
    if not {*map(type, values)} <= {*kinds, type(None)}:
        raise TypeError
    return values


def _all_none(values: Sequence[Any]) -> bool:
    """Return whether no value is there; compares none of them with each other."""
    return all(value is None for value in values[:1]) and (
        values.count(None) == len(values)
    )


def number_column(values: Sequence[Any]) -> pl.Series:
    """Return a column of integers; floats and bools are cast."""
    if values and _all_none(values):
        return pl.Series([None], dtype=NUMBER).new_from_index(0, len(values))
    return pl.Series(checked_types(values, int, bool, float), dtype=NUMBER, strict=True)


def text_column(values: Sequence[Any]) -> pl.Series:
    """Return texts; each distinct one is copied once, however often it is named."""
    values = checked_types(values, str)
    if values and values.count(values[0]) == len(values):
        one = pl.Series(values[:1], dtype=pl.String(), strict=True).cast(TEXT)
        return one.new_from_index(0, len(values))
    distinct = list(dict.fromkeys(values))
    texts = pl.Series(distinct, dtype=pl.String(), strict=True).cast(TEXT)
    places = {text: at for at, text in enumerate(distinct)}
    return texts.gather(pl.Series(map(places.__getitem__, values), dtype=ID))


def enum_column(names: Sequence[str], values: Sequence[Any]) -> pl.Series:
    """Return texts of a known few; others, of a torch to come, as ``other``."""
    positions = {name: at for at, name in enumerate(names)}
    at = pl.Series(map(positions.get, values), dtype=ID).fill_null(positions["other"])
    return pl.Series(names, dtype=pl.Enum(names)).gather(at)


def pool_names(pools: Sequence[Any]) -> list[str | None]:
    """Return the two numbers of each pool as one text."""
    if _all_none(pools):
        return [None] * len(pools)
    # Pickles of other programs than torch may hold lists instead of tuples.
    keys = [tuple(pool) if isinstance(pool, list) else pool for pool in pools]
    texts: dict[Any, str | None] = dict.fromkeys(keys)
    for pool in texts:
        if pool is not None:
            first, second = pool
            texts[pool] = f"{first:d}.{second:d}"
    return list(map(texts.__getitem__, keys))


def as_table(table: str, columns: Mapping[str, pl.Series]) -> pl.DataFrame:
    """Return columns of a table in its order and types."""
    dtypes = SNAPSHOT_TABLES[table].dtypes
    dtypes.pop("id", None)
    frame = pl.DataFrame(dict(columns))
    present = {name: dtype for name, dtype in dtypes.items() if name in columns}
    return frame.select(list(present)).cast(pl.Schema(present))


def with_ids(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return a table with its rows numbered from 0."""
    return SNAPSHOT_TABLES[table].shaped(frame.with_row_index("id"))

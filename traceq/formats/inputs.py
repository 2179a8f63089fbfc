"""Inputs of ops, decoded: shapes, types, strides and values."""

from __future__ import annotations

from itertools import chain
from typing import Any

import orjson
import polars as pl

from traceq.common.expressions import place_among
from traceq.formats import event_heads
from traceq.model import schema

_KEYS = {
    "dims": "Input Dims",
    "types": "Input type",
    "strides": "Input Strides",
    "values": "Concrete Inputs",
}


def decode_inputs(column: pl.Series) -> tuple[pl.Series, pl.DataFrame]:
    """Replace the texts that hold inputs by rows of a table of distinct inputs."""
    distinct = column.unique().drop_nulls()
    texts = pl.DataFrame({"inputs": distinct, "text": distinct.cast(pl.String)})
    texts = texts.sort("text")
    missing = pl.Series([None], dtype=distinct.dtype)
    row = pl.int_range(texts.height, dtype=pl.UInt32, eager=True).extend_constant(
        None, 1
    )
    rows = row[place_among(column, pl.concat([texts["inputs"], missing]))]
    decoded = [event_heads.parse(text) for text in texts["text"].to_list()]
    lists = {
        column: [entry.get(key) for entry in decoded] for column, key in _KEYS.items()
    }
    recorded = {column: list(map(_json, entries)) for column, entries in lists.items()}
    table = pl.DataFrame(
        {column: _decoded(column, lists[column], recorded[column]) for column in _KEYS}
        | {"dims_text": pl.Series(recorded["dims"], dtype=pl.String)}
    ).with_row_index("id")
    return rows.alias("inputs"), table


def _decoded(column: str, lists: list[Any], recorded: list[str | None]) -> pl.Series:
    """Return lists as the schema has them, given as JSON too: many are the same."""
    distinct = dict(zip(recorded, lists, strict=True))
    clean = _numbers if column in ("dims", "strides") else _texts
    # From JSON again: Polars builds nested lists from it far faster than from objects.
    cleaned = [
        text if (cleaned_entry := clean(entry)) is entry else _json(cleaned_entry)
        for text, entry in distinct.items()
    ]
    values = pl.Series(cleaned, dtype=pl.String).str.json_decode(
        schema.INPUTS[column].dtype
    )
    row = {text: number for number, text in enumerate(distinct)}
    return values[pl.Series([row[text] for text in recorded], dtype=pl.UInt32)]


def _json(value: object) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def _numbers(entries: object) -> list[Any] | None:
    """Keep lists of numbers; a list of tensors has one more level."""
    if not isinstance(entries, list):
        return None
    if {*map(type, entries)} <= {list} and {*map(type, chain(*entries))} <= {int}:
        return entries
    return [
        entry
        if isinstance(entry, list) and all(type(number) is int for number in entry)
        else None
        for entry in entries
    ]


def _texts(entries: object) -> list[Any] | None:
    if not isinstance(entries, list):
        return None
    return entries if {*map(type, entries)} <= {str} else [*map(str, entries)]

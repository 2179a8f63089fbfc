"""The text of events cut at its keys, all events of a chunk at once.

An event reads ``ph": "X", "cat": …, "name": …, "pid": …, "tid": …, "ts": …, "dur":
…, "args": …`` in every file since torch 1.8, however it is laid out. What stands
between two keys is a column. What stands before the times repeats, so it becomes a
category and is decoded once for all events that share it (texts.py). Events that
are written otherwise go, one by one, to a JSON parser; what that refuses is lost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

Row: TypeAlias = tuple[str | None, ...]
Buffer: TypeAlias = bytes | memoryview

EVENTS = pl.Schema(
    {
        "head": pl.Categorical(),  # text with phase, category, name, process, thread
        "ts": pl.Int64(),  # nanoseconds, as the file counts them
        "dur": pl.Int64(),
        "args": pl.String(),  # text of the arguments, where a table needs them
    }
)

_IN_HEAD = ("ph", "cat", "name", "pid", "tid")
_HEAD = r'^ph":[^"]*"[Xi]"'
_FLOW = r'^ph":[^"]*"[stf]"'
# Half of most traces, and nothing in their arguments that a table needs.
_WITHOUT_ARGS = '"python_function"'

# A chunk of broken text must not cost more than the file is worth.
_MOST_JOINS = 1000
_LONGEST_JOIN = 32
_FIRST = json.JSONDecoder(parse_float=str)


@dataclass(frozen=True)
class Layout:
    """How a file is laid out, learnt from its start.

    An event that is laid out otherwise costs more time, and is read all the same.
    """

    separator: bytes
    """Between two events, from the last brace of one to the first quote of the next."""
    blanks: str = " ,\n"
    """What may stand around a number; few, as each is tried on each number."""


def _find(key: str) -> pl.Expr:
    return pl.col("text").str.find(f'"{key}":', literal=True)


def _between(start: pl.Expr, end: pl.Expr) -> pl.Expr:
    # find() counts bytes, and so must the slice: names need not be ASCII.
    return pl.col("text").cast(pl.Binary).bin.slice(start, end - start).cast(pl.String)


def nanoseconds(text: pl.Expr) -> pl.Expr:
    """Return nanoseconds of microseconds in decimal digits: the point is left out."""
    exact = text.cast(pl.Decimal(38, 3), strict=False).to_physical()
    return exact.cast(pl.Int64, strict=False)


_KEYS = [_find(key).alias(key) for key in ("ts", "dur", "args")]
_GOOD = (
    pl.col("good")
    & pl.col("ts").is_not_null()
    & (pl.col("dur").is_not_null() | pl.col("moment"))
    # Two events in one piece are for the parser.
    & ~pl.col("args").str.contains('"ph":', literal=True).fill_null(value=False)
)


@lru_cache
def _columns(layout: Layout) -> dict[str, pl.Expr]:
    """Say how to cut an event at its keys, which _KEYS has found."""
    text = pl.col("text")
    end = text.str.len_bytes()
    ts, dur, args = pl.col("ts"), pl.col("dur"), pl.col("args").fill_null(end)
    # Where the keys do not stand in this order, there is no number between them.
    ts_text = _between(ts + len('"ts":'), dur.fill_null(args))
    dur_text = _between(dur + len('"dur":'), args)
    args_needed = ~text.str.contains(_WITHOUT_ARGS, literal=True)
    return {
        "head": _between(pl.lit(0), ts).cast(pl.Categorical),
        "ts": nanoseconds(ts_text.str.strip_chars(layout.blanks)),
        "dur": nanoseconds(dur_text.str.strip_chars(layout.blanks)),
        "args": _between(pl.when(args_needed).then(args + len('"args":')), end),
        "good": text.str.contains(_HEAD)
        & (pl.col("args").is_null() | _ends_in_brace()),
        "moment": dur.is_null(),
    }


def _ends_in_brace() -> pl.Expr:
    # Otherwise a list of objects among the arguments was taken for a row of events.
    return pl.col("text").str.ends_with("}")


@dataclass
class Tally:
    """What was read, and what could not be."""

    events: int = 0
    flows: int = 0
    lost: int = 0
    lost_bytes: int = 0

    def lose(self, text: str) -> None:
        """Count an event whose text cannot be read."""
        self.lost += 1
        self.lost_bytes += len(text.encode())

    def add(self, other: Tally) -> None:
        """Count what ``other`` counted too."""
        self.events += other.events
        self.flows += other.flows
        self.lost += other.lost
        self.lost_bytes += other.lost_bytes


def decode(
    parts: Sequence[Buffer], layout: Layout, *, whole: bool
) -> tuple[pl.DataFrame, Tally]:
    """Cut a chunk into events, and these into the columns of EVENTS.

    If the chunk is not ``whole``, the file ends in the middle of its last event.
    """
    tally = Tally()
    rows: list[Row] = []
    chunk, separator = b"".join(parts), layout.separator
    if not whole:
        at = chunk.rfind(separator)
        last = chunk[at + len(separator) :] if at >= 0 else chunk
        chunk = chunk[: max(at, 0)]
        rows += _decode_last(last.decode(errors="replace"), tally)

    pieces = _pieces(chunk, separator.decode())
    tally.events += len(pieces)
    texts = pieces.to_frame("text")
    cut = (
        texts.lazy()
        .with_columns(_KEYS)
        .select(**_columns(layout))
        .with_columns(good=_GOOD)
    )
    events = cut.collect(engine="in-memory")
    others = texts.with_row_index("at").filter(~events["good"])
    # Arrows between events say nothing that the events' ids do not say.
    odd = others.filter(~others["text"].str.contains(_FLOW))
    tally.flows += others.height - odd.height
    rows += _decode_odd(odd, separator.decode(), tally)
    good = events.filter("good").select(*EVENTS)
    return pl.concat([good, _framed(rows, tally)]) if rows else good, tally


def _pieces(chunk: bytes, separator: str) -> pl.Series:
    if not chunk.strip():
        return pl.Series([], dtype=pl.String)
    try:
        text = pl.Series([chunk]).cast(pl.String)
    except pl.exceptions.PolarsError:
        text = pl.Series([chunk.decode(errors="replace")])
    return text.str.split(separator).explode()


def _framed(rows: list[Row], tally: Tally) -> pl.DataFrame:
    """Make a frame of events that were parsed one by one."""
    frame = pl.DataFrame(rows, dict.fromkeys(EVENTS, pl.String), orient="row")
    events = frame.select(
        pl.col("head").cast(pl.Categorical),
        nanoseconds(pl.col("ts")),
        nanoseconds(pl.col("dur")),
        "args",
    )
    timed = events.filter(
        pl.col("ts").is_not_null() | frame["head"].str.contains('"M"', literal=True)
    )
    tally.lost += events.height - timed.height
    return timed


def _decode_last(text: str, tally: Tally) -> list[Row]:
    """Decode what stands at the end of a file that does not end as it should."""
    if not text.strip():
        return []
    tally.events += 1
    try:
        event, _ = _FIRST.raw_decode('{"' + text)
    except (ValueError, RecursionError):
        tally.lose(text)
        return []
    return _rows([event])


def _decode_odd(odd: pl.DataFrame, separator: str, tally: Tally) -> list[Row]:
    """Decode the events that are not written as usual, one by one."""
    rows: list[Row] = []
    places, texts = odd["at"].to_list(), odd["text"].to_list()
    joins = 0
    at = 0
    while at < len(texts):
        text, last = texts[at], at
        events = _parse(text)
        # A list of objects among the arguments was taken for a row of events.
        while (
            not events
            and joins < _MOST_JOINS
            and last + 1 < len(texts)
            and last - at < _LONGEST_JOIN
            and places[last + 1] == places[last] + 1
        ):
            joins += 1
            last += 1
            text += separator + texts[last]
            events = _parse(text)
        if events:
            tally.events += len(events) - (last + 1 - at)
            rows += _rows(events)
        else:
            last = at
            tally.lose(texts[at])
        at = last + 1
    return rows


def _parse(text: str) -> list[dict[str, Any]]:
    """Parse one event that lacks its braces, or several with a strange separator."""
    try:
        events = orjson.loads('[{"' + text + "}]")
    except orjson.JSONDecodeError:
        return []
    return events if all(isinstance(event, dict) for event in events) else []


def _rows(events: list[dict[str, Any]]) -> list[Row]:
    """Give parsed events the columns of those that were cut."""
    return [
        (
            _json({key: event.get(key) for key in _IN_HEAD}),
            _scalar(event.get("ts")),
            _scalar(event.get("dur")),
            _json(event["args"]) if event.get("args") else None,
        )
        for event in events
    ]


def _scalar(value: object) -> str | None:
    return str(value) if isinstance(value, (int, float, str)) else None


def _json(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        # An integer beyond 64 bits, or half of a surrogate pair.
        return json.dumps(value)

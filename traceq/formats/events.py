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
from typing import Any, TypeAlias

import orjson
import polars as pl

Row: TypeAlias = tuple[str | None, ...]

EVENTS = pl.Schema(
    {
        "head": pl.Categorical(),  # text with phase, category, name, process, thread
        "ts": pl.Int64(),  # nanoseconds, as the file counts them
        "dur": pl.Int64(),
        "args": pl.String(),  # text of the arguments, where a table needs them
    }
)

_IN_HEAD = ("ph", "cat", "name", "pid", "tid")
_KEYS = ("ts", "dur", "args")
_FLOW = r'^ph":\s*"[stf]"'
# The address of an object differs from call to call, what is called does not.
_ADDRESS = " at 0x[0-9a-f]+>"
_AROUND_NUMBER = ' ,"\n\r\t'
# Half of most traces, and nothing in their arguments that a table needs.
_WITHOUT_ARGS = '"python_function"'

# A chunk of broken text must not cost more than the file is worth.
_MOST_JOINS = 1000
_LONGEST_JOIN = 32
_FIRST = json.JSONDecoder(parse_float=str)


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


def decode(chunk: bytes, separator: bytes, *, whole: bool) -> tuple[pl.DataFrame, Tally]:
    """Cut a chunk into events, and these into the columns of EVENTS.

    If the chunk is not ``whole``, the file ends in the middle of its last event.
    """
    tally = Tally()
    rows: list[Row] = []
    if not whole:
        at = chunk.rfind(separator)
        last = chunk[at + len(separator) :] if at >= 0 else chunk
        chunk = chunk[: max(at, 0)]
        rows += _decode_last(last.decode(errors="replace"), tally)

    pieces = _pieces(chunk, separator.decode())
    tally.events += len(pieces)
    # Arrows between events say nothing that the events' ids do not say.
    flows = pieces.str.contains(_FLOW)
    tally.flows += flows.sum()
    pieces = pieces.filter(~flows)
    events = _cut_at_keys(pieces)
    if not events["good"].all():
        odd = pieces.to_frame("text").with_row_index("at").filter(~events["good"])
        rows += _decode_odd(odd, separator.decode(), tally)
        events = events.filter("good")
    events = events.select(EVENTS.names())
    return pl.concat([events, _framed(rows, tally)]) if rows else events, tally


def _pieces(chunk: bytes, separator: str) -> pl.Series:
    if not chunk.strip():
        return pl.Series([], dtype=pl.String)
    try:
        text = pl.Series([chunk]).cast(pl.String)
    except pl.exceptions.PolarsError:
        text = pl.Series([chunk.decode(errors="replace")])
    return text.str.split(separator).explode()


def _cut_at_keys(pieces: pl.Series) -> pl.DataFrame:
    """Cut each event at its keys; ``good`` where they stand in the usual order."""
    text = pl.col("text")
    end = text.str.len_bytes()
    ts, args = pl.col("ts"), pl.col("args").fill_null(end)
    dur = pl.when(pl.col("dur") < args).then("dur")
    needed = ~text.str.contains(_WITHOUT_ARGS, literal=True)
    return (
        pieces.to_frame("text")
        .lazy()
        .with_columns(text.str.find(f'"{key}":', literal=True).alias(key) for key in _KEYS)
        .select(
            head=_between(pl.lit(0), ts).str.replace(_ADDRESS, ">").cast(pl.Categorical),
            ts=_nanoseconds(_number("ts", ts, dur.fill_null(args))),
            dur=_nanoseconds(_number("dur", dur, args)),
            args=_between(pl.when(needed).then(args + len('"args":')), end),
            good=text.str.starts_with('ph"')
            & (text.str.find('"tid":', literal=True) < ts)
            & (ts < dur.fill_null(args)),
        )
        .with_columns(
            good=(pl.col("good") & pl.col("ts").is_not_null()).fill_null(value=False)
            # Two events in one piece are for the parser.
            & ~pl.col("args").str.contains('"ph":', literal=True).fill_null(value=False)
        )
        .collect()
    )


def _between(start: pl.Expr, end: pl.Expr) -> pl.Expr:
    # find() counts bytes, and so must the slice: names need not be ASCII.
    return pl.col("text").cast(pl.Binary).bin.slice(start, end - start).cast(pl.String)


def _number(key: str, start: pl.Expr, end: pl.Expr) -> pl.Expr:
    number = _between(start + len(f'"{key}":'), end)
    return number.str.strip_chars(_AROUND_NUMBER)


def _nanoseconds(text: pl.Expr) -> pl.Expr:
    """Microseconds in decimal digits are nanoseconds once the point is gone."""
    exact = text.cast(pl.Decimal(38, 3), strict=False).to_physical()
    return exact.cast(pl.Int64, strict=False)


def _framed(rows: list[Row], tally: Tally) -> pl.DataFrame:
    """Make a frame of events that were parsed one by one."""
    frame = pl.DataFrame(rows, dict.fromkeys(EVENTS, pl.String), orient="row")
    events = frame.select(
        pl.col("head").cast(pl.Categorical),
        _nanoseconds(pl.col("ts")),
        _nanoseconds(pl.col("dur")),
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

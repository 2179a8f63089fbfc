"""Event decoder: text split at its keys, all events of a chunk at once.

An event reads ``ph": "X", "cat": …, "name": …, "pid": …, "tid": …, "ts": …, "dur":
…, "args": …`` in every file since torch 1.8, however it is laid out. What stands
between two keys is a column. What stands before the times repeats, so it becomes a
category and is decoded once for all events that share it (texts.py). Events that
are written otherwise go, one by one, to a JSON parser; what that refuses is lost.
"""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import orjson
import polars as pl
from msgspec import Struct, structs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Row: TypeAlias = tuple[str | None, ...]

EVENTS = pl.Schema(
    {
        "head": pl.Categorical(),  # text with phase, category, name, process, thread
        "ts": pl.Int64(),  # nanoseconds, as the file counts them
        "dur": pl.Int64(),
        "args": pl.String(),  # text of the arguments, where a table needs them
    }
)

# Half of most traces, and nothing in their arguments that a table needs.
_WITHOUT_ARGS = 'python_function"'
_IN_HEAD = ("ph", "cat", "name", "pid", "tid")
_HEAD = pl.col("text").str.contains(r'^ph":[^"]*"[Xi]"')
_FLOW = r'^ph":[^"]*"[stf]"'

# A chunk of broken text must not cost more than the file is worth.
_MOST_JOINS = 1000
_LONGEST_JOIN = 32
# Maximum number of times that a chunk's text is parsed again for this.
_MOST_PARSED = 8
# Number of events parsed at once, and their separator, which no file can know.
_AT_ONCE = 256
_MARK = os.urandom(8).hex()
_FIRST = json.JSONDecoder(parse_float=str)
_BLANK = re.compile(rb"\s*")
# An event that can be cut, with nothing but its length and its arguments behind its
# time, or an arrow.
_CUT = re.compile(
    rb'ph":[^"]*"(?:[stf]"|[Xi]".*"ts":[^"]*(?:"dur":[^"]*)?(?:"args":|\Z))', re.DOTALL
)


class Layout(Struct, frozen=True):
    """Layout of a file, learnt from its start.

    An event that is laid out otherwise costs more time, and is read all the same.
    """

    separator: bytes
    """Between two events, from the last brace of one to the first quote of the next."""
    start: str = 'ph": "X", "cat": "'
    """The text at the start of an event, up to its category."""
    ts: str = '"ts": '
    """This key and the two below with all that stands between the values around it."""
    dur: str = ', "dur": '
    args: str = ',\n    "args": '

    blanks: str = ""
    """Other characters that may stand around a number; each is tried on each number."""

    @property
    def any_spacing(self) -> Layout:
        """The keys alone, whatever stands between them and the values."""
        keys = structs.replace(self, ts='"ts":', dur='"dur":', args='"args":')
        return structs.replace(keys, blanks=" ,\n\r\t")

    @property
    def phases(self) -> tuple[str, ...]:
        """The texts at the start of an event that has a time: a span, or an instant."""
        before, after = self.start.split("X", maxsplit=1)
        return tuple(f"{before}{phase}{after[:1]}" for phase in "Xi")


class Piece(NamedTuple):
    """A part of a block in which each event is whole: it is read where it stands."""

    block: bytes
    start: int
    end: int

    @classmethod
    def all_of(cls, block: bytes) -> Piece:
        """Return a piece that is a whole block."""
        return cls(block, 0, len(block))


def joined(pieces: Iterable[Piece], separator: bytes) -> bytes:
    """Return the text of pieces, with what stands between their events."""
    return separator.join(
        memoryview(part.block)[part.start : part.end] for part in pieces
    )


def _between(start: pl.Expr, end: pl.Expr) -> pl.Expr:
    # find() counts bytes, and so must the slice: names need not be ASCII.
    return pl.col("bytes").bin.slice(start, end - start).cast(pl.String)


def nanoseconds(text: pl.Expr) -> pl.Expr:
    """Return nanoseconds of microseconds in decimal digits: the point is left out."""
    exact = text.cast(pl.Decimal(38, 3), strict=False).to_physical()
    return exact.cast(pl.Int64, strict=False)


@lru_cache
def _plan(layout: Layout) -> tuple[list[pl.Expr], list[pl.Expr]]:
    """Return the expressions that find an event's keys, and that cut it at them."""
    text, end = pl.col("text"), pl.col("bytes").bin.size()
    ts, dur, args = pl.col("ts"), pl.col("dur"), pl.col("args").fill_null(end)
    # Where the keys do not stand in this order, there is no number between them.
    numbers = [
        _between(ts + len(layout.ts), dur.fill_null(args)),
        _between(dur + len(layout.dur), args),
    ]
    if layout.blanks:
        numbers = [number.str.strip_chars(layout.blanks) for number in numbers]
    args_needed = ~text.str.starts_with(layout.start + _WITHOUT_ARGS)
    keys = [
        text.str.find(layout.ts, literal=True).alias("ts"),
        text.str.find(layout.dur, literal=True).alias("dur"),
        text.str.find(layout.args, literal=True).alias("args"),
    ]
    args_text = _between(pl.when(args_needed).then(args + len(layout.args)), end)
    columns = [
        pl.col("at"),
        _between(pl.lit(0), ts).cast(pl.Categorical).alias("head"),
        nanoseconds(numbers[0]).alias("ts"),
        nanoseconds(numbers[1]).alias("dur"),
        args_text.alias("args"),
        # Otherwise a list of objects among the arguments was taken for events.
        (pl.col("args").is_null() | text.str.ends_with("}")).alias("whole"),
        dur.is_null().alias("moment"),
    ]
    return keys, columns


_SEVERAL = pl.col("args").str.contains('"ph":', literal=True).fill_null(value=False)
_GOOD = (
    pl.col("whole")
    & pl.col("ts").is_not_null()
    & (pl.col("dur").is_not_null() | pl.col("moment"))
    # Two events in one piece are for the parser.
    & ~_SEVERAL
)


def _cut(pieces: pl.DataFrame, which: pl.Expr, layout: Layout) -> pl.DataFrame:
    """Return the pieces that are one event, laid out so, in the columns of EVENTS."""
    keys, columns = _plan(layout)
    cut = pieces.lazy().filter(which).with_columns(keys).select(columns)
    return cut.collect(engine="in-memory").filter(_GOOD)


class Tally(Struct):
    """Counts of read and lost events."""

    events: int = 0
    flows: int = 0
    lost: int = 0
    lost_bytes: int = 0

    def lose(self, text: str) -> None:
        """Count an event whose text is unreadable."""
        self.lost += 1
        self.lost_bytes += len(text.encode())

    def add(self, other: Tally) -> None:
        """Add the counts of ``other``."""
        self.events += other.events
        self.flows += other.flows
        self.lost += other.lost
        self.lost_bytes += other.lost_bytes


def decode(
    layout: Layout, chunk: Sequence[Piece], *, whole: bool
) -> tuple[pl.DataFrame, Tally]:
    """Cut a chunk into events, and these into the columns of EVENTS.

    If the chunk is not ``whole``, the file ends in the middle of its last event.
    """
    tally = Tally()
    pieces, rows = whole_events(chunk, layout, tally, whole=whole)
    separator = layout.separator
    texts = joined(pieces, separator).split(separator) if pieces else []
    tally.events += len(texts)
    return decode_pieces(range(len(texts)), texts, layout, tally, rows), tally


def whole_events(
    chunk: Sequence[Piece], layout: Layout, tally: Tally, *, whole: bool
) -> tuple[Sequence[Piece], list[Row]]:
    """Return the pieces of a chunk, and what can be read of a cut last event."""
    if whole:
        blank = len(chunk) == 1 and _BLANK.fullmatch(*chunk[0])
        return ([] if blank else chunk), []
    text = joined(chunk, layout.separator)
    at = text.rfind(layout.separator)
    last = text[at + len(layout.separator) :] if at >= 0 else text
    text = text[: max(at, 0)]
    rows = _decode_last(last.decode(errors="replace"), tally)
    return ([] if _BLANK.fullmatch(text) else [Piece.all_of(text)]), rows


def decode_pieces(
    places: Sequence[int],
    texts: list[bytes],
    layout: Layout,
    tally: Tally,
    rows: Sequence[Row] = (),
) -> pl.DataFrame:
    """Return events in the columns of EVENTS, given their texts and which these are.

    ``rows`` are events that were parsed before; what cannot be read is counted.
    """
    parsed = list(rows)
    pieces = _pieces(places, texts)
    if not any(map(_CUT.match, texts)):
        # The names of threads, say, are for the parser in any case.
        parsed += _decode_odd(pieces, layout.separator.decode(), tally)
        return _framed(parsed, tally)
    events = _cut(pieces, _begins(layout), layout)
    if events.height < pieces.height:
        others = pieces.join(events, on="at", how="anti", maintain_order="left")
        # Arrows between events say nothing that the events' ids do not say.
        odd = others.filter(~pl.col("text").str.contains(_FLOW))
        tally.flows += others.height - odd.height
        if odd.height:
            again = _cut(odd, _HEAD, layout.any_spacing)
            events = pl.concat([events, again]).sort("at")
            odd = odd.join(again, on="at", how="anti", maintain_order="left")
            parsed += _decode_odd(odd, layout.separator.decode(), tally)
    events = events.select(*EVENTS)
    return pl.concat([events, _framed(parsed, tally)]) if parsed else events


def _begins(layout: Layout) -> pl.Expr:
    return pl.any_horizontal(
        pl.col("text").str.starts_with(phase) for phase in layout.phases
    )


def _pieces(places: Sequence[int], texts: list[bytes]) -> pl.DataFrame:
    """Return the events' texts, as bytes too, and their places in the chunk."""
    content = pl.Series("bytes", texts, dtype=pl.Binary)
    try:
        decoded = content.cast(pl.String).alias("text")
    except pl.exceptions.PolarsError:
        valid = [text.decode(errors="replace").encode() for text in texts]
        return _pieces(places, valid)
    return pl.DataFrame([pl.Series("at", places, dtype=pl.UInt32), content, decoded])


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
    return _rows([event], tally)


def _decode_odd(odd: pl.DataFrame, separator: str, tally: Tally) -> list[Row]:
    """Decode the events that are not written as usual, one by one."""
    rows: list[Row] = []
    places, texts = odd["at"].to_list(), odd["text"].to_list()
    joins, left = 0, _MOST_PARSED * sum(map(len, texts))
    at = tried = 0
    while at < len(texts):
        if at >= tried:
            tried = at + _AT_ONCE
            if events := _parse_all(texts[at:tried]):
                rows += _rows(events, tally)
                at = tried
                continue
        text, last = texts[at], at
        events = _parse(text)
        # A list of objects among the arguments was taken for a row of events.
        while (
            not events
            and joins < _MOST_JOINS
            and left > 0
            and last + 1 < len(texts)
            and last - at < _LONGEST_JOIN
            and places[last + 1] == places[last] + 1
        ):
            joins += 1
            last += 1
            text += separator + texts[last]
            left -= len(text)
            events = _parse(text)
        if events:
            tally.events += len(events) - (last + 1 - at)
            rows += _rows(events, tally)
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


def _parse_all(texts: list[str]) -> list[dict[str, Any]]:
    """Parse events at once, if each text is exactly one; empty otherwise."""
    try:
        events = orjson.loads('[{"' + f'}},"{_MARK}",{{"'.join(texts) + "}]")
    except orjson.JSONDecodeError:
        return []
    if len(events) != 2 * len(texts) - 1:
        return []
    return events[::2] if {*map(type, events[::2])} == {dict} else []


def _rows(events: list[dict[str, Any]], tally: Tally) -> list[Row]:
    """Give parsed events the columns of those that were cut.

    Without a time they are lost, but for metadata.
    """
    timed = [event for event in events if "ts" in event or event.get("ph") == "M"]
    tally.lost += len(events) - len(timed)
    return [
        (
            _json({key: event.get(key) for key in _IN_HEAD}),
            _scalar(event.get("ts")),
            _scalar(event.get("dur")),
            _json(event["args"]) if event.get("args") else None,
        )
        for event in timed
    ]


def _scalar(value: object) -> str | None:
    return str(value) if isinstance(value, (int, float, str)) else None


def _json(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        # An integer beyond 64 bits, or half of a surrogate pair.
        return json.dumps(value)

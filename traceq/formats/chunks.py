r"""Chunks of events in the text of a trace, and the text around them.

All writers put the same bytes between two events, from the last brace of one to
the first quote of the next: ``\n  },\n  {\n    "`` in Kineto's files, ``}, {"``
in a file that another tool rewrote as one line. Inside a JSON string a quote is
escaped and a newline cannot occur, so these bytes mean nothing else, but for a
list of objects among an event's arguments, which the decoder puts together again.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct, field

from traceq.errors import InputError
from traceq.formats.events import Layout, Piece, joined

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEAD_LIMIT = 64 << 20
_EVENT_LIMIT = 256 << 20
_FOOTER_LIMIT = 4 << 20
_MOST_ENDS = 1000
# Size of the text that is parsed to tell which bracket ends the events.
_MOST_PARSED = 64 << 20
_SAMPLE = 1 << 16
# This many places tell how a file is laid out.
_ENOUGH = 50

_EVENTS = re.compile(rb'"traceEvents"\s{0,64}:\s{0,64}\[')
_BLANKS = b" \t\n\r\x0b\x0c"
# What Layout tells of a file, and what else belongs to it that stands before: as a part
# of the pattern that would be tried at every blank.
_LAYOUT = {
    "separator": (_BLANKS, re.compile(rb'\}\s{0,64},\s{0,64}\{\s{0,64}"')),
    "start": (b"", re.compile(rb'ph":\s{0,64}"X",\s{0,64}"cat":\s{0,64}"')),
    "ts": (b"", re.compile(rb'"ts":\s{0,64}')),
    "dur": (_BLANKS + b",", re.compile(rb'"dur":\s{0,64}')),
    "args": (_BLANKS + b",", re.compile(rb'"args":\s{0,64}')),
}
_OPENING = re.compile(rb'\s*\{\s*"')
_KEY_A_LINE = re.compile(rb'"ph": "\w",\s*\n\s*"')
_NO_EVENTS = re.compile(rb"\s*\]")
_END = re.compile(rb"\}\s{0,64}\]")

NO_SEPARATOR = b"\0"
"""Never found in a text: for files with a single event, or none."""


class Cut(Struct):
    """Facts about a file, learnt while its chunks are read."""

    layout: Layout = field(default_factory=lambda: Layout(NO_SEPARATOR))
    key_a_line: bool = False
    """Each key of an event stands on its own line, as torch 2.12 and later write."""
    header: dict[str, Any] = field(default_factory=dict)
    footer: dict[str, Any] = field(default_factory=dict)
    broken_header: bool = False
    whole: bool = True
    """The file ends as JSON should, once its end was read; otherwise its last event may
    be cut."""
    head: bytes = b""
    """The text before the events, up to their bracket."""
    opening: bytes = b""
    """From there to the first quote of the first event."""
    ending: bytes = b""
    """From the last brace of the last event on."""


def chunks(
    path: Path, blocks: Iterator[bytes], cut: Cut, size: int
) -> Iterator[list[Piece]]:
    """Yield the events' text in chunks of at least ``size``, cut between events.

    A chunk comes in pieces, between which the separator is left out. Each event in it
    lacks its opening brace and quote and its closing brace, which belong to the
    separator. ``cut`` is filled in on the way.
    """
    head, text = events_begin(path, blocks)
    while len(text) < _SAMPLE and (block := next(blocks, b"")):
        text += block
    # Some files begin with what has no times, such as the names of threads.
    timed = max(0, text.find(b'"dur":') - _SAMPLE // 4)
    cut.layout = layout_of(text[timed : timed + _SAMPLE])
    cut.key_a_line = bool(_KEY_A_LINE.search(text[:_SAMPLE]))
    separator = cut.layout.separator
    opening = _OPENING.match(text)
    cut.head, cut.opening = head, opening[0] if opening else b""
    start = opening.end() if opening else 0
    held: list[Piece] = []
    pieces: list[Piece] = []
    begun: list[bytes] = []  # an event of which the end was not read yet
    for block in chain([text], blocks):
        at = block.find(separator, start)
        begun.append(block[start : at if at >= 0 else None])
        start = 0
        if at < 0:
            _refuse_endless(path, begun)
            continue
        last = block.rfind(separator)
        pieces.append(Piece.all_of(b"".join(begun)))
        if last > at:
            pieces.append(Piece(block, at + len(separator), last))
        begun = [block[last + len(separator) :]]
        if sum(part.end - part.start for part in pieces) >= size:
            # One chunk is held back: the end of the events may be in it.
            if held:
                yield held
            held, pieces = pieces, []
    pieces.append(Piece.all_of(b"".join(begun)))
    events, cut.ending, footer = _ended(head, [*held, *pieces], separator)
    cut.whole = footer is not None
    _read_header(cut, head, footer)
    yield events


def _refuse_endless(path: Path, begun: list[bytes]) -> None:
    if sum(map(len, begun)) > _EVENT_LIMIT:
        msg = (
            f"{path} is not a trace: no event ends within"
            f" {_EVENT_LIMIT >> 20} MiB of text"
        )
        raise InputError(msg)


def layout_of(sample: bytes) -> Layout:
    """Return the layout of a file, from a part of it with many events."""
    usual = {
        name: matches.most_common(1)[0][0]
        for name, (before, pattern) in _LAYOUT.items()
        if (matches := Counter(_matches(sample, before, pattern)))
    }
    separator = usual.pop("separator", NO_SEPARATOR)
    texts = {name: text.decode() for name, text in usual.items()}
    return Layout(separator, **texts)


def _matches(
    sample: bytes, before: bytes, pattern: re.Pattern[bytes]
) -> Iterator[bytes]:
    """Yield the matches of a pattern, with the characters that may precede it."""
    for match in islice(pattern.finditer(sample), _ENOUGH):
        yield sample[_before(sample, match.start(), before) : match.end()]


def events_begin(path: Path, blocks: Iterator[bytes]) -> tuple[bytes, bytes]:
    """Return the text up to the bracket that opens the events, and the rest.

    A byte order mark is left out.
    """
    text = next(blocks, b"").removeprefix(b"\xef\xbb\xbf")
    if text.lstrip()[:1] == b"[":
        at = text.index(b"[") + 1
        return text[:at], text[at:]
    searched = 0
    while not (match := _EVENTS.search(text, searched)):
        searched = max(0, len(text) - 256)
        block = next(blocks, b"")
        if not block or len(text) > _HEAD_LIMIT:
            raise InputError(_why_no_events(path, text, whole=not block))
        text += block
    return text[: match.end()], text[match.end() :]


def _why_no_events(path: Path, text: bytes, *, whole: bool) -> str:
    advice = 'give the file that PyTorch\'s profiler wrote, with "traceEvents" in it'
    try:
        keys = orjson.loads(text) if whole else {}
    except orjson.JSONDecodeError:
        return (
            f"{path} is not a trace: it is not whole JSON and has no events; {advice}"
        )
    if "nodes" in keys and "schema" in keys:
        return (
            f"{path} is an execution trace (ExecutionTraceObserver), which has no"
            " timeline: give the trace that export_chrome_trace wrote"
        )
    return f"{path} is not a trace: {advice}"


def _ended(
    head: bytes, pieces: list[Piece], separator: bytes
) -> tuple[list[Piece], bytes, dict[str, Any] | None]:
    """Return the last pieces up to where the events end, what follows, and the footer.

    They end at the first bracket from which on the file, with the events taken out,
    is whole JSON; a later one ends a list among what follows the events. If they never
    do, there is no footer.
    """
    opening = b'{"traceEvents":[' if head.lstrip()[:1] == b"{" else b"["
    ends: list[tuple[int, int, int]] = []
    skipped = sum(part.end - part.start for part in pieces) - _FOOTER_LIMIT
    for number, (block, start, end) in enumerate(pieces):
        # With nothing but blanks between them, brace and bracket are in one piece.
        ends += [
            (number, _before(block, match.start()), match.end() - 1)
            for match in _END.finditer(block, start + max(0, skipped), end)
        ]
        skipped -= end - start
    if nothing := _NO_EVENTS.match(*pieces[0]):
        ends = [(0, pieces[0].start, nothing.end() - 1)]
    for number, events, bracket in _few(ends, pieces):
        block, start, end = pieces[number]
        rest = joined([Piece(block, bracket, end), *pieces[number + 1 :]], separator)
        try:
            footer = orjson.loads(opening + rest)
        except orjson.JSONDecodeError:
            continue
        return (
            [*pieces[:number], Piece(block, start, events)],
            block[events:bracket] + rest,
            footer if isinstance(footer, dict) else {},
        )
    return pieces, b"", None


def _few(
    ends: list[tuple[int, int, int]], pieces: list[Piece]
) -> list[tuple[int, int, int]]:
    """Return the last places, no more than can be tried in a short time."""
    behind = [*accumulate(part.end - part.start for part in reversed(pieces))][::-1]
    left = _MOST_PARSED
    for count, (number, _, bracket) in enumerate(reversed(ends[-_MOST_ENDS:])):
        left -= behind[number] - (bracket - pieces[number].start)
        if left < 0:
            return ends[len(ends) - max(1, count) :]
    return ends[-_MOST_ENDS:]


def _before(text: bytes, at: int, characters: bytes = _BLANKS) -> int:
    """Return the start of the white space before a place, at most 64 bytes back.

    It is no part of the pattern, which is 30 times faster if it begins with a brace.
    """
    before = text[max(0, at - 64) : at]
    return at - len(before) + len(before.rstrip(characters))


def _read_header(cut: Cut, head: bytes, footer: dict[str, Any] | None) -> None:
    if head.lstrip()[:1] == b"{":
        try:
            cut.header.update(orjson.loads(head + b"]}"))
        except orjson.JSONDecodeError:
            cut.broken_header = True
    cut.header.pop("traceEvents", None)
    cut.footer = {
        key: value for key, value in (footer or {}).items() if key != "traceEvents"
    }

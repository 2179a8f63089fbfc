"""Insertion of events into a trace file, whole or cut to a window.

The file is copied chunk by chunk. Text that is not JSON, which the reader may have
repaired, is omitted, so that the output is JSON. A window includes the events that
overlap it, the names of processes and threads, and arrows with both ends inside.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from traceq.errors import InputError
from traceq.formats.chunks import NO_SEPARATOR, Cut, chunks
from traceq.formats.events import joined, nanoseconds
from traceq.formats.gc_pause import collecting_paused
from traceq.formats.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from traceq.common.progress import Progress

# As much as may follow the events; chunks.py looks no further either.
_HELD = 4 << 20
_CHUNK = 4 << 20
# What Kineto's own files have: what they are compressed with takes as much room again.
_LEVEL = 6
_GZIP = 31
_FLOWS = ("s", "t", "f")
MOST_TEXT = 180_000_000
"""Limit of a job's text in bytes, about; Perfetto opens that in a browser."""
# What a list of objects among an event's arguments may be put together of, and how
# often a chunk's text is parsed again for this.
_LONGEST_JOIN = 32
_MOST_PARSED = 8
_MARK = b"\xef\xbb\xbf"


class Output:
    """Output of a trace's bytes, compressed if the file's name says so."""

    def __init__(
        self, stream: BinaryIO, *, packed: bool, most_text: int = MOST_TEXT
    ) -> None:
        """Write to a stream; ``most_text`` is the limit of what a job may write."""
        self._stream = stream
        self._packer = zlib.compressobj(_LEVEL, wbits=_GZIP) if packed else None
        self.text_bytes = 0
        self.most_text = most_text

    def write(self, text: bytes | memoryview) -> None:
        """Write some of the text."""
        self.text_bytes += len(text)
        self._stream.write(self._packer.compress(text) if self._packer else text)

    def finish(self) -> None:
        """Write what is left."""
        if self._packer:
            self._stream.write(self._packer.flush())


@dataclass(frozen=True)
class Text:
    """The last part of a trace's text."""

    held: bytes
    begins: int
    """Length of the text before it."""
    crc: int
    """The checksum of that."""
    end: int
    """Offset of the end of the last event in the text."""

    @property
    def size(self) -> int:
        """Length of the text."""
        return self.begins + len(self.held)

    def spliced(self, at: int, added: bytes) -> bytes:
        """Return the text from a place on, with events added after the last one."""
        first = self.held[at - self.begins : self.end - self.begins]
        comma = b"," if first.rstrip().endswith(b"}") else b""
        return first + comma + b"\n" + added + self.held[self.end - self.begins :]


def read_text(path: Path, progress: Progress = None) -> Text | None:
    """Read a trace, and return the last part of its text; None if not all is JSON.

    Raises ``InputError`` for a file that is cut off.
    """
    source, cut = Source(path, progress), Cut()
    held = b""
    begins = crc = 0

    def passed(blocks: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal held, begins, crc
        for block in blocks:
            held += block
            if len(held) > 2 * _HELD:
                before = memoryview(held)[:-_HELD]
                begins += len(before)
                crc = zlib.crc32(before, crc)
                held = held[-_HELD:]
            yield block

    valid = True
    with collecting_paused():
        for chunk in chunks(path, passed(source.blocks()), cut, _CHUNK):
            valid = valid and _are_events(joined(chunk, cut.layout.separator))
    if source.damage or not cut.whole:
        raise InputError(_cut_off(path))
    if not valid or cut.broken_header:
        return None
    end = begins + len(held) - len(cut.ending) + _end_of_event(cut.ending)
    return Text(held, begins, crc, end)


def _are_events(text: bytes | str) -> bool:
    """Return whether a text is a row of events, without their outermost braces."""
    around = ('[{"', "}]") if isinstance(text, str) else (b'[{"', b"}]")
    try:
        orjson.loads(text.join(around))  # type: ignore[arg-type]  # both of one type
    except orjson.JSONDecodeError:
        return not text.strip()
    return True


def _is_event(text: str) -> bool:
    """Return whether a text is an event, without its outermost braces.

    Half of a surrogate pair is JSON, which orjson does not take.
    """
    if _are_events(text):
        return True
    if "\\u" not in text:
        return False
    try:
        json.loads('{"' + text + "}", parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    """Refuse what Python reads as a number and JSON does not have, as NaN."""
    raise ValueError(constant)


def _end_of_event(ending: bytes) -> int:
    """Return the end of the event, in the text after the last event's value."""
    return ending.find(b"}") + 1 if ending.lstrip()[:1] == b"}" else 0


def _cut_off(path: Path) -> str:
    return (
        f"{path} is cut off, so that nothing can be added to it: record it again, or"
        " copy it again if it is whole elsewhere"
    )


@dataclass(frozen=True)
class Window:
    """A part of a trace's time, as the file counts it."""

    start: int
    end: int


@dataclass(frozen=True)
class Copied:
    """The events of a file that were copied, and what was left out."""

    events: int | None
    """Number of copied events; none if all that are valid JSON were copied."""
    lost: int = 0
    """Number of parts between events that are no valid JSON and were left out."""
    header_lost: bool = False
    """True if the header is no valid JSON and was left out."""


def copy(
    path: Path,
    output: Output,
    added: Callable[[int], bytes],
    *,
    window: Window | None = None,
    progress: Progress = None,
) -> Copied:
    """Copy a trace, or what of it is in a window, with events added after its last one.

    ``added`` returns the events to add, given how many bytes were copied. What is not
    JSON is left out. Raises ``InputError`` for a file that is cut off.
    """
    source, cut = Source(path, progress), Cut()
    writer = _Writer(output)
    arrows = _Arrows()
    lost = 0
    with collecting_paused():
        for chunk in chunks(path, writer.marked(source.blocks()), cut, _CHUNK):
            writer.layout = cut
            separator = cut.layout.separator
            text = joined(chunk, separator)
            if window is None and _are_events(text):
                writer.add_text(text)
                continue
            pieces, damaged = _events(text, separator.decode())
            lost += damaged
            if window is None:
                writer.add(pl.Series(pieces, dtype=pl.String))
            else:
                writer.add(arrows.held(_inside(_timed(pieces), window)))
    if source.damage or not cut.whole:
        raise InputError(_cut_off(path))
    writer.add(arrows.whole())
    writer.finish(added(output.text_bytes))
    return Copied(writer.count if window else None, lost, writer.header_lost)


class _Writer:
    """Writes events in the layout of their file."""

    def __init__(self, output: Output) -> None:
        self.layout = Cut()
        self.count = 0
        self.header_lost = False
        self._output = output
        self._mark = b""

    def marked(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the blocks of a file, and note the mark that it begins with."""
        for number, block in enumerate(blocks):
            if not number and block.startswith(_MARK):
                self._mark = _MARK
            yield block

    def add(self, pieces: pl.Series) -> None:
        """Write events that lack their opening brace and quote and closing brace."""
        if len(pieces):
            separator = self.layout.layout.separator
            self.add_text(separator.join(text.encode() for text in pieces), len(pieces))

    def add_text(self, text: bytes, count: int = 1) -> None:
        """Write a row of such events, as it is."""
        if not text.strip():
            return
        layout = self.layout
        begin = layout.layout.separator
        if begin == NO_SEPARATOR:
            begin = b'},{"'
        if not self.count:
            begin = self._head() + (layout.opening or b'{"')
        self._output.write(begin + text)
        self.count += count

    def finish(self, added: bytes) -> None:
        """Write events that are whole, and what stood after the file's own."""
        layout = self.layout
        at = _end_of_event(layout.ending)
        rest = layout.ending[at:]
        if self.count:
            self._output.write(layout.ending[:at] + b",\n")
        else:
            self._output.write(self._head() + b"\n")
            rest = rest[max(0, rest.find(b"]")) :]
        self._output.write(added + rest)

    def _head(self) -> bytes:
        head = self.layout.head
        if head.lstrip()[:1] == b"{":
            try:
                orjson.loads(head + b"]}")
            except orjson.JSONDecodeError:
                self.header_lost = True
                return b'{"traceEvents": ['
        return self._mark + head


def _events(text: bytes, separator: str) -> tuple[list[str], int]:
    """Return the events of a chunk, and how many of its parts are none in JSON.

    What separates events may separate objects in their arguments, too: what is no JSON
    alone may be so together with what follows.
    """
    texts = text.decode(errors="replace").split(separator)
    parts = [part for part in texts if part.strip()]
    texts_of_events: list[str] = []
    lost = at = 0
    left = _MOST_PARSED * len(text)
    while at < len(parts):
        whole, last = parts[at], at
        while not (valid := _is_event(whole)) and left > 0:
            last += 1
            if last == len(parts) or last - at > _LONGEST_JOIN:
                break
            whole += separator + parts[last]
            left -= len(whole)
        if valid:
            texts_of_events.append(whole)
            at = last + 1
        else:
            lost += 1
            at += 1
    return texts_of_events, lost


def _timed(pieces: list[str]) -> pl.DataFrame:
    """Return events as ``text``, and their ``phase``, ``ts`` and ``dur``."""
    number = r'\s*:\s*"?([-+\d.eE]+)'
    events = pl.DataFrame({"text": pieces}, schema={"text": pl.String})
    at = pl.col("text")
    return events.with_columns(
        phase=at.str.extract(r'(?:^|")ph"\s*:\s*"(\w)"'),
        ts=nanoseconds(at.str.extract(r'(?:^|")ts"' + number)),
        dur=nanoseconds(at.str.extract(r'(?:^|")dur"' + number)).fill_null(0),
    )


def _inside(pieces: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return the events that overlap a window, or that have no time, as names."""
    moved = pl.col("ts") + pl.col("dur").clip(lower_bound=0)
    named = (pl.col("phase") == "M") | pl.col("ts").is_null()
    overlaps = (moved >= window.start) & (pl.col("ts") <= window.end)
    return pieces.filter(named | overlaps)


class _Arrows:
    """Arrows of the window, which are kept if both their ends are there."""

    def __init__(self) -> None:
        self._held: list[str] = []

    def held(self, pieces: pl.DataFrame) -> pl.Series:
        """Return the events that are no arrows, and hold the others back."""
        arrow = pieces["phase"].is_in(_FLOWS).fill_null(value=False)
        self._held += pieces["text"].filter(arrow).to_list()
        return pieces["text"].filter(~arrow)

    def whole(self) -> pl.Series:
        """Return the arrows that begin and end among those that were held."""
        keys = [_flow(text) for text in self._held]
        ends = Counter(keys)
        return pl.Series(
            [
                text
                for text, key in zip(self._held, keys, strict=True)
                if key is not None and ends[key] > 1
            ],
            dtype=pl.String,
        )


def _flow(text: str) -> tuple[str, ...] | None:
    """Return the common key of an arrow's ends: its name, category and id."""
    try:
        event: dict[str, Any] = orjson.loads('{"' + text + "}")
    except orjson.JSONDecodeError:
        return None
    return tuple(str(event.get(key)) for key in ("cat", "name", "id"))

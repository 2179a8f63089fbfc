"""A trace with more events in it: all of the file's own as they are, or a window.

The file is copied block by block. Of a window, the events that overlap it are copied,
what names processes and threads, and arrows both of whose ends are there.
"""

from __future__ import annotations

import zlib
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from traceq.errors import InputError
from traceq.formats.chunks import Cut, chunks, events_begin, events_end
from traceq.formats.events import joined, nanoseconds
from traceq.formats.source import Source
from traceq.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from traceq.watching import Progress

# As much as may follow the events; chunks.py looks no further either.
_HELD = 4 << 20
_CHUNK = 4 << 20
# What Kineto's own files have: what they are compressed with takes as much room again.
_LEVEL = 6
_GZIP = 31
_FLOWS = ("s", "t", "f")
_MARK = b"\xef\xbb\xbf"


class Output:
    """Where the bytes of a trace go, compressed if the file's name says so."""

    def __init__(self, stream: BinaryIO, *, packed: bool) -> None:
        """Write to a stream."""
        self._stream = stream
        self._packer = zlib.compressobj(_LEVEL, wbits=_GZIP) if packed else None
        self.text_bytes = 0

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
    """How much of the text stands before it."""
    crc: int
    """The checksum of that."""
    end: int
    """Where in the text the last event ends."""

    @property
    def size(self) -> int:
        """How long the text is."""
        return self.begins + len(self.held)

    def spliced(self, at: int, added: bytes) -> bytes:
        """Return the text from a place on, with events added after the last one."""
        first = self.held[at - self.begins : self.end - self.begins]
        comma = b"," if first.rstrip().endswith(b"}") else b""
        return first + comma + b"\n" + added + self.held[self.end - self.begins :]


def read_text(
    path: Path,
    progress: Progress = None,
    write: Callable[[bytes | memoryview], object] | None = None,
) -> Text:
    """Read a trace, and return the last part of its text.

    ``write`` is given all that stands before it. Raises ``InputError`` for a file that
    is cut off.
    """
    source = Source(path, progress)
    blocks = source.blocks()
    first = next(blocks)
    head, events = events_begin(path, chain([first], blocks))
    begins = crc = 0

    def passed(part: bytes | memoryview) -> None:
        nonlocal begins, crc
        begins += len(part)
        crc = zlib.crc32(part, crc)
        if write:
            write(part)

    before = (_MARK if first.startswith(_MARK) else b"") + head
    held, skipped = before + events, len(before)
    for block in blocks:
        held += block
        if len(held) > 2 * _HELD:
            passed(memoryview(held)[:-_HELD])
            held, skipped = held[-_HELD:], 0
    end = None if source.damage else events_end(head, held[skipped:])
    if end is None:
        raise InputError(_cut_off(path))
    return Text(held, begins, crc, begins + skipped + end)


def spliced(
    path: Path, added: bytes, output: Output, progress: Progress = None
) -> None:
    """Copy a trace with events added after its last one.

    Raises ``InputError`` for a file that is cut off.
    """
    text = read_text(path, progress, output.write)
    output.write(text.spliced(text.begins, added))


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


def cut(
    path: Path,
    window: Window,
    output: Output,
    added: Callable[[int], bytes],
    progress: Progress = None,
) -> int:
    """Copy what of a trace is in a window, and return how many events that are.

    ``added`` returns the events to add, given how many bytes were copied.
    """
    source, found = Source(path, progress), Cut()
    writer = _Writer(output)
    arrows = _Arrows()
    for chunk in chunks(path, source.blocks(), found, _CHUNK):
        writer.layout = found
        separator = found.layout.separator
        pieces = _pieces(joined(chunk, separator), separator.decode())
        inside = _inside(pieces, window)
        writer.add(arrows.held(inside))
    if source.damage or not found.whole:
        raise InputError(_cut_off(path))
    writer.add(arrows.whole())
    writer.finish(added(output.text_bytes))
    return writer.count


class _Writer:
    """Writes events in the layout of their file."""

    def __init__(self, output: Output) -> None:
        self.layout = Cut()
        self.count = 0
        self._output = output

    def add(self, pieces: pl.Series) -> None:
        """Write events that lack their opening brace and quote and closing brace."""
        if not len(pieces):
            return
        known = self.layout
        begin = known.layout.separator
        if not self.count:
            begin = known.head + (known.opening or b'{"')
        text = known.layout.separator.decode().join(pieces.to_list())
        self._output.write(begin + text.encode())
        self.count += len(pieces)

    def finish(self, added: bytes) -> None:
        """Write events that are whole, and what stood after the file's own."""
        known = self.layout
        at = known.ending.find(b"}") + 1 if self.count else 0
        if not self.count:
            self._output.write(known.head)
        self._output.write(known.ending[:at] + (b",\n" if self.count else b"\n"))
        rest = known.ending[at:]
        if not self.count:
            rest = rest[max(0, rest.find(b"]")) :]
        self._output.write(added + rest)


def _pieces(text: bytes, separator: str) -> pl.DataFrame:
    """Return the events of a chunk: ``text``, and ``phase``, ``ts`` and ``dur``."""
    pieces = [
        piece
        for piece in text.decode(errors="replace").split(separator)
        if piece.strip()
    ]
    if "\n" not in separator:
        # What separates events may separate objects in their arguments, too.
        pieces = list(_rejoined(pieces, separator))
    number = r'\s*:\s*"?([-+\d.eE]+)'
    found = pl.DataFrame({"text": pieces}, schema={"text": pl.String})
    at = pl.col("text")
    return found.with_columns(
        phase=at.str.extract(r'(?:^|")ph"\s*:\s*"(\w)"'),
        ts=nanoseconds(at.str.extract(r'(?:^|")ts"' + number)),
        dur=nanoseconds(at.str.extract(r'(?:^|")dur"' + number)).fill_null(0),
    )


def _rejoined(pieces: list[str], separator: str) -> Iterator[str]:
    """Yield whole events: what is no JSON alone is so together with what follows."""
    waiting = ""
    for piece in pieces:
        text = waiting + separator + piece if waiting else piece
        try:
            orjson.loads('{"' + text + "}")
        except orjson.JSONDecodeError:
            waiting = text
            continue
        waiting = ""
        yield text


def _inside(pieces: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return what overlaps a window, and what has no time, as names have none."""
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
    """Return what the ends of an arrow have in common: its name, category and id."""
    try:
        event: dict[str, Any] = orjson.loads('{"' + text + "}")
    except orjson.JSONDecodeError:
        return None
    return tuple(str(event.get(key)) for key in ("cat", "name", "id"))

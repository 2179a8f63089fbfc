"""Bytes of a trace, plain or compressed, block by block."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from traceq.errors import InputError
from traceq.formats.compression import DamagedError, blocks, compression
from traceq.formats.kinds import COMPILE_RECORD
from traceq.formats.unmodified_file import unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader
    from pathlib import Path

# Blocks of this size stay in the processor's cache, and their memory is used again.
BLOCK = 1 << 20
# Of all traces that were seen none unpacks to more than 35 times its size; a text that
# repeats itself does to 1,000 times, and its events would take as much memory.
MOST_PACKED = 200
ALWAYS_UNPACKED = 256 << 20

# First bytes of other kinds of files, and the message on them.
_STRANGERS = (
    (b"PK\x03\x04", "is a zip archive: unpack it and give the trace inside"),
    (
        b"SQLite format 3",
        "is a compressed database: unpack it, and give the .sqlite if it is an export"
        " of Nsight Systems",
    ),
    (b"\xff\xfe", "is UTF-16 text: save it as UTF-8"),
    (b"\xfe\xff", "is UTF-16 text: save it as UTF-8"),
)
_PICKLE_PROTOCOLS = range(2, 6)


def most_unpacked(packed: int) -> int:
    """Return the maximum unpacked size of a trace of this many packed bytes."""
    return max(ALWAYS_UNPACKED, MOST_PACKED * packed)


class Source:
    """The bytes of one file, unpacked if need be.

    ``damage`` says, once the blocks have run out, why they ran out too early.
    """

    def __init__(
        self,
        path: Path,
        progress: Callable[[int, int], None] | None = None,
        heard: Callable[[bytes], None] | None = None,
    ) -> None:
        self.path = path
        self._heard = heard
        self.damage: str | None = None
        self.unpacked_bytes = 0
        self._progress = progress
        self._bytes_read = 0

    def blocks(self) -> Iterator[bytes]:
        """Yield the unpacked bytes in order, in blocks of about BLOCK bytes."""
        with self._open() as file, unchanged(self.path, file):
            size = os.fstat(file.fileno()).st_size
            first = True
            for block in self._unpacked(file):
                if first:
                    self._refuse_strangers(block)
                    first = False
                self.unpacked_bytes += len(block)
                self._refuse_bomb()
                if self._progress is not None:
                    self._progress(self._bytes_read, size)
                yield block
            if first:
                msg = f"{self.path} is empty: there is no trace in it"
                if self.damage:
                    msg = f"{self.path} cannot be unpacked: {self.damage}"
                raise InputError(msg)

    def _open(self) -> BufferedReader:
        if self.path.is_dir():
            msg = (
                f"{self.path} is a directory, but not a run folder of traceq collect:"
                " give the trace inside it"
            )
            raise InputError(msg)
        try:
            return self.path.open("rb")
        except FileNotFoundError:
            msg = f"{self.path} does not exist: check the name"
            raise InputError(msg) from None
        except OSError as error:
            msg = f"{self.path} cannot be read: {error.strerror or error}"
            raise InputError(msg) from None

    def _unpacked(self, file: BufferedReader) -> Iterator[bytes]:
        try:
            yield from blocks(file, BLOCK, lambda count: self._read(file, count))
        except DamagedError as error:
            self.damage = str(error)

    def _read(self, file: BufferedReader, count: int) -> bytes:
        try:
            block = file.read(count)
        except OSError as error:
            msg = f"{self.path} cannot be read: {error.strerror or error}"
            raise InputError(msg) from None
        self._bytes_read += len(block)
        if self._heard is not None:
            self._heard(block)
        return block

    def _refuse_bomb(self) -> None:
        if self.unpacked_bytes > most_unpacked(self._bytes_read):
            msg = f"{self.path} is not a trace: it unpacks to far more than one would"
            raise InputError(msg)

    def _refuse_strangers(self, block: bytes) -> None:
        for magic, verdict in _STRANGERS:
            if block.startswith(magic):
                msg = f"{self.path} {verdict}"
                raise InputError(msg)
        if again := compression(block):
            msg = (
                f"{self.path} is compressed twice, inside with {again}: unpack it once"
            )
            raise InputError(msg)
        if block[:1] == b"\x80" and block[1:2] and block[1] in _PICKLE_PROTOCOLS:
            msg = (
                f"{self.path} is a pickle, such as a CUDA memory snapshot, not a"
                " trace: give the .json or .json.gz that the profiler wrote"
            )
            raise InputError(msg)
        if COMPILE_RECORD.match(block):
            msg = (
                f"{self.path} is a log of torch.compile (TORCH_TRACE), not a trace:"
                " traceq lint reads it"
            )
            raise InputError(msg)
        text = block.removeprefix(b"\xef\xbb\xbf").lstrip()
        if text[:1] not in (b"{", b"["):
            msg = (
                f"{self.path} is not a trace: a trace is JSON and begins with"
                " '{' or '['"
            )
            raise InputError(msg)

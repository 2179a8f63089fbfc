"""Bytes of a plain or gzipped file, block by block, as far as they are intact."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from traceq.formats.compression import Peekable

MAGIC = b"\x1f\x8b"
_PACKED_BLOCK = 1 << 16


class DamagedGzipError(Exception):
    """A gzip stream that cannot be unpacked to its end; the message is the reason."""


def blocks(
    file: Peekable, most: int, read: Callable[[int], bytes] | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a file, unpacked if need be, in blocks of at most ``most``.

    ``read`` reads from the file in another way than its own. Raises
    ``DamagedGzipError`` after the last byte that can be unpacked.
    """
    read = read or file.read
    # A pipe cannot be read twice, only looked into.
    if file.peek(len(MAGIC)).startswith(MAGIC):
        yield from _unpacked(read, most)
        return
    while block := read(most):
        yield block


def _unpacked(read: Callable[[int], bytes], most: int) -> Iterator[bytes]:
    """Unpack with a bound on each block, so that a gzip bomb stays small."""
    unpacker = zlib.decompressobj(wbits=31)
    while True:
        if unpacker.eof:
            packed = unpacker.unused_data or read(_PACKED_BLOCK)
            # What follows the end of a member is another member, or padding that every
            # gzip tool ignores.
            if not packed.startswith(MAGIC):
                return
            unpacker = zlib.decompressobj(wbits=31)
        else:
            packed = unpacker.unconsumed_tail or read(_PACKED_BLOCK)
            if not packed:
                msg = "the gzip stream is cut off"
                raise DamagedGzipError(msg)
        before = unpacker.copy()
        try:
            block = unpacker.decompress(packed, most)
        except zlib.error:
            yield from _before_damage(before, packed)
            msg = "the gzip stream is damaged"
            raise DamagedGzipError(msg) from None
        if block:
            yield block


def _before_damage(unpacker: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
    """Unpack byte by byte what comes before the place at which unpacking fails."""
    for at in range(len(packed)):
        try:
            block = unpacker.decompress(packed[at : at + 1])
        except zlib.error:
            return
        if block:
            yield block

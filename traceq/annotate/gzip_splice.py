"""Insertion of events into a gzipped trace without recompressing all of it.

A gzip file is a sequence of blocks. All before the last one are copied unchanged; the
content of the last one is compressed again together with the new events. The position
of a block is not stored anywhere, so candidates are tried: each is decompressed, and is
a block if the expected text comes out.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

from traceq.annotate.splice import Text, read_text
from traceq.formats.compression import GZIP_MAGIC
from traceq.formats.unmodified_file import unchanged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from traceq.common.progress import Progress

# Distance from the file's end that is searched for a block: zlib's are a third of it.
_LOOKED_THROUGH = 96 << 10
# Size of the text before a block that it may refer back to.
_WINDOW = 32 << 10
_RAW = -15
_TRAILER = 8
_LEVEL = 9
_PART = 1 << 20
# Of the lengths of a code's words, three bits each: which part of all codes each takes.
_PARTS = (0, 64, 32, 16, 8, 4, 2, 1)
_WHOLE = 128
_FOUR = [
    sum(_PARTS[(bits >> shift) & 7] for shift in (0, 3, 6, 9))
    for bits in range(1 << 12)
]
_HEADER, _HEADER_BITS, _LONGEST = 17, 3, 11
_DYNAMIC, _MOST_CODES = 2, 29
# An empty block, less its first three bits, which says nothing and ends at a byte.
_ALIGNED = b"\x00\x00\xff\xff"


class _Block(NamedTuple):
    """Start of a block: its position in the file, and in the text."""

    byte: int
    bit: int
    text: int


def spliced_packed(
    path: Path, added: bytes, stream: BinaryIO, progress: Progress = None
) -> bool:
    """Copy a gzipped trace with events added after its last one.

    Returns False, and writes nothing, where it has to be packed again, as where not all
    of it is JSON. Raises
    ``InputError`` for a file that is cut off.
    """
    with path.open("rb") as file:
        if file.read(len(GZIP_MAGIC)) != GZIP_MAGIC:
            return False
    with unchanged(path):
        text = read_text(path, progress)
        if text is None:
            return False
        with path.open("rb") as file:
            block = _last_block(file, text)
            if block is None:
                return False
            file.seek(0)
            _copy(file, stream, block)
    rest = text.spliced(block.text, added)
    packer = zlib.compressobj(_LEVEL, wbits=_RAW)
    stream.write(packer.compress(rest) + packer.flush())
    before = zlib.crc32(text.held[: block.text - text.begins], text.crc)
    stream.write(zlib.crc32(rest, before).to_bytes(4, "little"))
    stream.write(((block.text + len(rest)) & 0xFFFFFFFF).to_bytes(4, "little"))
    return True


def _last_block(file: BinaryIO, text: Text) -> _Block | None:
    """Return the last block that begins before the end of the events."""
    size = file.seek(0, 2)
    begin = max(0, size - _LOOKED_THROUGH)
    file.seek(begin)
    tail = file.read()
    # A file of several packed parts counts each of them for itself.
    if int.from_bytes(tail[-4:], "little") != text.size & 0xFFFFFFFF:
        return None
    packed = tail[:-_TRAILER]
    for byte, bit in _candidates(packed):
        at = _begins_at(packed, byte, bit, text)
        if at is not None and at <= text.end:
            return _Block(begin + byte, bit, at)
    return None


def _candidates(packed: bytes) -> Iterator[tuple[int, int]]:
    """Yield possible starts of blocks, by their first bits, from the end on."""
    for byte in range(len(packed) - 1, -1, -1):
        bits = int.from_bytes(packed[byte : byte + _LONGEST], "little")
        for bit in range(8):
            here = bits >> bit
            if (here >> 1) & 3 != _DYNAMIC:
                continue
            if (here >> 3) & 31 > _MOST_CODES or (here >> 8) & 31 > _MOST_CODES:
                continue
            lengths = 3 * (((here >> 13) & 15) + 4)
            words = (here >> _HEADER) & ((1 << lengths) - 1)
            taken = 0
            while words:
                taken += _FOUR[words & 4095]
                words >>= 12
            if taken == _WHOLE:
                yield byte, bit


def _begins_at(packed: bytes, byte: int, bit: int, text: Text) -> int | None:
    """Return the offset in the text of a block; None if no block begins there."""
    rest = (int.from_bytes(packed[byte:], "little") >> bit).to_bytes(
        len(packed) - byte, "little"
    )
    tried = _unpacked(rest, bytes(_WINDOW))
    if tried is None:
        return None
    at = len(text.held) - len(tried)
    if at < _WINDOW:
        return None
    # Only now it is known what stands before the block.
    unpacked = _unpacked(rest, text.held[at - _WINDOW : at])
    return at + text.begins if unpacked == text.held[at:] else None


def _unpacked(packed: bytes, before: bytes) -> bytes | None:
    """Return the text of blocks up to the last one, given what stands before them."""
    unpacker = zlib.decompressobj(_RAW, zdict=before)
    try:
        text = unpacker.decompress(packed)
    except zlib.error:
        return None
    return text if unpacker.eof and len(unpacker.unused_data) <= 1 else None


def _copy(file: BinaryIO, stream: BinaryIO, block: _Block) -> None:
    """Copy all before a block, and end it with an empty one at the end of a byte."""
    left = block.byte
    while left:
        part = file.read(min(left, _PART))
        stream.write(part)
        left -= len(part)
    bits = file.read(1)[0] & ((1 << block.bit) - 1)
    filled = (block.bit + _HEADER_BITS + 7) // 8
    stream.write(bits.to_bytes(filled, "little") + _ALIGNED)

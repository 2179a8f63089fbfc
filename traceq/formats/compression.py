"""Bytes of a file, block by block, with any compression.

The compression is detected from the first bytes, not from the name. However large a
file is unpacked, at most one block of it is in memory at a time.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import zlib
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GZIP_MAGIC = b"\x1f\x8b"
_PACKED_BLOCK = 1 << 16
_LONGEST_MAGIC = 6
# Four times what `xz -9` needs; a stream may ask for 4 GiB.
_XZ_MEMORY = 256 << 20
_ZSTD_MODULES = ("compression.zstd", "backports.zstd")


class DamagedError(Exception):
    """A stream that cannot be unpacked to its end; the message is the reason."""


class Peekable(Protocol):
    """A file that can be looked into, as a buffered one can."""

    def read(self, count: int, /) -> bytes:
        """Return the next bytes, none at the end."""

    def peek(self, count: int, /) -> bytes:
        """Return some of the next bytes and stay before them."""


class _Unpacker(Protocol):
    """The common interface of the standard library's decompressors."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Format(Struct, frozen=True):
    """Signature and decompressor of a compression."""

    name: str
    magics: tuple[bytes, ...]
    new: Callable[[], _Unpacker]


def _new_zstd() -> _Unpacker:
    """Return a zstd decompressor, which Python has from 3.14 on."""
    for name in _ZSTD_MODULES:
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            continue
        unpacker: _Unpacker = module.ZstdDecompressor()
        return unpacker
    msg = "it is compressed with zstd: pip install backports.zstd"
    raise DamagedError(msg)


_FORMATS = (
    # pzstd begins with a frame to skip, one of sixteen kinds.
    _Format(
        "zstd",
        (
            b"\x28\xb5\x2f\xfd",
            *(bytes((kind, 0x2A, 0x4D, 0x18)) for kind in range(0x50, 0x60)),
        ),
        _new_zstd,
    ),
    _Format(
        "xz",
        (b"\xfd7zXZ\x00",),
        lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY),
    ),
    _Format(
        "bzip2", tuple(b"BZh%d" % level for level in range(1, 10)), bz2.BZ2Decompressor
    ),
)


def compression(head: bytes) -> str:
    """Return the compression of a file that begins like this, or nothing.

    >>> compression(b"BZh91AY&SY"), compression(b"[1]")
    ('bzip2', '')
    """
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    return next((item.name for item in _FORMATS if head.startswith(item.magics)), "")


def blocks(
    file: Peekable, most: int, read: Callable[[int], bytes] | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a file, unpacked if need be, in blocks of at most ``most``.

    ``read`` reads from the file in another way than its own. Raises ``DamagedError``
    after the last block that can be unpacked.
    """
    read = read or file.read
    # A pipe cannot be read twice, only looked into.
    head = file.peek(_LONGEST_MAGIC)
    codec = next((item for item in _FORMATS if head.startswith(item.magics)), None)
    if codec:
        yield from _unpacked(codec, read, most)
    elif head.startswith(GZIP_MAGIC):
        yield from _gunzipped(read, most)
    else:
        while block := read(most):
            yield block


def _unpacked(
    form: _Format, read: Callable[[int], bytes], most: int
) -> Iterator[bytes]:
    unpacker = form.new()
    while True:
        packed = b""
        if unpacker.eof:
            packed = unpacker.unused_data
            while len(packed) < _LONGEST_MAGIC and (more := read(_PACKED_BLOCK)):
                packed += more
            # Another stream follows, or padding that every tool ignores.
            if not packed.startswith(form.magics):
                return
            unpacker = form.new()
        elif unpacker.needs_input:
            packed = read(_PACKED_BLOCK)
            if not packed:
                msg = f"the {form.name} stream is cut off"
                raise DamagedError(msg)
        try:
            block = unpacker.decompress(packed, most)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - the one base of their errors
            msg = f"the {form.name} stream {_why(error)}"
            raise DamagedError(msg) from None
        if block:
            yield block


def _why(error: Exception) -> str:
    needs_much = "memory" in str(error).lower()
    return "needs too much memory to unpack" if needs_much else "is damaged"


def _gunzipped(read: Callable[[int], bytes], most: int) -> Iterator[bytes]:
    """Unpack with a bound on each block, so that a gzip bomb stays small."""
    unpacker = zlib.decompressobj(wbits=31)
    while True:
        if unpacker.eof:
            packed = unpacker.unused_data or read(_PACKED_BLOCK)
            # What follows the end of a member is another member, or padding that every
            # gzip tool ignores.
            if not packed.startswith(GZIP_MAGIC):
                return
            unpacker = zlib.decompressobj(wbits=31)
        else:
            packed = unpacker.unconsumed_tail or read(_PACKED_BLOCK)
            if not packed:
                msg = "the gzip stream is cut off"
                raise DamagedError(msg)
        before = unpacker.copy()
        try:
            block = unpacker.decompress(packed, most)
        except zlib.error:
            yield from _before_damage(before, packed)
            msg = "the gzip stream is damaged"
            raise DamagedError(msg) from None
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

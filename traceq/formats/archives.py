"""Archives that contain a trace: zip, and tar with any compression.

Members are read as streams; no name in an archive is ever the name of a file.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, cast

from msgspec import Struct

from traceq.errors import InputError
from traceq.formats.compression import DamagedError, blocks
from traceq.formats.kinds import head_of, kind, kind_of
from traceq.formats.source import most_unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from traceq.formats.compression import Peekable
    from traceq.formats.kinds import Kind

MOST_MEMBERS = 10_000
"""Maximum number of members of an archive."""
_BLOCK = 1 << 20
_TELLING = 1 << 10
# A header that names a file needs a few hundred bytes, and may claim gigabytes.
_LARGEST_READ = 4 << 20
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_OTHER_METHODS = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}


class Member(Struct, frozen=True):
    """A file in an archive."""

    name: str
    size: int
    kind: Kind


def _trouble() -> tuple[type[Exception], ...]:
    """Return the exceptions that reading a damaged archive may raise."""
    import tarfile  # noqa: PLC0415 - few traces are in one

    return (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        DamagedError,
        EOFError,
        ValueError,
        NotImplementedError,
        struct.error,
    )


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive that can be looked into."""
    return path.is_file() and kind_of(path, _TELLING) in ("zip", "tar")


def members(path: Path) -> list[Member]:
    """Return the files in an archive, in its order."""
    return [
        Member(name, size, kind(name, head_of(file)))
        for name, size, file in _files(path)
    ]


def unpack(
    path: Path,
    places: Mapping[str, Path],
    most: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write members to the given places; of one name the first counts.

    Raises ``InputError`` if they are more than ``most`` bytes together.
    """
    left = dict(places)
    done, likely = 0, most_unpacked(path.stat().st_size)
    for name, size, file in _files(path):
        if name not in left:
            continue
        with left.pop(name).open("xb") as place:
            while block := file.read(_BLOCK):
                done += len(block)
                if done > likely:
                    msg = f"{path} unpacks to far more than a trace would"
                    raise InputError(msg)
                if done > most:
                    msg = f"{path} unpacks to more than {most >> 30} GiB: unpack it"
                    raise InputError(msg)
                place.write(block)
                if progress:
                    progress(done, max(done, size))
        if not left:
            return


def _files(path: Path) -> Iterator[tuple[str, int, Peekable]]:
    """Yield the files in an archive: name, size, and a stream for that moment."""
    read = _zipped if kind_of(path, _TELLING) == "zip" else _tarred
    try:
        for count, member in enumerate(read(path)):
            if count == MOST_MEMBERS:
                msg = f"{path} has more than {MOST_MEMBERS:,} files in it: unpack it"
                raise InputError(msg)
            yield member
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror or error}"
        raise InputError(msg) from None
    except _trouble() as error:
        msg = f"{path} is a damaged archive ({str(error)[:80]}): pack it again"
        raise InputError(msg) from None


def _zipped(path: Path) -> Iterator[tuple[str, int, Peekable]]:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.is_dir():
                continue
            if entry.flag_bits & 1:
                msg = f"{path} is encrypted: unpack it and give the trace inside"
                raise InputError(msg)
            # Others unpack without a bound on what comes out at once.
            if entry.compress_type not in _METHODS:
                method = _OTHER_METHODS.get(entry.compress_type, "another method")
                msg = (
                    f"{path} is packed with {method}, which is not read in a zip"
                    " archive: unpack it and give the trace inside"
                )
                raise InputError(msg)
            with archive.open(entry) as file:
                yield entry.filename, entry.file_size, cast("Peekable", file)


def _tarred(path: Path) -> Iterator[tuple[str, int, Peekable]]:
    import tarfile  # noqa: PLC0415 - as above

    with (
        _unpacked(path) as stream,
        tarfile.open(fileobj=cast("BinaryIO", stream), mode="r:") as archive,
    ):
        for entry in archive:
            file = archive.extractfile(entry) if entry.isreg() else None
            if file:
                with file:
                    yield entry.name, entry.size, cast("Peekable", file)


@contextmanager
def _unpacked(path: Path) -> Iterator[_Forward]:
    with path.open("rb") as file:
        yield _Forward(blocks(file, _BLOCK), most_unpacked(path.stat().st_size))


class _Forward:
    """The unpacked bytes as a file in which tarfile can go forward."""

    def __init__(self, unpacked: Iterator[bytes], most: int) -> None:
        self._blocks = unpacked
        self._most = most
        self._block = b""
        self._at = 0

    def tell(self) -> int:
        """Return the number of bytes that were passed."""
        return self._at

    def seek(self, place: int) -> int:
        """Go forward to a place."""
        if place < self._at:
            msg = "its files lie in one another"
            raise DamagedError(msg)
        while self._at < place and self._some():
            self._take(place - self._at)
        return self._at

    def read(self, count: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        if count > _LARGEST_READ:
            msg = "a name in it is of absurd length"
            raise DamagedError(msg)
        parts = []
        while count > 0 and self._some():
            parts.append(self._take(count))
            count -= len(parts[-1])
        return b"".join(parts)

    def _some(self) -> bool:
        if not self._block:
            self._block = next(self._blocks, b"")
        return bool(self._block)

    def _take(self, count: int) -> bytes:
        taken, self._block = self._block[:count], self._block[count:]
        self._at += len(taken)
        if self._at > self._most:
            msg = "it unpacks to far more than a trace would"
            raise DamagedError(msg)
        return taken

"""Pickles of plain values, read so that nothing in them can run.

A memory snapshot is a pickle, and a pickle is a program: it may import and call
whatever it likes. Of its commands a snapshot needs only those that build numbers,
texts, lists and dicts, so two walls stand around Python's own unpickler:

- every byte is checked before the unpickler sees it: a command that is not on the
  short list, a text or a number of absurd length, a place in the memo that the file
  is too small for, or a tuple of anything but two numbers ends the reading;
- the unpickler looks up no names and no persistent ids.

How deep lists are nested does not matter: neither the unpickler nor whoever reads
its result goes down by calling itself.
"""

from __future__ import annotations

import pickle
import pickletools
import re
from typing import TYPE_CHECKING, Any, NoReturn

from traceq.errors import InputError
from traceq.formats.collector import collecting_paused
from traceq.formats.unchanged import unchanged
from traceq.formats.unpack import DamagedError, blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader
    from pathlib import Path

LARGEST = 16 << 30
"""How many bytes of pickle are read at most, unpacked."""
_LONGEST_TEXT = 16 << 20
# An empty list is one byte here and eighty in memory; a snapshot has few of them.
_MOST_CONTAINERS = 1 / 5

# Snapshots shrink to a fortieth at best; what shrinks far more is made to be a bomb.
_MOST_PACKED = 150
_ALWAYS_UNPACKED = 8 << 20

_BLOCK = 1 << 20
_PROTO, _STOP, _FRAME = 0x80, 0x2E, 0x95
_TEXT, _SHORT_TEXT = 0x58, 0x8C
_PROTOCOLS = range(2, 6)

# What the unpickler raises on nonsense, its own error included.
_NONSENSE = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)


class _RefusedError(Exception):
    """Why a pickle is not read, to follow the file's name."""


def read_pickle(path: Path) -> tuple[Any, int]:
    """Return the plain values in a pickle, gzipped or not, and its unpacked size."""
    try:
        with path.open("rb") as file, unchanged(path, file):
            checked = _Checked(file)
            return _load(checked), checked.size
    except FileNotFoundError:
        msg = f"{path} does not exist: check the name"
    except IsADirectoryError:
        msg = f"{path} is a directory: give the memory snapshot inside it"
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror or error}"
    except _RefusedError as error:
        msg = f"{path} {error}"
    raise InputError(msg)


def _load(checked: _Checked) -> Any:  # noqa: ANN401 - a pickle can be anything
    with collecting_paused():
        try:
            return _Plain(checked).load()
        except _NONSENSE:
            why = "is not a memory snapshot: its pickle is damaged, dump it again"
            raise _RefusedError(why) from None


class _Plain(pickle.Unpickler):
    """Python's unpickler, without its ways out."""

    def find_class(self, module: str, name: str) -> NoReturn:
        why = (
            f"is not a memory snapshot: it asks for {module}.{name}, which was not run"
        )
        raise _RefusedError(why)

    def persistent_load(self, pid: object) -> NoReturn:
        del pid
        why = "is not a memory snapshot: it points to objects outside itself"
        raise _RefusedError(why)


class _Checked:
    """A file for the unpickler that holds checked bytes only."""

    def __init__(self, file: BufferedReader) -> None:
        self.size = 0
        self._blocks = _blocks(file)
        self._bytes = b""
        """Read from the file; what is before ``_end`` has been checked."""
        self._at = 0
        self._end = 0
        self._stopped = False
        self._begun = False
        self._match = _commands(0)
        self._match_until = 0

    def read(self, count: int) -> bytes:
        """Return the next bytes, fewer where the pickle ends."""
        parts = []
        while count > 0 and self._some():
            part = self._bytes[self._at : min(self._end, self._at + count)]
            self._at += len(part)
            count -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def peek(self, count: int) -> bytes:
        """Return the next bytes and stay before them."""
        self._some()
        return self._bytes[self._at : min(self._end, self._at + count)]

    def readline(self) -> NoReturn:
        """Refuse: only commands that have been refused already are lines of text."""
        raise EOFError

    def _some(self) -> bool:
        """Check more bytes if none are left; return whether there are any."""
        while self._at == self._end and not self._stopped:
            block = next(self._blocks, b"")
            if not block:
                self._refuse_the_end()
            self.size += len(block)
            if self.size > LARGEST:
                why = f"is larger than {LARGEST >> 30} GiB, which is not read"
                raise _RefusedError(why)
            if _containers(block) > _MOST_CONTAINERS * len(block) + _BLOCK / 256:
                why = "is not a memory snapshot: it is made of empty lists and dicts"
                raise _RefusedError(why)
            self._bytes = self._bytes[self._at :] + block
            self._at = 0
            self._end = self._check(self._bytes)
        return self._at < self._end

    def _refuse_the_end(self) -> NoReturn:
        if not self.size:
            why = "is empty: there is not a memory snapshot in it"
        elif not self._begun:
            why = "is not a memory snapshot: it is not a pickle"
        else:
            why = "is cut off: its end is missing, dump the snapshot again"
        raise _RefusedError(why)

    def _check(self, data: bytes) -> int:
        """Return up to where the bytes are whole commands that a snapshot may have."""
        at = self._check_begin(data)
        if self.size > self._match_until:
            self._match_until = 1 << self.size.bit_length()
            self._match = _commands(self._match_until)
        match = self._match
        while at < len(data):
            found = match(data, at)
            if found:
                at = found.end()
                continue
            after = self._check_one(data, at)
            if after > len(data):
                break
            at = after
            if self._stopped:
                break
        return at

    def _check_begin(self, data: bytes) -> int:
        if self._begun or len(data) < 2:  # noqa: PLR2004 - the command and its number
            return 0
        if data[0] != _PROTO or data[1] not in _PROTOCOLS:
            raise _RefusedError(_stranger(data))
        self._begun = True
        return 2

    def _check_one(self, data: bytes, at: int) -> int:
        """Return where the command at a place ends, which may be past the data."""
        command = data[at]
        left = len(data) - at
        if command == _STOP:
            self._stopped = True
            return at + 1
        if command == _FRAME:
            return at + 9
        if command == _SHORT_TEXT:
            return at + 2 + (data[at + 1] if left > 1 else 0)
        if command == _TEXT:
            if left < 5:  # noqa: PLR2004 - the command and its length
                return at + 5
            length = int.from_bytes(data[at + 1 : at + 5], "little")
            if length > _LONGEST_TEXT:
                why = "is not a memory snapshot: it has a text of absurd length"
                raise _RefusedError(why)
            return at + 5 + length
        if left < _LONGEST_COMMAND and command in _KNOWN:
            return len(data) + 1
        raise _RefusedError(_unwanted(command))


def _blocks(file: BufferedReader) -> Iterator[bytes]:
    """Yield the unpacked bytes of a file; raise if they are far too many."""
    unpacked = 0
    try:
        for block in blocks(file, _BLOCK):
            unpacked += len(block)
            if unpacked > max(_ALWAYS_UNPACKED, _MOST_PACKED * file.tell()):
                why = "is not a memory snapshot: it unpacks to far more than one would"
                raise _RefusedError(why)
            yield block
    except DamagedError as error:
        why = f"is damaged: {error}"
        raise _RefusedError(why) from None


def _containers(block: bytes) -> int:
    """Return how many lists and dicts a block can begin at most."""
    return block.count(b"]") + block.count(b"}")


def _commands(size: int) -> Callable[[bytes, int], re.Match[bytes] | None]:
    """Return what matches a run of allowed commands in the first bytes of a file.

    A file has fewer places in its memo than it has bytes; the unpickler would make
    room for all places below the one that is named.
    """
    place = b".."
    for at in (2, 3):
        most = min(max(size - 1, 0) >> (8 * at), 255)
        place += b"[\\x00-\\x%02x]" % most
    put = rb"(?:\x94|r" + place + rb"|q.)"
    number = (
        rb"(?:K.|J....|M..|\x8a(?:"
        + b"|".join(b"\\x%02x%b" % (n, b"." * n) for n in _LONG_BYTES)
        + rb"))"
    )
    # Numbers come alone, as key and value, or as the two of a tuple; the byte after
    # them, which tells, must be there. A tuple holds nothing but numbers, as one of
    # tuples of tuples could take forever to be hashed.
    numbers = number + rb"(?:(?=[^KJM\x8a])|" + number + rb"(?:\x86|(?=[^\x86])))"
    short_text = rb"(?:X(?:\x00\x00\x00\x00|\x03\x00\x00\x00...)|\x8c(?:\x00|\x03...))"
    value = rb"(?:h.|j....|" + numbers + rb"|[N\x88\x89]|" + short_text + rb")"
    get = rb"j...."
    name = rb"(?:j....|h.)"
    # An event: its action, four numbers after their keys, two texts after theirs, and
    # the key of its stack. No two numbers follow each other.
    event = (
        rb"\}"
        + put
        + rb"\("
        + name * 2
        + (name + number) * 4
        + (name + rb"(?:j....|h.|" + short_text + put + rb")") * 2
        + name
    )
    # One turn of this loop costs about the same whatever it matches, so what often
    # stands together is matched together. Whichever way a run of commands is taken
    # apart, each part is whole commands.
    turns = (
        event,
        get * 16,
        get * 4,
        get,
        rb"eu",
        rb"h.(?:" + value + put + rb"?)?",
        rb"[\]}]" + put + rb"?\(?",
        numbers,
        put,
        rb"[(aesuN\x88\x89]",
        short_text,
        rb"G........",
    )
    return re.compile(b"(?:" + b"|".join(turns) + b"){1,5000}", re.DOTALL).match


_LONG_BYTES = (6, 8, 7, 5, 4, 9, 3, 2, 1, 0)
_LONGEST_COMMAND = 24  # two long numbers, their tuple, and the byte after
_KNOWN = frozenset(b"]}(aesuN\x88\x89KJM\x8ahjqr\x94GX\x8c\x86")


def _unwanted(command: int) -> str:
    """Say which command it was that a snapshot does not have."""
    names = {ord(known.code): known.name for known in pickletools.opcodes}
    name = names.get(command, f"the unknown command {command}")
    return (
        f"is not a memory snapshot: its pickle uses {name} in a way that none does,"
        " so nothing of it was read"
    )


def _stranger(data: bytes) -> str:
    """Say what a file is that does not begin like a pickle."""
    if data.startswith(b"PK\x03\x04"):
        return "is a zip archive, as torch.save writes: give the snapshot's own pickle"
    if data.lstrip()[:1] in (b"{", b"["):
        return "is JSON, such as a trace, not a memory snapshot: give the .pickle"
    return "is not a memory snapshot: it does not begin as a pickle of torch does"

"""Safe unpickling of plain values: nothing in the pickle can run.

A memory snapshot is a pickle, and a pickle is a program: it may import and call
whatever it likes. Of its commands a snapshot needs only those that build numbers,
texts, lists and dicts, so two walls stand around Python's own unpickler:

- every byte is checked before the unpickler sees it: a command that is not on the
  short list, a text or a number of absurd length, a place in the memo that the file
  is too small for, or a tuple of anything but two numbers ends the reading;
- the unpickler looks up no names and no persistent ids of the file's.

The events of a history are nearly all of a snapshot: dicts of one shape, each with a
stack of frames that came before. As objects they are three times the file. So they are
found in the bytes (``pickled_events``), and the unpickler is given rows instead: runs
of tuples, which leave it at once through its persistent ids. What it makes of the rest
is the pickle's content as ever, with what became of a run in place of its events.

How deep lists are nested does not matter: neither the unpickler nor whoever reads
its result goes down by calling itself.
"""

from __future__ import annotations

import pickle
import pickletools
import re
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from traceq.errors import InputError
from traceq.formats.compression import DamagedError, blocks
from traceq.formats.gc_pause import collecting_paused
from traceq.formats.pickled_events import GET, NUMBER, Events, any_put
from traceq.formats.unmodified_file import unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader
    from pathlib import Path

    from traceq.formats.pickled_columns import Batch

LARGEST = 16 << 30
"""Maximum number of unpacked bytes that are read of a pickle."""
_LONGEST_TEXT = 16 << 20
# An empty list is one byte here and eighty in memory; a snapshot has few of them.
_MOST_CONTAINERS = 1 / 5

# Snapshots shrink to a fortieth at best; what shrinks far more is made to be a bomb.
_MOST_PACKED = 150
_ALWAYS_UNPACKED = 8 << 20

# Each block is made columns, and these have a price of their own.
_BLOCK = 1 << 24
_FEW_CONTAINERS = 1 << 12
_PROTO, _STOP, _FRAME = 0x80, 0x2E, 0x95
_FRAME_SIZE = 9
_TEXT, _SHORT_TEXT = 0x58, 0x8C
_PROTOCOLS = range(2, 6)

# Errors of the unpickler on malformed input, its own included.
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
    """A pickle that is refused; the message follows the file's name."""


class _TakingError(Exception):
    """An error of the taker of events, which is its cause."""


class Taker(Protocol):
    """Consumer of the events of a pickle while it is read."""

    def keep(self, name: bytes, stack: list[Any], /) -> None:
        """Remember a stack by the name that it has from now on."""

    def take(self, events: list[tuple[Any, ...]], /) -> object:
        """Take events, each as key, value, key, value; return what replaces them.

        A value may be the name of a stack.
        """

    def take_columns(self, events: Batch, values: list[Any], /) -> object:
        """Take events as columns of these values; return what replaces them."""


def read_pickle(path: Path, taker: Taker | None = None) -> tuple[Any, int]:
    """Return the plain values in a pickle, gzipped or not, and its unpacked size.

    Without anyone to take them, events are plain values as well.
    """
    try:
        with path.open("rb") as file, unchanged(path, file):
            checked = _Checked(file, as_rows=taker is not None)
            return _load(checked, taker), checked.size
    except _TakingError as error:
        raise error.__cause__ or error from None
    except FileNotFoundError:
        msg = f"{path} does not exist: check the name"
    except IsADirectoryError:
        msg = f"{path} is a directory: give the memory snapshot inside it"
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror or error}"
    except _RefusedError as error:
        msg = f"{path} {error}"
    raise InputError(msg)


def _load(checked: _Checked, taker: Taker | None) -> Any:  # noqa: ANN401 - can be anything
    with collecting_paused():
        try:
            return _Plain(checked, taker).load()
        except _NONSENSE:
            why = "is not a memory snapshot: its pickle is damaged, dump it again"
            raise _RefusedError(why) from None


class _Plain(pickle.Unpickler):
    """Python's unpickler, without its ways out."""

    def __init__(self, checked: _Checked, taker: Taker | None) -> None:
        super().__init__(checked)
        self._checked = checked
        self._taker = taker

    def find_class(self, module: str, name: str) -> NoReturn:
        why = (
            f"is not a memory snapshot: it asks for {module}.{name}, which was not run"
        )
        raise _RefusedError(why)

    def persistent_load(self, pid: Any) -> Any:  # noqa: ANN401 - what replaces events
        """Hand on what ``Events`` has put there; the file's own were refused."""
        if self._taker is None:
            why = "is not a memory snapshot: it points to objects outside itself"
            raise _RefusedError(why)
        try:
            if isinstance(pid, tuple):
                return self._taker.keep(*pid)
            if pid[0] is None:
                return self._taker.take(pid[1::2])
            return self._taker.take_columns(self._checked.next_batch(), pid[1:])
        except Exception as error:
            raise _TakingError from error


class _Checked:
    """A file for the unpickler that holds checked bytes only."""

    def __init__(self, file: BufferedReader, *, as_rows: bool) -> None:
        self.size = 0
        self._blocks = _blocks(file)
        self._unread = b""
        """Bytes read from the file, not yet checked."""
        self._frame = -1
        """Offset of the next frame in ``_unread``; -1 if that is not known."""
        self._ready = b""
        """Checked bytes; those before ``_at`` were passed on."""
        self._at = 0
        self._stopped = False
        self._begun = False
        self._as_rows = as_rows
        self._events = Events(0, 0)
        self._match = _commands(0)
        self._match_until = 0

    def next_batch(self) -> Batch:
        """Return the columns whose values the unpickler was asked for next."""
        return self._events.batches.popleft()

    def read(self, count: int) -> bytes:
        """Return the next bytes, fewer where the pickle ends."""
        parts = []
        while count > 0 and self._some():
            part = self._ready[self._at : self._at + count]
            self._at += len(part)
            count -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def peek(self, count: int) -> bytes:
        """Return the next bytes and stay before them."""
        self._some()
        return self._ready[self._at : self._at + count]

    def readline(self) -> NoReturn:
        """Refuse: only commands that have been refused already are lines of text."""
        raise EOFError

    def _some(self) -> bool:
        """Check more bytes if none are left; return whether there are any."""
        while self._at == len(self._ready) and not self._stopped:
            block = next(self._blocks, b"")
            if not block:
                self._refuse_the_end()
            self.size += len(block)
            if self.size > LARGEST:
                why = f"is larger than {LARGEST >> 30} GiB, which is not read"
                raise _RefusedError(why)
            self._ready = b"".join(self._check(self._unread + block))
            self._at = 0
        return self._at < len(self._ready)

    def _refuse_the_end(self) -> NoReturn:
        if not self.size:
            why = "is empty: there is not a memory snapshot in it"
        elif not self._begun:
            why = "is not a memory snapshot: it is not a pickle"
        else:
            why = "is cut off: its end is missing, dump the snapshot again"
        raise _RefusedError(why)

    def _check(self, data: bytes) -> Iterator[bytes]:
        """Yield commands that a snapshot may have, with its events as rows."""
        at = self._check_begin(data)
        yield data[:at]
        if self.size > self._match_until:
            self._match_until = 1 << self.size.bit_length()
            self._match = _commands(self._match_until)
            self._events.allow(self._match_until)
        data = self._unframed(data)
        containers = 0
        while at < len(data) and not self._stopped:
            after, rows = at, b""
            if self._as_rows:
                after, rows = self._events.commands(data, at)
            yield rows
            if after == at:
                after = self._check_commands(data, at)
                commands = data[at:after]
                containers += commands.count(b"]") + commands.count(b"}")
                if containers > _MOST_CONTAINERS * len(data) + _FEW_CONTAINERS:
                    why = (
                        "is not a memory snapshot: it is made of empty lists and dicts"
                    )
                    raise _RefusedError(why)
                yield commands
            if after == at:
                if data[at] != _FRAME or len(data) - at < _FRAME_SIZE:
                    break
                self._frame = at
                data = self._unframed(data)
            at = after
        self._unread = data[at:]
        self._frame -= at

    def _check_commands(self, data: bytes, at: int) -> int:
        """Return up to where there are whole commands, or the next event."""
        until = self._events.next_after(data, at) if self._as_rows else len(data)
        while at < until and not self._stopped:
            # Bytes that look like an event may be inside of a text or a number.
            match = self._match(data, at, until) or self._match(data, at)
            if match:
                at = match.end()
                continue
            after = self._check_command(data, at)
            if after > len(data):
                break
            at = after
        return at

    def _unframed(self, data: bytes) -> bytes:
        """Return the data without the beginnings of its frames.

        A frame says how many bytes the unpickler should read at once. One that begins
        amid an event would hide it, and the sizes are wrong once events are rows.
        """
        parts, begin = [], 0
        while 0 <= self._frame <= len(data) - _FRAME_SIZE:
            if data[self._frame] != _FRAME:
                self._frame = -1
                break
            parts.append(data[begin : self._frame])
            begin = self._frame + _FRAME_SIZE
            size = int.from_bytes(data[self._frame + 1 : begin], "little")
            self._frame = begin + size
        if not parts:
            return data
        self._frame -= len(parts) * _FRAME_SIZE
        return b"".join((*parts, data[begin:]))

    def _check_begin(self, data: bytes) -> int:
        if self._begun or len(data) < 2:  # noqa: PLR2004 - the command and its number
            return 0
        if data[0] != _PROTO or data[1] not in _PROTOCOLS:
            raise _RefusedError(_stranger(data))
        self._begun = True
        self._frame = 2
        self._events = Events(data[1], self._match_until)
        return 2

    def _check_command(self, data: bytes, at: int) -> int:
        """Return the end of the command at a place, which may be past the data."""
        command = data[at]
        left = len(data) - at
        if command == _STOP:
            self._stopped = True
            return at + 1
        if command == _FRAME:
            return len(data) + 1
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


def _commands(size: int) -> Callable[..., re.Match[bytes] | None]:
    """Return a pattern of a run of allowed commands in the first bytes of a file."""
    # Numbers come alone, as key and value, or as the two of a tuple; the byte after
    # them, which tells, must be there. A tuple holds nothing but numbers, as one of
    # tuples of tuples could take forever to be hashed.
    numbers = NUMBER + rb"(?:(?=[^KJM\x8a])|" + NUMBER + rb"(?:\x86|(?=[^\x86])))"
    short_text = rb"(?:X(?:\x00\x00\x00\x00|\x03\x00\x00\x00...)|\x8c(?:\x00|\x03...))"
    value = rb"(?:" + GET + rb"|" + numbers + rb"|[N\x88\x89]|" + short_text + rb")"
    get, put = rb"j....", any_put(size)
    # One turn of this loop costs about the same whatever it matches, so what often
    # stands together is matched together. Whichever way a run of commands is taken
    # apart, each part is whole commands.
    turns = (
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


_LONGEST_COMMAND = 24  # two long numbers, their tuple, and the byte after
_KNOWN = frozenset(b"]}(aesuN\x88\x89KJM\x8ahjqr\x94GX\x8c\x86")


def _unwanted(command: int) -> str:
    """Say which command it was that a snapshot does not have."""
    names = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
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

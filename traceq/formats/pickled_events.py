"""Events of an allocator history in the bytes of a pickle, and their replacement rows.

torch pickles an event as a dict: its action, three numbers or more, some texts, and a
list of frames that came before, each by its place in the memo. In the commands of a
pickle, which ``python -m pickletools`` shows:

    } put (  key action  key number  key number ...  key ] put ( get get ... e  u

As a row it is the same without the dict and the list. ``N`` is there for what is put in
the memo where the dict was, and the stack is a name of four bytes, which others that
point to the list find in the memo in its place:

    N put (  key action  key number  key number ...  key name put  t

A run of rows is a list that the unpickler hands on as a persistent id, and so is each
stack, when it comes for the first time, with its name. Names are bytes, which a file
cannot have of its own.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from typing import TYPE_CHECKING

from traceq.formats.pickled_columns import CompiledEvents
from traceq.native import available

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from traceq.formats.pickled_columns import Batch

GET = rb"(?:j....|h.)"
_LONG_BYTES = (6, 8, 7, 5, 4, 9, 3, 2, 1, 0)
NUMBER = (
    rb"(?:K.|J....|M..|\x8a(?:"
    + b"|".join(b"\\x%02x%b" % (n, b"." * n) for n in _LONG_BYTES)
    + rb"))"
)

_ANY_PUT = rb"(?:\x94|r....|q.)?"
_DICT = re.compile(rb"\}" + _ANY_PUT + rb"\(", re.DOTALL)
_PUT = re.compile(_ANY_PUT, re.DOTALL)
_PAIR = re.compile(
    rb"(?P<key>%b)(?:%b|(?P<text>X.\0\0\0|\x8c.)|(?P<list>\])|[\x88\x89]|%b(?:%b\x86)?)"
    % (GET, GET, NUMBER, NUMBER),
    re.DOTALL,
)
# One turn of a loop takes as long as eight commands that stand there.
_GETS = rb"\((?:" + rb"j...." * 8 + rb")*" + GET + rb"*e"
_STACK = re.compile(_GETS + rb"|" + GET + rb"a|", re.DOTALL)
# What may be one, to be looked at once, however often it comes: up to the end of the
# list and of the event.
_MAYBE_GETS = rb"\([^e]*(?:e[^u][^e]*)*?e(?=u)"
_HEAD_PAIRS = 4
_MOST_SHAPES, _MOST_LENGTHS = 256, 8
_IMPLICIT_PUTS = 4
"""The protocol from which on a put does not name its place."""
_STACK_AT, _REST = 2, 5
_SHORTEST, _LONGEST = 1 << 14, 1 << 20
# Stacks that are all different would take more than what they save.
_MOST_KEPT = 64 << 20


def any_put(size: int) -> bytes:
    """Return a pattern of a put in the first bytes of a file, of any protocol."""
    return rb"(?:\x94|" + _named_put(size) + rb"|q.)"


def _named_put(size: int) -> bytes:
    """Return a pattern of a put at a place that a file of this size can have.

    A file has fewer places in its memo than it has bytes; the unpickler would make
    room for all places below the one that is named.
    """
    most = [min(max(size - 1, 0) >> (8 * at), 255) for at in (2, 3)]
    return rb"r..[\x00-\x%02x][\x00-\x%02x]" % tuple(most)


class Events:
    """Finds events in the commands of a pickle."""

    def __init__(self, protocol: int, size: int) -> None:
        self._protocol = protocol
        self._shape = _Shape()
        self._shapes: set[_Shape] = set()
        self._names = {b"": b""}
        self._stack_bytes = 0
        self._window = _SHORTEST
        self._compiled: CompiledEvents | None = None
        if available():
            self._compiled = CompiledEvents(implicit=protocol >= _IMPLICIT_PUTS)
        self.batches: deque[Batch] = deque()
        """Those that commands ask values for, in order."""
        self.allow(size)

    def allow(self, size: int) -> None:
        """Say how many bytes of the file there are."""
        self._size = size
        implicit = self._protocol >= _IMPLICIT_PUTS
        self._put = rb"\x94" if implicit else _named_put(size)

    def next_after(self, data: bytes, at: int) -> int:
        """Return the possible start of the next event, or the end of the data."""
        match = _begin(self._put).search(data, at + 1)
        return match.start() if match else len(data)

    def commands(self, data: bytes, at: int) -> tuple[int, bytes]:
        """Return the end of the events that begin at a place, and commands for them."""
        if not _begin(self._put).match(data, at):
            return at, b""
        if self._compiled and (read_batch := self._compiled.read(data, at, self._size)):
            end, commands, batch = read_batch
            self.batches.append(batch)
            return end, commands + b"Q"
        return self._rows(data, at)

    def _rows(self, data: bytes, at: int) -> tuple[int, bytes]:
        first = self._first(data, at)
        if first == at:
            return at, b""
        end = min(max(at + self._window, first), len(data))
        maybe = _event(self._put, self._shape, _MAYBE_GETS).findall(data, at, end)
        new = {event[_STACK_AT] for event in maybe}.difference(self._names)
        if all(map(_STACK.fullmatch, new)):
            matches = maybe
        else:
            matches = _event(self._put, self._shape, _GETS).findall(data, at, end)
            new = {event[_STACK_AT] for event in matches}.difference(self._names)
        # The last group holds the rest, up to the end, that is no event.
        rest = len(matches.pop()[-1]) if matches[-1][-1] else 0
        # Where events that cannot be rows are frequent, short looks ahead are cheaper.
        go_on = 2 * rest < self._window
        self._window = min(2 * self._window, _LONGEST) if go_on else _SHORTEST
        heads, puts, stacks, values, _ = zip(*matches, strict=True)
        named = b"".join(self._named(new))
        names = map(self._name if self._full else self._names.__getitem__, stacks)
        rows = zip(heads, names, values, puts, repeat(b"tN"), strict=False)
        return end - rest, named + b"](N" + b"".join(chain.from_iterable(rows)) + b"eQ"

    def _first(self, data: bytes, at: int) -> int:
        """Return the end of the event at a place; the place itself if it is unknown."""
        for _ in range(2):
            match = _event(self._put, self._shape, _GETS).match(data, at)
            if match and match.lastindex != _REST:
                return match.end()
            shape = self._shape.of(data, at)
            if not shape or shape == self._shape:
                break
            if shape not in self._shapes and len(self._shapes) == _MOST_SHAPES:
                break
            self._shapes.add(shape)
            self._shape = shape
        return at

    def _named(self, stacks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield commands that hand on stacks with their new names."""
        for stack in stacks:
            if not self._full:
                name = b"C\x04" + len(self._names).to_bytes(4, "little")
                self._names[stack] = name
                self._stack_bytes += len(stack)
                yield name + b"]" + stack + b"\x86Q0"

    @property
    def _full(self) -> bool:
        return self._stack_bytes > _MOST_KEPT

    def _name(self, stack: bytes) -> bytes:
        return self._names.get(stack, b"]" + stack)


@dataclass(frozen=True)
class _Shape:
    """The layout of a file's events."""

    keys: tuple[bytes, ...] = (b"",) * (_HEAD_PAIRS + 1)
    """The commands that get them; an event may lack the last."""
    lengths: tuple[int, ...] = ()
    """Lengths of the texts at their first occurrence."""

    def of(self, data: bytes, at: int) -> _Shape | None:
        """Return the shape of the event at a place, with the texts of those before."""
        lengths = self.lengths
        keys: list[bytes] = []
        at = _past(_DICT, data, at)
        while pair := _PAIR.match(data, at):
            keys.append(pair["key"])
            if pair["list"]:
                break
            at = pair.end()
            if pair["text"]:
                length = pair["text"][1]
                at += length
                if length not in lengths:
                    lengths = (*lengths, length)[-_MOST_LENGTHS:]
            at = _past(_PUT, data, at)
        if len(keys) <= _HEAD_PAIRS or (not pair and data[at : at + 1] != b"u"):
            return None
        if self.keys[:-1] == (*keys,):
            return _Shape(self.keys, lengths)
        return _Shape((*keys,), lengths)


def _past(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    match = pattern.match(data, at)
    return match.end() if match else at


@cache
def _begin(put: bytes) -> re.Pattern[bytes]:
    """Return a pattern of the first commands of an event."""
    return re.compile(rb"\}" + _head(put), re.DOTALL)


@cache
def _event(put: bytes, shape: _Shape, gets: bytes) -> re.Pattern[bytes]:
    """Return a pattern of an event of this shape.

    Its groups are all but the last value, where the list of frames is put, the list,
    or any other last value; and whatever comes after the last event. A list may be
    built in parts, of which one ends here.
    """
    value = _value(put, shape.lengths)
    keys = [*map(re.escape, shape.keys)]
    head = _head(put, keys) + b"".join(key + value for key in keys[_HEAD_PAIRS:-1])
    stack = rb"\](" + put + rb")(" + gets + rb"|" + GET + rb"a)"
    last = rb"(" + value + rb"|\]" + put + rb")"
    return re.compile(
        rb"\}(%b(?:%b)?)(?:%b|%b)?u(?:e\()?|(.+)" % (head, keys[-1], stack, last),
        re.DOTALL,
    )


def _head(put: bytes, keys: Sequence[bytes] = (GET,) * _HEAD_PAIRS) -> bytes:
    """Return a pattern of an event's action and three numbers."""
    action, *numbers = keys[:_HEAD_PAIRS]
    return put + rb"\(" + action + GET + b"".join(key + NUMBER for key in numbers)


def _value(put: bytes, lengths: Iterable[int]) -> bytes:
    """Return a pattern of a number, a pair of numbers, a text, or an earlier value."""
    numbers = NUMBER + rb"(?:" + NUMBER + rb"\x86" + put + rb")?"
    texts = b"".join(
        rb"|(?:X\x%02x\0\0\0|\x8c\x%02x).{%d}%b" % (n, n, n, put) for n in lengths
    )
    return rb"(?:j....|h." + texts + rb"|[\x88\x89]|" + numbers + rb")"

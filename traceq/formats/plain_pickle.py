"""Plain values of a small pickle, without Python's unpickler: nothing can run.

What torch's own pickler writes of numbers, texts, lists, dicts and pairs of texts needs
twenty commands, and these are all that there are here. Each makes at most one value, so
the values are never more than the bytes. A dict's keys are texts and numbers, and a
pair has nothing but those, so no nesting has to be hashed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_PROTOCOLS = (2, 3, 4, 5)
_CONSTANTS = {ord("N"): None, 0x88: True, 0x89: False}
_STOP, _MARK, _LONG, _PROTO, _FRAME = ord("."), ord("("), 0x8A, 0x80, 0x95
# Value, and the number of bytes after the command.
_NUMBERS: dict[int, tuple[str, int]] = {
    ord("K"): ("<B", 1),
    ord("M"): ("<H", 2),
    ord("J"): ("<i", 4),
    ord("G"): (">d", 8),
}
_TEXTS = {ord("X"): ("<I", 4), 0x8C: ("<B", 1), 0x8D: ("<Q", 8)}
_GETS = {ord("h"): ("<B", 1), ord("j"): ("<I", 4)}
_PUTS = {ord("q"): ("<B", 1), ord("r"): ("<I", 4)}
_MEMOIZE = 0x94


class DamagedPickleError(Exception):
    """A pickle that is cut off, damaged, or has more than plain values."""


def plain_values(data: bytes) -> Any:  # noqa: ANN401 - can be anything
    """Return the value in a pickle.

    >>> import pickle
    >>> plain_values(pickle.dumps({"a": [1, None, ("x", "y")]}, protocol=2))
    {'a': [1, None, ('x', 'y')]}
    """
    try:
        return _Stack(data).value()
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise DamagedPickleError from error


class _Stack:
    """The values of a pickle while it is read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._values: list[Any] = []
        self._below: list[list[Any]] = []
        """Values below each mark."""
        self._memo: dict[int, Any] = {}
        self._commands: dict[int, Callable[[], None]] = {
            _MARK: self._mark,
            ord("]"): lambda: self._values.append([]),
            ord("}"): lambda: self._values.append({}),
            ord("a"): self._append,
            ord("e"): self._append_all,
            ord("s"): self._set,
            ord("u"): self._set_all,
            0x86: self._pair,
            _LONG: self._long,
            _MEMOIZE: lambda: self._remember(len(self._memo)),
        }

    def value(self) -> Any:  # noqa: ANN401 - can be anything
        """Run all commands, and return the value that is left."""
        data = self._data
        if data[0] != _PROTO or data[1] not in _PROTOCOLS:
            raise ValueError
        self._at = 2
        while True:
            command = data[self._at]
            self._at += 1
            if command in _GETS:
                self._values.append(self._memo[self._number(*_GETS[command])])
            elif command in _TEXTS:
                self._text(self._number(*_TEXTS[command]))
            elif command in _PUTS:
                self._remember(self._number(*_PUTS[command]))
            elif command in _NUMBERS:
                self._values.append(self._number(*_NUMBERS[command]))
            elif command in _CONSTANTS:
                self._values.append(_CONSTANTS[command])
            elif command == _STOP:
                (value,) = self._values
                return value
            elif command == _FRAME:
                self._at += 8
            else:
                self._commands[command]()

    def _number(self, form: str, length: int) -> Any:  # noqa: ANN401 - of any kind
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += length
        return value

    def _bytes(self, length: int) -> bytes:
        begin, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise ValueError(length)
        return self._data[begin : self._at]

    def _text(self, length: int) -> None:
        self._values.append(self._bytes(length).decode("utf-8", "surrogatepass"))

    def _long(self) -> None:
        digits = self._bytes(self._number("<B", 1))
        self._values.append(int.from_bytes(digits, "little", signed=True))

    def _remember(self, place: int) -> None:
        self._memo[place] = self._values[-1]

    def _mark(self) -> None:
        self._below.append(self._values)
        self._values = []

    def _since_mark(self) -> list[Any]:
        values, self._values = self._values, self._below.pop()
        return values

    def _append(self) -> None:
        value = self._values.pop()
        _list(self._values[-1]).append(value)

    def _append_all(self) -> None:
        values = self._since_mark()
        _list(self._values[-1]).extend(values)

    def _set(self) -> None:
        value, key = self._values.pop(), self._values.pop()
        _dict(self._values[-1])[_simple(key)] = value

    def _set_all(self) -> None:
        values = self._since_mark()
        keys = map(_simple, values[::2])
        _dict(self._values[-1]).update(zip(keys, values[1::2], strict=True))

    def _pair(self) -> None:
        second, first = self._values.pop(), self._values.pop()
        self._values.append((_simple(first), _simple(second)))


def _simple(value: Any) -> Any:  # noqa: ANN401 - any value
    if isinstance(value, (list, dict, tuple)):
        raise TypeError
    return value


def _list(value: Any) -> list[Any]:  # noqa: ANN401 - any value
    if not isinstance(value, list):
        raise TypeError
    return value


def _dict(value: Any) -> dict[Any, Any]:  # noqa: ANN401 - any value
    if not isinstance(value, dict):
        raise TypeError
    return value

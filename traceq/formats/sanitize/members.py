r"""JSON text split at the members of an object, so that some can be removed.

The kept members keep their bytes: blanks, order, and the form of numbers.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_KEY = re.compile(r'(\s*)("(?:[^"\\]|\\.)*")\s*:\s*')
_NEXT = re.compile(r"\s*(,|\Z)")


def _refuse(constant: str) -> None:
    """Refuse what Python reads as a number and JSON does not have, as NaN."""
    raise ValueError(constant)


_DECODER = json.JSONDecoder(parse_constant=_refuse)


class Member(NamedTuple):
    """One ``"key": value`` of an object, with the blanks around it."""

    key: str
    value: Any
    """A text without halves of surrogate pairs, which no table holds."""
    before: str
    """Blanks, key and colon."""
    written: str
    """The value's own text."""
    after: str

    @property
    def text(self) -> str:
        """The text between the commas."""
        return self.before + self.written + self.after


def members(text: str) -> list[Member] | None:
    """Return the members of an object whose braces are taken off.

    None if the text is not one.

    >>> [(m.key, m.written) for m in members(' "a": [1.50],"b":{}') or []]
    [('a', '[1.50]'), ('b', '{}')]
    """
    parsed: list[Member] = []
    if not text.strip():
        return parsed
    at = 0
    while key := _KEY.match(text, at):
        try:
            value, end = _DECODER.raw_decode(text, key.end())
            name = json.loads(key[2]) if "\\" in key[2] else key[2][1:-1]
        except (ValueError, RecursionError):
            return None
        following = _NEXT.match(text, end)
        if following is None:
            return None
        if isinstance(value, str) and "\\u" in text[key.end() : end]:
            value = value.encode(errors="replace").decode()
        written, after = text[key.end() : end], text[end : following.start(1)]
        parsed.append(Member(name, value, key[0], written, after))
        at = following.end()
        if not following[1]:
            return parsed
    return None


def changed(parsed: list[Member], change: Callable[[Member], str | None]) -> str:
    """Return members as text with other values, and without those that are None.

    Whichever comes first stands where the first one stood, and the same at the end.
    """
    pieces = [
        row if written == row.written else row._replace(written=written)
        for row in parsed
        if (written := change(row)) is not None
    ]
    if not pieces:
        return ""
    texts = [part.text for part in pieces]
    if pieces[0].key != parsed[0].key:
        before = parsed[0].before
        texts[0] = before[: before.index('"')] + texts[0].lstrip()
    if pieces[-1].key != parsed[-1].key:
        texts[-1] = texts[-1].rstrip() + parsed[-1].after
    return ",".join(texts)


def rewritten(text: str, change: Callable[[Member], str | None]) -> str | None:
    r"""Return an object's text with other values, and without those that are None.

    None if the text, which has its braces, is not an object.

    >>> rewritten('{ "a": 1,"b": 2.50 }', lambda one: {"b": one.written}.get(one.key))
    '{ "b": 2.50 }'
    """
    parsed = members(text.strip()[1:-1]) if text.strip().startswith("{") else None
    return None if parsed is None else "{" + changed(parsed, change) + "}"

"""Untrusted text, made safe for terminals, JSON and sheets."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_UNUSUAL = re.compile(r"[^ -~]")
_FORMULA = ("=", "+", "-", "@")
_NUMBER = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?", re.IGNORECASE)
# No name that a compiler has made is as long, nor any sentence of traceq's.
_LONGEST = 2_000


def printable(text: str) -> str:
    r"""Return a text that cannot move the cursor, ring the bell, hide itself or flood.

    Names in a trace come from strangers, and terminals obey control codes.

    >>> print(printable("aten::mm"), printable("\x1b[2Jgone"))
    aten::mm \x1b[2Jgone
    >>> printable("a" * 200_000)[-27:]
    'aaa… (198,000 more letters)'
    """
    left = len(text) - _LONGEST
    return (
        visible(text)
        if left <= 0
        else f"{visible(text[:_LONGEST])}… ({left:,} more letters)"
    )


def visible(text: str) -> str:
    """Return a text as ``printable`` does, however long it is."""
    return _UNUSUAL.sub(lambda match: _made_visible(match[0], _python_escape), text)


def as_unicode(text: str) -> str:
    r"""Return a file's name as text that can be written, whatever its bytes are.

    >>> as_unicode("run/\udcff.json") == "run/\ufffd.json"
    True
    """
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _made_visible(character: str, escape: Callable[[str], str]) -> str:
    """Escape a character that acts instead of being seen, and keep any other."""
    acts = unicodedata.category(character) in _INVISIBLE
    return escape(character) if acts else character


def _python_escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _json_escape(character: str) -> str:
    return json.dumps(character)[1:-1] if character != "\x7f" else r"\u007f"


def plain_json(text: str) -> str:
    r"""Return JSON in which no character can act on a terminal, with the same meaning.

    >>> print(plain_json('"\u202egnp.exe"'))
    "\u202egnp.exe"
    """
    # Its line ends are its own: those of names are escaped already.
    return "\n".join(
        _UNUSUAL.sub(lambda match: _made_visible(match[0], _json_escape), line)
        for line in text.split("\n")
    )


def plain_csv(text: str) -> str:
    r"""Return a text for a cell of a sheet, which would compute what begins like "=".

    >>> plain_csv("=1+1"), plain_csv("aten::mm"), plain_csv("-1")
    ("'=1+1", 'aten::mm', '-1')
    """
    text = visible(text)
    if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text

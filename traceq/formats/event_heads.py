"""Event heads: the text before an event's times, decoded once per distinct text."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

_AROUND = " ,\n\r\t"
# Around a name with quotes in it, which torch up to 2.13 does not escape. Each is
# searched once: as one pattern they would be tried at every key of this name.
_NAME = re.compile(r'"name":\s*"')
_PID = '"pid":'
_LONGEST_GAP = 64


# The address of an object differs from call to call, what is called does not.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
_BEFORE_ADDRESS = " at 0x"
_KEYS = ("ph", "cat", "name", "pid", "tid", "caller")


class Head(NamedTuple):
    """The part of an event's text before its times, parsed."""

    phase: str
    category: str
    name: str
    process: str
    thread: str
    caller: str = ""
    """Of a Python call, where collect has written it: as ``model.py(42): forward``."""


def parse(text: str) -> dict[str, Any]:
    """Parse ``"key": value, …`` or ``{"key": value, …}``; empty if it is neither."""
    text = text.strip(_AROUND)
    if not text.startswith("{"):
        # The first quote of an event went with the separator; a part that was cut out
        # of arguments may have their last brace.
        quote = "" if text.startswith('"') else '"'
        text = "{" + quote + text.removesuffix("}") + "}"
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


@lru_cache(maxsize=1 << 16)
def parse_head(text: str) -> Head:
    """Parse the text before the times of an event."""
    head = parse(text) or _parse_bare(text.strip(_AROUND))
    # There are thousands of them, each once: nothing is made that is not needed.
    phase, category, name, process, thread, caller = map(head.get, _KEYS)
    name = "" if name is None else str(name)
    return Head(
        "" if phase is None else str(phase),
        "" if category is None else str(category),
        _ADDRESS.sub(">", name) if _BEFORE_ADDRESS in name else name,
        "" if process is None else str(process),
        "" if thread is None else str(thread),
        "" if caller is None else str(caller),
    )


def _parse_bare(text: str) -> dict[str, Any]:
    """Parse what has a name with quotes in it: up to the last key behind a text."""
    name, pid = _NAME.search(text), text.rfind(_PID)
    while name and pid >= name.end():
        before = text[max(name.end(), pid - _LONGEST_GAP) : pid]
        if (stripped := before.rstrip()).endswith('",'):
            end = pid - len(before) + len(stripped) - len('",')
            bare = {"name": text[name.end() : end]}
            return parse(text[: name.start()]) | bare | parse(text[pid:])
        pid = text.rfind(_PID, 0, pid)
    return {}


def tidy(args: str | None) -> str | None:
    """Return arguments without the blanks that the file's layout puts into them."""
    if not args or not args.strip():
        return None
    try:
        return orjson.dumps(orjson.loads(args)).decode()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        # Values nested deeper than orjson writes stay as they are, blanks included.
        return args.strip()

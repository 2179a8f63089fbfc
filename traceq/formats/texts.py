"""The texts that stand before an event's times, decoded once for each distinct text."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

_AROUND = " ,\n\r\t"
# Quotes inside a name, which torch up to 2.13 does not escape.
_BARE_NAME = re.compile(r'^(.*?)"name":\s*"(.*)",\s*("pid":.*)$', re.DOTALL)


# The address of an object differs from call to call, what is called does not.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")


class Head(NamedTuple):
    """What an event's text says before its times."""

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
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


@lru_cache(maxsize=1 << 16)
def parse_head(text: str) -> Head:
    """Parse what stands before the times of an event."""
    found = parse(text)
    if not found and (bare := _BARE_NAME.match(text.strip(_AROUND))):
        found = parse(bare[1]) | {"name": bare[2]} | parse(bare[3])
    keys = ("ph", "cat", "name", "pid", "tid", "caller")
    head = Head(*("" if found.get(key) is None else str(found[key]) for key in keys))
    return head._replace(name=_ADDRESS.sub(">", head.name))


def tidy(args: str | None) -> str | None:
    """Return arguments without the blanks that the file's layout puts into them."""
    if not args or not args.strip():
        return None
    try:
        return orjson.dumps(orjson.loads(args)).decode()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        # What is nested deeper than orjson writes stays as it is, blanks included.
        return args.strip()

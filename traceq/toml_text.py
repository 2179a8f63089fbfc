"""A little TOML, written by hand: values, and tables in one line."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def value(found: object) -> str:
    r"""Return a value as TOML.

    >>> print(value({"kernels": 4, "backends": ["aten"]}), value('a "b"'))
    { kernels = 4, backends = ["aten"] } "a \"b\""
    """
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, (int, float)):
        return repr(found)
    if isinstance(found, dt.date):
        return found.isoformat()
    if isinstance(found, (list, tuple)):
        return "[" + ", ".join(map(value, found)) + "]"
    if isinstance(found, dict):
        return "{ " + ", ".join(lines(found)) + " }"
    return json.dumps(str(found), ensure_ascii=False).replace("\x7f", "\\u007F")


def lines(table: Mapping[str, object]) -> list[str]:
    """Return a line for each entry of a table."""
    return [f"{_key(key)} = {value(entry)}" for key, entry in table.items()]


def _key(key: str) -> str:
    plain = key.replace("-", "").replace("_", "")
    return key if plain.isascii() and plain.isalnum() else value(key)

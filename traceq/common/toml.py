"""TOML: a reader of files, and a writer of simple values."""

from __future__ import annotations

import datetime as dt
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from traceq.errors import TraceqError


def read(file: Path, refused: type[TraceqError]) -> dict[str, Any]:
    """Return what a file holds; raise ``refused`` if it cannot be read."""
    # Only where there is such a file.
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415
    else:
        import tomli as tomllib  # noqa: PLC0415
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{file} cannot be read: {error.strerror or error}"
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"{file} is not TOML: {error}"
    raise refused(msg)


def value(entry: object) -> str:
    r"""Return a value as TOML.

    >>> print(value({"kernels": 4, "backends": ["aten"]}), value('a "b"'))
    { kernels = 4, backends = ["aten"] } "a \"b\""
    """
    if isinstance(entry, bool):
        return "true" if entry else "false"
    if isinstance(entry, (int, float)):
        return repr(entry)
    if isinstance(entry, dt.date):
        return entry.isoformat()
    if isinstance(entry, (list, tuple)):
        return "[" + ", ".join(map(value, entry)) + "]"
    if isinstance(entry, dict):
        return "{ " + ", ".join(lines(entry)) + " }"
    return json.dumps(str(entry), ensure_ascii=False).replace("\x7f", "\\u007F")


def lines(table: Mapping[str, object]) -> list[str]:
    """Return a line for each entry of a table."""
    return [f"{_key(key)} = {value(entry)}" for key, entry in table.items()]


def _key(key: str) -> str:
    plain = key.replace("-", "").replace("_", "")
    return key if plain.isascii() and plain.isalnum() else value(key)

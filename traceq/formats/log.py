"""What a program printed, line by line."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import polars as pl

from traceq.errors import InputError
from traceq.formats.gunzip import DamagedGzipError, blocks

if TYPE_CHECKING:
    from pathlib import Path

LOG = pl.Schema({"line": pl.Int64(), "text": pl.String()})

# Warnings come early, and a log that is longer repeats itself.
_LIMIT = 64 << 20
_BLOCK = 1 << 20


def read_log(path: Path) -> pl.DataFrame:
    """Return the lines of a log, plain or gzipped, with their numbers from 1."""
    try:
        with path.open("rb") as file:
            content = b"".join(islice(blocks(file, _BLOCK), _LIMIT // _BLOCK))
    except IsADirectoryError:
        msg = f"{path} is a directory: give the log file inside it"
        raise InputError(msg) from None
    except (OSError, DamagedGzipError) as error:
        msg = f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(msg) from None
    return log_lines(content.decode(errors="replace"))


def log_lines(text: str) -> pl.DataFrame:
    """Return the lines of a text, with their numbers from 1."""
    lines = text.splitlines()
    return pl.DataFrame({"line": range(1, len(lines) + 1), "text": lines}, schema=LOG)

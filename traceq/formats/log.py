"""Logs: the lines that a program printed."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.errors import InputError
from traceq.formats.compression import DamagedError, blocks

if TYPE_CHECKING:
    from pathlib import Path

LOG = pl.Schema({"line": pl.Int64(), "text": pl.String()})

# Warnings come early, and a log that is longer repeats itself.
LARGEST = 16 << 20
"""Maximum number of unpacked bytes that are read of a log."""
_MOST_LINES = 500_000
_LONGEST_LINE = 4_000
_BLOCK = 1 << 20
_HEAD = 1 << 16
# What Python puts in the place of bytes that are no text. Logs of other encodings have
# a few, bytes at random more than a third. Heuristic threshold.
_WRONG = "\ufffd"
_MOST_WRONG = 0.25
_LINE = re.compile(r"[^\n]*\n|[^\n]+\Z")


class Log(NamedTuple):
    """The output of a program."""

    lines: pl.DataFrame
    cut: bool
    """True if the log is longer than what was read."""


def read_log(path: Path) -> Log:
    """Return the lines of a log, plain or gzipped, with their numbers from 1."""
    try:
        with path.open("rb") as file:
            unpacked = blocks(file, _BLOCK)
            content = b"".join(islice(unpacked, LARGEST // _BLOCK))
            more = any(unpacked)
    except IsADirectoryError:
        msg = f"{path} is a directory: give the log file inside it"
        raise InputError(msg) from None
    except (OSError, DamagedError) as error:
        msg = f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(msg) from None
    if _is_binary(content[:_HEAD]):
        msg = f"{path} is not a log: it is not text; give what the program printed"
        raise InputError(msg)
    lines = log_lines(content.decode(errors="replace"))
    return Log(lines.head(_MOST_LINES), cut=more or lines.height > _MOST_LINES)


def has_code(lines: pl.DataFrame) -> bool:
    """Return whether a log has code that torch.compile generated (``TORCH_TRACE``)."""
    return bool(
        lines["text"].str.contains('] {"inductor_output_code"', literal=True).any()
    )


def _is_binary(head: bytes) -> bool:
    """Return whether bytes are no text: hardly any of them would be UTF-8.

    >>> _is_binary(b"step 1 loss 2.3"), _is_binary(bytes(range(128, 256)))
    (False, True)
    """
    text = head.decode(errors="replace")
    return text.count(_WRONG) > _MOST_WRONG * len(text)


def log_lines(text: str) -> pl.DataFrame:
    """Return the lines of a text, with their numbers from 1, one more than is read."""
    matches = islice(_LINE.finditer(text), _MOST_LINES + 1)
    lines = [match[0][:_LONGEST_LINE].rstrip("\n\r") for match in matches]
    return pl.DataFrame({"line": range(1, len(lines) + 1), "text": lines}, schema=LOG)

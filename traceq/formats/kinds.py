"""File kinds, by name and first bytes: trace, memory snapshot or log."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

from traceq.formats.compression import DamagedError, blocks

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.formats.compression import Peekable

Kind: TypeAlias = Literal["trace", "snapshot", "log", "zip", "tar", ""]

HEAD = 1 << 20
"""Unpacked bytes that are read to detect the kind of a file."""
PACKED = (".gz", ".zst", ".xz", ".bz2")
SQLITE = b"SQLite format 3\x00"
"""First bytes of an SQLite database."""
COMPILE_RECORD = re.compile(rb'[A-Z]\d{4} [\d:.]+ \d+ \S+\] \{"')
"""Beginning of a record in a log of torch.compile."""
_LOGS = (".log", ".txt", ".out", ".err")
_SNAPSHOTS = (".pickle", ".pkl")
_SNAPSHOT_TABLES = (b"device_traces", b"blocks", b"segments")
_PICKLES = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
_TAR_MAGIC = slice(257, 262)
# Text of a trace before its events, or in the first of them.
_TRACE = re.compile(
    rb'\s*[\[{].*?"(?:traceEvents|ph|schemaVersion|deviceProperties)"', re.DOTALL
)


def bare(name: str) -> str:
    """Return a file's name in small letters, without the ending of a compression.

    >>> bare("Run.PT.trace.json.gz")
    'run.pt.trace.json'
    """
    small = name.lower()
    return next(
        (small.removesuffix(end) for end in PACKED if small.endswith(end)), small
    )


def is_log(name: str) -> bool:
    """Return whether a file has the name of a log."""
    return bare(name).endswith(_LOGS)


def is_compile_log(path: Path) -> bool:
    """Return whether a file begins as a log of torch.compile (``TORCH_TRACE``)."""
    try:
        with path.open("rb") as file:
            return bool(COMPILE_RECORD.match(head_of(file, 1 << 16)))
    except OSError:
        return False


def is_snapshot_name(name: str) -> bool:
    """Return whether a file has the name of a memory snapshot."""
    return bare(name).endswith(_SNAPSHOTS)


def is_snapshot_database(path: Path) -> bool:
    """Return whether a file is an SQLite database with the tables of a snapshot."""
    try:
        with path.open("rb") as file:
            # The names of tables are in the first pages.
            head = file.read(1 << 16)
    except OSError:
        return False
    return head.startswith(SQLITE) and all(name in head for name in _SNAPSHOT_TABLES)


def kind(name: str, head: bytes) -> Kind:
    """Return the kind of a file, by its name and its first unpacked bytes."""
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if head[_TAR_MAGIC] == b"ustar":
        return "tar"
    if is_log(name):
        return "log"
    if head.startswith(_PICKLES):
        return "" if is_dump(head) else "snapshot"
    begins = head.removeprefix(b"\xef\xbb\xbf")
    return "trace" if _TRACE.match(begins) else ""


def is_dump(head: bytes) -> bool:
    """Return whether a file begins as a dump of NCCL's flight recorder."""
    if not head.startswith((*_PICKLES, b"{")) or b"traceEvents" in head:
        return False
    # JSON has its entries first, a pickle the groups.
    return b"entries" in head and (b"pg_config" in head or b"profiling_name" in head)


def head_of(file: Peekable, most: int = HEAD) -> bytes:
    """Return the first bytes of a stream, unpacked; fewer if it is damaged."""
    head = b""
    with suppress(DamagedError):
        for block in blocks(file, most):
            head += block
            if len(head) >= most:
                break
    return head


def kind_of(path: Path, most: int = HEAD) -> Kind:
    """Return the kind of a file; empty if it is unreadable or not a file."""
    try:
        with path.open("rb") as file:
            return kind(path.name, head_of(file, most))
    except OSError:
        return ""

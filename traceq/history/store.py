"""The SQLite file of digests.

The file is untrusted: its schema must be exactly the one below, so that it has no view,
trigger or computed column that SQLite would run; anything else ends in one sentence. A
file that is not a history is never written to.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from math import isfinite
from types import NoneType
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from traceq.errors import InputError, UsageError
from traceq.history.digest import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from traceq.history.digest import Digest

VERSION = 1
_APPLICATION = 0x74726351
# Numbers beside the digests, so that all runs are read without opening any digest.
_RUNS = (
    "CREATE TABLE runs (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, series TEXT"
    " NOT NULL, at_ns INTEGER NOT NULL, commit_id TEXT NOT NULL, name TEXT NOT NULL,"
    " gpu TEXT NOT NULL, ranks INTEGER NOT NULL, step_from TEXT NOT NULL, step_ns REAL,"
    " error_ns REAL, step_count INTEGER, busy_ns REAL, idle_ns REAL, kernels REAL,"
    " syncs REAL, allocated REAL, reserved REAL)"
)
_DIGESTS = "CREATE TABLE digests (run INTEGER PRIMARY KEY, content BLOB NOT NULL)"
_SCHEMA = {
    ("table", "runs", _RUNS),
    ("table", "digests", _DIGESTS),
    ("index", "sqlite_autoindex_runs_1", None),
}
_COLUMNS = (
    "key, series, at_ns, commit_id, name, gpu, ranks, step_from, step_ns, error_ns,"
    " step_count, busy_ns, idle_ns, kernels, syncs, allocated, reserved"
)
_WAIT_S = 60.0
_HEADER = b"SQLite format 3\0"
_LONGEST_REASON = 100


class Run(NamedTuple):
    """One run as a line of the history; what is not known is None."""

    id: int
    key: str
    """Hash of the content of the run's files."""
    series: str
    at_ns: int
    commit: str
    name: str
    gpu: str
    ranks: int
    step_from: str
    """Source of the step time, as ``measured``; empty if there is none."""
    step_ns: float | None
    error_ns: float | None
    """Standard error of the step time."""
    step_count: int | None
    busy_ns: float | None
    idle_ns: float | None
    kernels: float | None
    syncs: float | None
    allocated: float | None
    reserved: float | None

    @property
    def group(self) -> tuple[str, str, int, str]:
        """Runs of one group are compared."""
        return self.series, self.gpu, self.ranks, self.step_from


_TYPES: tuple[tuple[type, bool], ...] = (
    *((int, False), (str, False), (str, False), (int, False)),
    *((str, False), (str, False), (str, False), (int, False), (str, False)),
    *((float, True), (float, True), (int, True)),
    *((float, True),) * 6,
)


class History:
    """A history that is open for reading."""

    def __init__(self, file: Path, connection: sqlite3.Connection) -> None:
        self.file = file
        self._connection = connection

    def runs(self) -> list[Run]:
        """Return all runs in their order: by time, then as they were added."""
        with _trouble(self.file):
            rows = self._connection.execute(
                f"SELECT id, {_COLUMNS} FROM runs ORDER BY series, gpu, ranks,"  # noqa: S608 - our own names
                " step_from, at_ns, id"
            ).fetchall()
        fitting: set[tuple[type, ...]] = set()
        if not all(_fits(row, fitting) for row in rows):
            raise _refusal(self.file, "a run has a value of another type")
        return [Run(*row) for row in rows]

    def digests(self, runs: Sequence[Run]) -> list[Digest]:
        """Return the digests of runs, in the same order."""
        return [self._digest(run) for run in runs]

    def _digest(self, run: Run) -> Digest:
        with _trouble(self.file):
            row = self._connection.execute(
                "SELECT content FROM digests WHERE run = ?", (run.id,)
            ).fetchone()
        try:
            return unpacked(bytes(row[0]))
        except (ValueError, TypeError) as error:
            reason = f"the digest of {run.name} cannot be read: {error}"
            raise _refusal(self.file, reason) from None


def _fits(row: tuple[object, ...], fitting: set[tuple[type, ...]]) -> bool:
    """Return whether the values are of the types of a run, and finite.

    ``fitting`` collects types that fit: most rows have those of another one.
    """
    kinds = tuple(map(type, row))
    if kinds not in fitting:
        for kind, (wanted, may_lack) in zip(kinds, _TYPES, strict=True):
            if kind is not wanted and not (kind is NoneType and may_lack):
                return False
        fitting.add(kinds)
    return isfinite(sum(value for value in row if type(value) is float))


@contextmanager
def reading(file: Path) -> Iterator[History]:
    """Open a history for reading."""
    if not file.is_file():
        msg = f"{file} is not there: traceq history add RUN --db {file} writes it"
        raise InputError(msg)
    _refuse_others(file)
    with closing(_connect(file, "ro")) as connection:
        with _trouble(file):
            if not _is_ours(file, connection):
                raise _refusal(file, "it has no runs")
        connection.set_authorizer(_only_reads)
        yield History(file, connection)


def add(file: Path, entries: Sequence[tuple[str, Digest]]) -> list[bool]:
    """Add digests by key, all or none; return for each whether the file changed.

    A run that is there is replaced if its digest differs, and keeps its place.
    """
    if file.exists():
        _refuse_others(file)
    with closing(_connect(file, "rwc")) as connection, _trouble(file):
        # The lock is taken before anything is read, so that two adds are one by one.
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not _is_ours(file, connection):
                _create(connection)
            changed = [_add(connection, key, digest) for key, digest in entries]
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    return changed


def _add(connection: sqlite3.Connection, key: str, digest: Digest) -> bool:
    content = packed(digest)
    before = connection.execute(
        "SELECT id, content FROM runs JOIN digests ON run = id WHERE key = ?", (key,)
    ).fetchone()
    if before is not None and bytes(before[1]) == content:
        return False
    row = _row(key, digest)
    marks = ", ".join("?" * len(row))
    number = before[0] if before else None
    cursor = connection.execute(
        f"INSERT OR REPLACE INTO runs (id, {_COLUMNS}) VALUES (?, {marks})",  # noqa: S608 - our own names
        (number, *row),
    )
    connection.execute(
        "INSERT OR REPLACE INTO digests (run, content) VALUES (?, ?)",
        (cursor.lastrowid, content),
    )
    return True


def run_of(key: str, digest: Digest) -> Run:
    """Return the line that a digest would have in the history."""
    return Run(0, *_row(key, digest))  # type: ignore[arg-type]  # in the order of a run


def _row(key: str, digest: Digest) -> tuple[object, ...]:
    step, memory = digest.step, digest.memory
    return (
        key,
        digest.series,
        digest.at_ns,
        digest.commit,
        digest.name,
        digest.gpu,
        digest.ranks,
        step.source if step else "",
        step and step.ns,
        step and step.deviation_ns / max(1, step.count) ** 0.5,
        step and step.count,
        digest.busy_ns,
        digest.idle_ns,
        digest.kernels,
        digest.syncs,
        memory and memory.allocated,
        memory and memory.reserved,
    )


def _connect(file: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(file.absolute()))}?mode={mode}"
    with _trouble(file):
        connection = sqlite3.connect(
            uri, uri=True, timeout=_WAIT_S, isolation_level=None
        )
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA mmap_size = 0")
    return connection


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute(_RUNS)
    connection.execute(_DIGESTS)


def _is_ours(file: Path, connection: sqlite3.Connection) -> bool:
    """Return whether a file is a history, False if it is empty; refuse any other."""
    schema = {*connection.execute("SELECT type, name, sql FROM sqlite_master")}
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not schema and not application:
        return False
    if application != _APPLICATION:
        raise _refusal(file, "another program wrote it")
    if version != VERSION:
        raise _refusal(
            file, f"it has version {version}, and this traceq reads {VERSION}"
        )
    if schema != _SCHEMA:
        raise _refusal(file, "its tables are not those that traceq makes")
    return True


def _refuse_others(file: Path) -> None:
    """Refuse a file that is no SQLite database, before SQLite touches it."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(_HEADER))
    except OSError as error:
        msg = f"{file} cannot be read: {error.strerror or error}"
        raise InputError(msg) from None
    if start and start != _HEADER:
        raise _refusal(file, "it is not an SQLite database")


def _refusal(file: Path, reason: str) -> InputError:
    return InputError(f"{file} is not a history of traceq: {reason}")


@contextmanager
def _trouble(file: Path) -> Iterator[None]:
    """Turn what SQLite says into one sentence."""
    try:
        yield
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        words = " ".join(str(error).split())[:_LONGEST_REASON]
        if isinstance(error, sqlite3.OperationalError):
            msg = f"{file} cannot be opened as a history: {words}"
            raise UsageError(msg) from None
        raise _refusal(file, words) from None


def _only_reads(action: int, *_details: object) -> int:
    """Allow what reads tables, and nothing else."""
    reads = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
    return sqlite3.SQLITE_OK if action in reads else sqlite3.SQLITE_DENY

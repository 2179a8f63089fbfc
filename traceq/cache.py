"""Tables of traces that were read before, kept in the user's cache directory.

An entry is a folder named after the size and the SHA-256 of the trace file, inside a
folder named after the code that made it: a changed file or a changed traceq never
meets old tables. Reading a large file only to hash it would take longer than the
tables take to load, so what was hashed is remembered by the file's identity, as git
does. Nothing here may keep a trace from being read: trouble means there is no entry.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import polars as pl

from traceq.errors import TraceqError, UsageError
from traceq.model.facts import Facts
from traceq.model.schema import TABLES
from traceq.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

_FACTS = "facts.json"
_SUMS = "sums.json"
_SEEN = "seen"
_FETCHED = "fetched"
# The names that traceq gives, and nobody else.
_CODE = "code-" + "[0-9a-f]" * 16
_ENTRY = f"{_CODE}/*-" + "[0-9a-f]" * 64
_SEEN_NAME = "[0-9a-f]" * 32 + ".json"
_FETCHED_NAME = "[0-9a-f]" * 64
_MOST_SEEN = 10_000
_ASIDE = "traceq-new-"
_ASIDE_LEFT_S = 24 * 3600
_DEFAULT_LIMIT = 4 << 30
# A file changed this shortly before it was hashed could change again unnoticed.
_UNSETTLED_NS = 2_000_000_000
_BLOCK = 8 << 20
_TROUBLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    pl.exceptions.PolarsError,
    TraceqError,
)

_writers: list[threading.Thread] = []
_given_up = threading.Event()


def directory() -> Path:
    """Return where entries are kept: $TRACEQ_CACHE, or the platform's usual place."""
    if chosen := os.environ.get("TRACEQ_CACHE"):
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError:
        msg = "this user has no home directory: set TRACEQ_CACHE to keep tables"
        raise UsageError(msg) from None
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    return Path(base) / "traceq"


def size_limit() -> int:
    """Return how many bytes the entries may take: $TRACEQ_CACHE_MB, or 4 GiB."""
    with suppress(ValueError):
        return int(os.environ.get("TRACEQ_CACHE_MB", "")) << 20
    return _DEFAULT_LIMIT


def find(path: Path, key: str = "") -> Trace | None:
    """Return the trace of a file whose content was loaded before, if it is kept.

    ``key`` is what else the tables depend on.
    """
    with suppress(*_TROUBLE):
        status = path.stat()
        # Hashing pays only if there may be an entry at all.
        if not list(_entries().glob(f"{status.st_size}-*")):
            return None
        digest = _seen(path, status) or _hash(path)
        entry = _entry(status, digest, key)
        if not entry.is_dir():
            return None
        try:
            trace = _read(entry, path)
        except _TROUBLE:
            # Out of the way of a whole one.
            shutil.rmtree(entry, ignore_errors=True)
            return None
        with suppress(OSError):
            os.utime(entry / _FACTS)
            _remember(path, status, digest)
        return trace
    return None


def keep(path: Path, trace: Trace, status: os.stat_result, key: str = "") -> None:
    """Write an entry behind the caller's back; the program ends when it is written.

    ``status`` is the file's from before it was read: if it changed since, the tables
    are of a content that no longer has a name.
    """
    writer = threading.Thread(target=_write, args=(path, trace, status, key))
    _writers.append(writer)
    writer.start()


def busy() -> bool:
    """Return whether an entry is being written."""
    return any(writer.is_alive() for writer in _writers)


def finish() -> None:
    """Wait until all entries are written; who interrupts the waiting gives them up."""
    try:
        while _writers:
            _writers[0].join()
            del _writers[0]
    except KeyboardInterrupt:
        _given_up.set()
        raise


def entries() -> Iterator[tuple[Path, int, float]]:
    """Yield each entry with its size in bytes and when it was last used."""
    for facts in directory().glob(f"{_ENTRY}/{_FACTS}"):
        with suppress(OSError):
            files = [file.stat().st_size for file in facts.parent.iterdir()]
            yield facts.parent, sum(files), facts.stat().st_mtime


def fetched_folder() -> Path:
    """Return where copies of other machines' files are, each in a folder."""
    return directory() / _FETCHED


def fetched() -> Iterator[tuple[Path, int, float]]:
    """Yield each copy of another machine's file as ``entries`` does."""
    for folder in fetched_folder().glob(_FETCHED_NAME):
        with suppress(OSError):
            files = [file.stat().st_size for file in folder.iterdir()]
            yield folder, sum(files), folder.stat().st_mtime


def clear() -> tuple[int, int]:
    """Remove everything; return how many entries there were, and how many bytes."""
    found, copies = list(entries()), list(fetched())
    # Only what traceq puts there: the directory may be the user's choice.
    for folder in (
        *directory().glob(_ENTRY),
        *directory().glob(f"{_ASIDE}*"),
        *fetched_folder().glob(_FETCHED_NAME),
    ):
        shutil.rmtree(folder, ignore_errors=True)
    for file in directory().glob(f"{_SEEN}/{_SEEN_NAME}"):
        file.unlink(missing_ok=True)
    for folder in (*directory().glob(_CODE), directory() / _SEEN, fetched_folder()):
        with suppress(OSError):
            folder.rmdir()
    return len(found), sum(size for _, size, _ in (*found, *copies))


@cache
def _code() -> str:
    """Identify the code that makes tables, so that an edit of it finds no entries."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for pattern in ("model/*.py", "formats/*.py", "graph/*.py", "*.py"):
        for file in sorted(package.glob(pattern)):
            digest.update(file.read_bytes())
    return f"code-{digest.hexdigest()[:16]}"


def _entries() -> Path:
    return directory() / _code()


def _entry(status: os.stat_result, digest: str, key: str) -> Path:
    if key:
        digest = hashlib.sha256(f"{digest}\n{key}".encode()).hexdigest()
    return _entries() / f"{status.st_size}-{digest}"


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while (block := file.read(_BLOCK)) and not _given_up.is_set():
            digest.update(block)
    return digest.hexdigest()


def _seen_file(path: Path) -> Path:
    name = hashlib.sha256(str(path.resolve()).encode(errors="surrogatepass"))
    return directory() / _SEEN / f"{name.hexdigest()[:32]}.json"


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _seen(path: Path, status: os.stat_result) -> str | None:
    with suppress(*_TROUBLE):
        known = orjson.loads(_seen_file(path).read_bytes())
        if known["identity"] == _identity(status):
            return str(known["digest"])
    return None


def _remember(path: Path, status: os.stat_result, digest: str) -> None:
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    if time.time_ns() - changed < _UNSETTLED_NS:
        return
    file = _seen_file(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    _replace(file, orjson.dumps({"identity": _identity(status), "digest": digest}))


def _replace(file: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=file.parent)
    with os.fdopen(handle, "wb") as temporary:
        temporary.write(content)
    Path(name).replace(file)


def _read(entry: Path, path: Path) -> Trace:
    sums = orjson.loads((entry / _SUMS).read_bytes())
    contents = {}
    for name in (_FACTS, *map(_table_file, TABLES)):
        contents[name] = (entry / name).read_bytes()
        # Parquet would read a flipped bit as another number.
        if zlib.crc32(contents[name]) != sums[name]:
            msg = f"{entry / name} is damaged"
            raise ValueError(msg)
    facts = orjson.loads(contents[_FACTS])
    facts["damage"] = tuple(facts["damage"])
    tables = {
        name: table.shaped(pl.read_parquet(contents.pop(_table_file(name))))
        for name, table in TABLES.items()
    }
    return Trace.of(replace(Facts(**facts), path=str(path)), tables)


def _table_file(name: str) -> str:
    return f"{name}.parquet"


def _write(path: Path, trace: Trace, status: os.stat_result, key: str) -> None:
    # Polars raises KeyboardInterrupt in whatever thread it is used.
    with suppress(*_TROUBLE, KeyboardInterrupt):
        digest = _hash(path)
        if _identity(path.stat()) != _identity(status):
            return
        _entries().mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: a reader sees a whole entry or none, and of two
        # writers one wins.
        with tempfile.TemporaryDirectory(dir=directory(), prefix=_ASIDE) as folder:
            aside = Path(folder) / "entry"
            aside.mkdir()
            _write_entry(aside, trace)
            size = sum(file.stat().st_size for file in aside.iterdir())
            if size <= size_limit() and not _given_up.is_set():
                # Another process may have been faster.
                with suppress(OSError):
                    aside.rename(_entry(status, digest, key))
        if not _given_up.is_set():
            _remember(path, status, digest)
            make_room()


def _write_entry(folder: Path, trace: Trace) -> None:
    for name, table in trace.frames_by_name().items():
        if _given_up.is_set():
            return
        table.write_parquet(
            folder / _table_file(name), compression="zstd", compression_level=1
        )
    (folder / _FACTS).write_bytes(orjson.dumps(asdict(trace.facts)))
    sums = {file.name: zlib.crc32(file.read_bytes()) for file in folder.iterdir()}
    (folder / _SUMS).write_bytes(orjson.dumps(sums))


def make_room() -> None:
    """Remove the entries that were not used for longest, until the rest fits."""
    found = sorted([*entries(), *fetched()], key=lambda entry: entry[2], reverse=True)
    kept = 0
    for folder, size, _ in found:
        kept += size
        if kept > size_limit():
            shutil.rmtree(folder, ignore_errors=True)
    seen = sorted(directory().glob(f"{_SEEN}/{_SEEN_NAME}"), key=_last_change)
    for file in seen[:-_MOST_SEEN]:
        file.unlink(missing_ok=True)
    # What a process that was killed left behind.
    for folder in directory().glob(f"{_ASIDE}*"):
        if _last_change(folder) < time.time() - _ASIDE_LEFT_S:
            shutil.rmtree(folder, ignore_errors=True)


def _last_change(file: Path) -> float:
    return file.stat().st_mtime

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
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import polars as pl

from traceq.model.facts import Facts
from traceq.model.schema import TABLES
from traceq.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

_FACTS = "facts.json"
_SEEN = "seen"
_DEFAULT_LIMIT = 4 << 30
# A file changed this shortly before it was hashed could change again unnoticed.
_UNSETTLED_NS = 2_000_000_000
_HASH_BLOCK = 8 << 20
_TROUBLE = (OSError, ValueError, TypeError, KeyError, pl.exceptions.PolarsError)


def directory() -> Path:
    """Return where entries are kept: $TRACEQ_CACHE, or the platform's usual place."""
    if chosen := os.environ.get("TRACEQ_CACHE"):
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "traceq"


def size_limit() -> int:
    """Return how many bytes the entries may take: $TRACEQ_CACHE_MB, or 4 GiB."""
    with suppress(ValueError):
        return int(os.environ.get("TRACEQ_CACHE_MB", "")) << 20
    return _DEFAULT_LIMIT


def find(path: Path) -> Trace | None:
    """Return the trace of a file whose content was loaded before, if it is kept."""
    try:
        status = path.stat()
        # Hashing pays only if there may be an entry at all.
        if not list(_entries().glob(f"{status.st_size}-*")):
            return None
        digest = _seen(path, status) or _hash(path)
        entry = _entries() / f"{status.st_size}-{digest}"
        trace = _read(entry, path)
        os.utime(entry / _FACTS)
        _remember(path, status, digest)
    except _TROUBLE:
        return None
    return trace


def keep(path: Path, trace: Trace, status: os.stat_result) -> threading.Thread:
    """Write an entry behind the caller's back; the program ends when it is written.

    ``status`` is the file's from before it was read: if it changed since, the tables
    are of a content that no longer has a name.
    """
    writer = threading.Thread(target=_write, args=(path, trace, status))
    writer.start()
    return writer


def entries() -> Iterator[tuple[Path, int, float]]:
    """Yield each entry with its size in bytes and when it was last used."""
    for facts in directory().glob(f"*/*/{_FACTS}"):
        with suppress(OSError):
            files = [file.stat().st_size for file in facts.parent.iterdir()]
            yield facts.parent, sum(files), facts.stat().st_mtime


def clear() -> tuple[int, int]:
    """Remove all entries; return how many there were and how many bytes they took."""
    found = list(entries())
    # Only what traceq puts there: the directory may be the user's choice.
    for folder in (*directory().glob("code-*"), directory() / _SEEN):
        shutil.rmtree(folder, ignore_errors=True)
    return len(found), sum(size for _, size, _ in found)


@cache
def _code() -> str:
    """Identify the code that makes tables, so that an edit of it finds no entries."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for folder in ("model", "formats", "graph"):
        for file in sorted((package / folder).glob("*.py")):
            digest.update(file.read_bytes())
    return f"code-{digest.hexdigest()[:16]}"


def _entries() -> Path:
    return directory() / _code()


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK):
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
    if time.time_ns() - status.st_mtime_ns < _UNSETTLED_NS:
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
    facts = orjson.loads((entry / _FACTS).read_bytes())
    facts["damage"] = tuple(facts["damage"])
    tables = {
        name: table.shaped(pl.read_parquet(entry / f"{name}.parquet"))
        for name, table in TABLES.items()
    }
    return Trace(facts=replace(Facts(**facts), path=str(path)), **tables)


def _write(path: Path, trace: Trace, status: os.stat_result) -> None:
    with suppress(*_TROUBLE):
        digest = _hash(path)
        if _identity(path.stat()) != _identity(status):
            return
        _entries().mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: a reader sees a whole entry or none, and of two
        # writers one wins.
        with tempfile.TemporaryDirectory(dir=directory(), prefix="new-") as folder:
            aside = Path(folder) / "entry"
            aside.mkdir()
            for name, table in trace.frames_by_name().items():
                table.write_parquet(
                    aside / f"{name}.parquet", compression="zstd", compression_level=1
                )
            (aside / _FACTS).write_bytes(orjson.dumps(asdict(trace.facts)))
            if sum(file.stat().st_size for file in aside.iterdir()) <= size_limit():
                aside.rename(_entries() / f"{status.st_size}-{digest}")
        _remember(path, status, digest)
        _evict()


def _evict() -> None:
    """Remove the entries that were not used for longest, until the rest fits."""
    found = sorted(entries(), key=lambda entry: entry[2], reverse=True)
    kept = 0
    for folder, size, _ in found:
        kept += size
        if kept > size_limit():
            shutil.rmtree(folder, ignore_errors=True)

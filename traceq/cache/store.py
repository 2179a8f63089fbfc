"""On-disk cache of tables and answers, in the user's cache directory.

The tables of a trace are a folder named after the size and the SHA-1 of the trace
file, inside a folder named after the code that made them: a changed file or a changed
traceq never reads old tables. An answer, such as lint's findings, is a file named after
the size and the content of everything that it depends on. Hashing a large file takes
longer than loading the tables, so the hash is remembered by the file's identity, as git
does. A cache error never keeps a trace from being read: the result is not stored then.
``tables`` reads and writes the tables.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import threading
import time
import zlib
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from msgspec import Struct

from traceq.common.locations import KEPT_PAGES, cache_directory
from traceq.errors import TraceqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FACTS = "facts.json"
"""The file of an entry that says when the entry was last used."""
_SEEN = "seen"
_FETCHED = "fetched"
_ANSWERS = "answers"
# The names that traceq gives, and nobody else.
_CODE = "code-[0-9a-f]{16}"
_ENTRY = ".*-[0-9a-f]{40}(?:[0-9a-f]{24})?"
_SEEN_NAME = r"[0-9a-f]{32}\.json"
_FETCHED_NAME = "[0-9a-f]{64}"
_ANSWER_NAME = r".*-[0-9a-f]{64}\.json"
_MOST_SEEN = 10_000
_ASIDE = "traceq-new-"
_ASIDE_LEFT_S = 24 * 3600
_DEFAULT_LIMIT = 4 << 30
# A file changed this shortly before it was hashed could change again unnoticed.
_UNSETTLED_NS = 2_000_000_000
_BLOCK = 8 << 20
_SUM = 9
_PACKAGE = Path(__file__).parents[1]
# Folders of the code that makes tables.
MAKES_TABLES = (
    ".",
    "cache",
    "common",
    "formats",
    "formats/nsys",
    "graph",
    "graph/cuda_graphs",
    "graph/inductor",
    "graph/source",
    "inputs",
    "model",
    "native",
)
CACHE_ERRORS = (OSError, ValueError, TypeError, KeyError, AttributeError, TraceqError)
"""Errors while caching, which are not reported to the user."""

_writers: list[threading.Thread] = []
_given_up = threading.Event()
_hashing = threading.Lock()
_digests: dict[tuple[object, ...], str] = {}


class Question(Struct, frozen=True):
    """Dependencies of an answer: files and settings, before the files were read."""

    files: tuple[Path, ...]
    statuses: tuple[os.stat_result, ...]
    rest: str
    """The settings and everything else that is not a file, as text."""

    @classmethod
    def of(cls, files: Iterable[Path], rest: str) -> Question:
        """Return the question; raise ``OSError`` if a file does not exist."""
        paths = tuple(files)
        return cls(paths, tuple(file.stat() for file in paths), rest)

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(status.st_size for status in self.statuses)

    @property
    def unchanged(self) -> bool:
        """True if no file changed after its status was taken."""
        pairs = zip(self.files, self.statuses, strict=True)
        return all(identity(file.stat()) == identity(then) for file, then in pairs)

    def key(self) -> str:
        """Return the cache key of the answer, unique to the content."""
        pairs = zip(self.files, self.statuses, strict=True)
        # Answers contain the names of the files.
        digests = [(str(file), digest(file, then)) for file, then in pairs]
        name = hashlib.sha256(repr((self.rest, digests)).encode(errors="surrogatepass"))
        return f"{self.size}-{name.hexdigest()}"


def directory() -> Path:
    """Return the cache directory."""
    return cache_directory()


def size_limit() -> int:
    """Return how many bytes the entries may take: $TRACEQ_CACHE_MB, or 4 GiB."""
    with suppress(ValueError):
        return int(os.environ.get("TRACEQ_CACHE_MB", "")) << 20
    return _DEFAULT_LIMIT


def find_answer(question: Question) -> bytes | None:
    """Return the cached answer, if there is one and it is complete."""
    with suppress(*CACHE_ERRORS):
        folder = directory() / _ANSWERS
        # Hash only if an answer may exist.
        if not _named(folder, f"{question.size}-.*"):
            return None
        file = folder / f"{question.key()}.json"
        stored = file.read_bytes()
        content = stored[_SUM:]
        if stored[:_SUM] != _sum(content):
            file.unlink(missing_ok=True)
            return None
        with suppress(OSError):
            os.utime(file)
        return content
    return None


def keep_answer(question: Question, written: Callable[[], bytes]) -> None:
    """Serialize an answer and write it to the cache, in the background."""
    write_in_background(_write_answer, question, written)


def write_in_background(work: Callable[..., None], *arguments: object) -> None:
    """Write in a background thread; the program waits for it at exit."""
    writer = threading.Thread(target=work, args=arguments)
    _writers.append(writer)
    writer.start()


def busy() -> bool:
    """Return whether a background write is running."""
    return any(writer.is_alive() for writer in _writers)


def finish() -> None:
    """Wait for the background writes; an interrupt abandons them."""
    try:
        while _writers:
            _writers[0].join()
            del _writers[0]
    except KeyboardInterrupt:
        _given_up.set()
        raise


def abandoned() -> bool:
    """Return whether the background writes were abandoned."""
    return _given_up.is_set()


def entries() -> Iterator[tuple[Path, int, float]]:
    """Yield the tables of each trace: folder, size in bytes, and when last used."""
    for entry in _entries():
        with suppress(OSError):
            files = [file.stat().st_size for file in entry.iterdir()]
            yield entry, sum(files), (entry / FACTS).stat().st_mtime


def _entries() -> Iterator[Path]:
    for code in _named(directory(), _CODE):
        yield from _named(code, _ENTRY)


def _named(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder whose names match; none if it does not exist.

    ``Path.glob`` takes milliseconds to compile a long pattern.
    """
    with suppress(OSError), os.scandir(folder) as inside:
        return [
            folder / entry.name for entry in inside if re.fullmatch(pattern, entry.name)
        ]
    return []


def fetched_folder() -> Path:
    """Return the folder with the copies of remote files, each in a folder."""
    return directory() / _FETCHED


def fetched() -> Iterator[tuple[Path, int, float]]:
    """Yield each copy of a remote file as ``entries`` does."""
    for folder in _named(fetched_folder(), _FETCHED_NAME):
        with suppress(OSError):
            files = [file.stat().st_size for file in folder.iterdir()]
            yield folder, sum(files), folder.stat().st_mtime


def answers() -> Iterator[tuple[Path, int, float]]:
    """Yield each answer as ``entries`` does."""
    for file in _named(directory() / _ANSWERS, _ANSWER_NAME):
        with suppress(OSError):
            status = file.stat()
            yield file, status.st_size, status.st_mtime


def clear() -> tuple[int, int]:
    """Remove everything; return the number of traces and of bytes."""
    count = len(list(entries()))
    size = sum(size for _, size, _ in (*entries(), *answers(), *fetched()))
    # Only files that traceq wrote: the user may have chosen the directory.
    for place in (
        *_entries(),
        *_named(directory(), f"{_ASIDE}.*"),
        *_named(directory() / _SEEN, _SEEN_NAME),
        *_named(directory() / _ANSWERS, _ANSWER_NAME),
        *directory().glob(KEPT_PAGES),
        *_named(fetched_folder(), _FETCHED_NAME),
    ):
        _remove(place)
    names = (_SEEN, _ANSWERS, _FETCHED)
    codes = _named(directory(), _CODE)
    for folder in (*codes, *(directory() / name for name in names)):
        with suppress(OSError):
            folder.rmdir()
    return count, size


@cache
def _code() -> str:
    """Identify the code that makes tables, so that an edit invalidates all entries.

    Files are compared by their status, as git does: reading them would take longer than
    writing the tables of a small trace.
    """
    digest = hashlib.sha256()
    for folder in MAKES_TABLES:
        with os.scandir(_PACKAGE / folder) as inside:
            files = [
                entry for entry in inside if entry.name.endswith((".py", ".c", ".h"))
            ]
            identities = sorted((file.name, *identity(file.stat())) for file in files)
        digest.update(repr(identities).encode(errors="replace"))
    return f"code-{digest.hexdigest()[:16]}"


def entry_of(status: os.stat_result, content: str, key: str) -> Path:
    """Return the folder of the tables of a file with this content."""
    if key:
        content = hashlib.sha256(f"{content}\n{key}".encode()).hexdigest()
    return directory() / _code() / f"{status.st_size}-{content}"


def any_of_size(size: int) -> bool:
    """Return whether tables of a file of this size exist."""
    name = f"{size}-.*"
    # Identifying the code takes many stat calls: first look for tables of any code.
    if not any(_named(code, name) for code in _named(directory(), _CODE)):
        return False
    return bool(_named(directory() / _code(), name))


def _content_digest() -> hashlib._Hash:
    """Return a digest of a file's content, which names its entry and secures nothing.

    Hashing is a large part of reading: SHA-1 takes half the time of SHA-256.
    """
    return hashlib.sha1(usedforsecurity=False)


class StreamingDigest:
    """Digest of a file, computed while it is being read."""

    def __init__(self) -> None:
        """Start with no bytes."""
        self._digest = _content_digest()
        self._size = 0

    def hear(self, block: bytes) -> None:
        """Add the next bytes of the file."""
        self._digest.update(block)
        self._size += len(block)

    def note(self, path: Path, status: os.stat_result) -> None:
        """Store the digest for this process, if the whole file was read."""
        if self._size == status.st_size:
            _digests[_name(path, status)] = self._digest.hexdigest()


def digest(path: Path, status: os.stat_result) -> str:
    """Return the digest of a file; an unchanged file is not read again."""
    if remembered := _seen(path, status):
        return remembered
    # Tables and answers of one file are written concurrently.
    with _hashing:
        if remembered := _seen(path, status):
            return remembered
        computed = _digests.get(_name(path, status)) or _hash(path)
        with suppress(OSError):
            if not abandoned():
                _remember(path, status, computed)
        return computed


def _hash(path: Path) -> str:
    digest = _content_digest()
    with path.open("rb") as file:
        while (block := file.read(_BLOCK)) and not _given_up.is_set():
            digest.update(block)
    return digest.hexdigest()


def _seen_file(path: Path) -> Path:
    name = hashlib.sha256(str(path.resolve()).encode(errors="surrogatepass"))
    return directory() / _SEEN / f"{name.hexdigest()[:32]}.json"


def identity(status: os.stat_result) -> list[int]:
    """Return values that identify a file and its current version."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def settled(status: os.stat_result) -> bool:
    """Return whether the last change is old enough that another one would show."""
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    return time.time_ns() - changed >= _UNSETTLED_NS


def _name(path: Path, status: os.stat_result) -> tuple[object, ...]:
    return (path, *identity(status))


def _seen(path: Path, status: os.stat_result) -> str | None:
    with suppress(*CACHE_ERRORS):
        entry = orjson.loads(_seen_file(path).read_bytes())
        if entry["identity"] == identity(status):
            return str(entry["digest"])
    return None


def _remember(path: Path, status: os.stat_result, content: str) -> None:
    if not settled(status):
        return
    file = _seen_file(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    _replace(file, orjson.dumps({"identity": identity(status), "digest": content}))


def _replace(file: Path, content: bytes) -> None:
    # In the cache directory, where it is cleaned up if this process is killed.
    handle, name = tempfile.mkstemp(dir=directory(), prefix=_ASIDE)
    with os.fdopen(handle, "wb") as temporary:
        temporary.write(content)
    Path(name).replace(file)


def _write_answer(question: Question, written: Callable[[], bytes]) -> None:
    # Errors while serializing are not reported to the user either.
    with suppress(Exception, KeyboardInterrupt):
        content = written()
        key = question.key()
        if abandoned() or not question.unchanged or len(content) > size_limit():
            return
        file = directory() / _ANSWERS / f"{key}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        _replace(file, _sum(content) + content)
        make_room()


def _sum(content: bytes) -> bytes:
    return b"%08x\n" % zlib.crc32(content)


@contextmanager
def aside() -> Iterator[Path]:
    """Yield a new temporary folder in the cache."""
    directory().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory(), prefix=_ASIDE) as folder:
        yield Path(folder)


def make_room() -> None:
    """Remove the least recently used entries until the rest fits."""
    every = [*entries(), *answers(), *fetched()]
    total = 0
    for place, size, _ in sorted(every, key=lambda one: one[2], reverse=True):
        total += size
        if total > size_limit():
            _remove(place)
    seen = sorted(_named(directory() / _SEEN, _SEEN_NAME), key=_last_change)
    for file in seen[:-_MOST_SEEN]:
        file.unlink(missing_ok=True)
    # Leftovers of processes that were killed.
    for folder in _named(directory(), f"{_ASIDE}.*"):
        if _last_change(folder) < time.time() - _ASIDE_LEFT_S:
            _remove(folder)


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        with suppress(OSError):
            place.unlink()


def _last_change(file: Path) -> float:
    # Another process may have removed it.
    with suppress(OSError):
        return file.stat().st_mtime
    return 0.0

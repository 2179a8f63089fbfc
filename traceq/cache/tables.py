"""Tables of traces, written to and read from the cache."""

from __future__ import annotations

import os
import shutil
import zlib
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import orjson
import polars as pl

from traceq.cache import store
from traceq.model.facts import Facts
from traceq.model.schema import TABLES
from traceq.model.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

_SUMS = "sums.json"
_ROW = "id"
_TROUBLE = (*store.CACHE_ERRORS, pl.exceptions.PolarsError)


def find(path: Path, key: str = "") -> Trace | None:
    """Return the trace of a file whose content was loaded before, if it is kept.

    ``key`` is what else the tables depend on.
    """
    with suppress(*_TROUBLE):
        status = path.stat()
        # Hashing pays only if there may be an entry at all.
        if not store.any_of_size(status.st_size):
            return None
        content = store.digest(path, status)
        entry = store.entry_of(status, content, key)
        if not entry.is_dir():
            return None
        try:
            trace = _read(entry, path)
        except _TROUBLE:
            # Out of the way of a whole one.
            shutil.rmtree(entry, ignore_errors=True)
            return None
        with suppress(OSError):
            os.utime(entry / store.FACTS)
        return trace
    return None


def keep(path: Path, trace: Trace, status: os.stat_result, key: str = "") -> None:
    """Write an entry behind the caller's back.

    ``status`` is the file's from before it was read: if it changed since, the tables
    are of a content that no longer has a name.
    """
    store.write_in_background(_write, path, trace, status, key)


def _read(entry: Path, path: Path) -> Trace:
    sums = orjson.loads((entry / _SUMS).read_bytes())
    contents = {}
    for name in (store.FACTS, *map(_table_file, TABLES)):
        contents[name] = (entry / name).read_bytes()
        # Polars would read a flipped bit as another number.
        if zlib.crc32(contents[name]) != sums[name]:
            msg = f"{entry / name} is damaged"
            raise ValueError(msg)
    facts = orjson.loads(contents[store.FACTS])
    facts |= {name: tuple(facts[name]) for name in ("damage", "lacks")}
    tables = {name: _unpacked(name, contents.pop(_table_file(name))) for name in TABLES}
    return Trace.of(replace(Facts(**facts), path=str(path)), tables)


def _table_file(name: str) -> str:
    return f"{name}.arrow"


def _write(path: Path, trace: Trace, status: os.stat_result, key: str) -> None:
    # Polars raises KeyboardInterrupt in whatever thread it is used.
    with suppress(*_TROUBLE, KeyboardInterrupt):
        question = store.Question((path,), (status,), key)
        content = store.digest(path, status)
        if not question.unchanged:
            return
        entry = store.entry_of(status, content, key)
        # Written aside and renamed: a reader sees a whole entry or none, and of two
        # writers one wins.
        with store.aside() as folder:
            new = folder / "entry"
            new.mkdir()
            _write_entry(new, trace)
            size = sum(file.stat().st_size for file in new.iterdir())
            if size <= store.size_limit() and not store.abandoned():
                entry.parent.mkdir(exist_ok=True)
                # Another process may have been faster.
                with suppress(OSError):
                    new.rename(entry)
        if not store.abandoned():
            store.make_room()


def _write_entry(folder: Path, trace: Trace) -> None:
    sums = {
        store.FACTS: _written(folder / store.FACTS, orjson.dumps(asdict(trace.facts)))
    }
    for name, table in trace.frames_by_name().items():
        if store.abandoned():
            return
        file = _table_file(name)
        sums[file] = _written(folder / file, _packed(table))
    _written(folder / _SUMS, orjson.dumps(sums))


def _written(file: Path, content: bytes | memoryview) -> int:
    """Write a file of an entry; return its sum."""
    file.write_bytes(content)
    return zlib.crc32(content)


def _packed(table: pl.DataFrame) -> memoryview:
    """Return a table as it is kept: without its rows' numbers, which are known."""
    # Twice as large as with zstd, in two thirds of the time.
    bare = table[[name for name in table.columns if name != _ROW]]
    return bare.write_ipc_stream(None, compression="lz4").getbuffer()


def _unpacked(name: str, content: bytes) -> pl.DataFrame:
    table = pl.read_ipc_stream(content)
    if _ROW in TABLES[name].columns:
        table = table.with_row_index(_ROW)
    return TABLES[name].shaped(table)

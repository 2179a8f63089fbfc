"""The tables of traces, written to and read from the cache."""

from __future__ import annotations

import os
import shutil
import zlib
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import orjson
import polars as pl

from traceq import cache
from traceq.model.facts import Facts
from traceq.model.schema import TABLES
from traceq.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

_SUMS = "sums.json"
_TROUBLE = (*cache.TROUBLE, pl.exceptions.PolarsError)


def find(path: Path, key: str = "") -> Trace | None:
    """Return the trace of a file whose content was loaded before, if it is kept.

    ``key`` is what else the tables depend on.
    """
    with suppress(*_TROUBLE):
        status = path.stat()
        # Hashing pays only if there may be an entry at all.
        if not cache.any_of_size(status.st_size):
            return None
        content = cache.digest(path, status)
        entry = cache.entry_of(status, content, key)
        if not entry.is_dir():
            return None
        try:
            trace = _read(entry, path)
        except _TROUBLE:
            # Out of the way of a whole one.
            shutil.rmtree(entry, ignore_errors=True)
            return None
        with suppress(OSError):
            os.utime(entry / cache.FACTS)
        return trace
    return None


def keep(path: Path, trace: Trace, status: os.stat_result, key: str = "") -> None:
    """Write an entry behind the caller's back.

    ``status`` is the file's from before it was read: if it changed since, the tables
    are of a content that no longer has a name.
    """
    cache.later(_write, path, trace, status, key)


def _read(entry: Path, path: Path) -> Trace:
    sums = orjson.loads((entry / _SUMS).read_bytes())
    contents = {}
    for name in (cache.FACTS, *map(_table_file, TABLES)):
        contents[name] = (entry / name).read_bytes()
        # Polars would read a flipped bit as another number.
        if zlib.crc32(contents[name]) != sums[name]:
            msg = f"{entry / name} is damaged"
            raise ValueError(msg)
    facts = orjson.loads(contents[cache.FACTS])
    facts["damage"] = tuple(facts["damage"])
    tables = {
        name: table.shaped(pl.read_ipc(contents.pop(_table_file(name))))
        for name, table in TABLES.items()
    }
    return Trace.of(replace(Facts(**facts), path=str(path)), tables)


def _table_file(name: str) -> str:
    return f"{name}.arrow"


def _write(path: Path, trace: Trace, status: os.stat_result, key: str) -> None:
    # Polars raises KeyboardInterrupt in whatever thread it is used.
    with suppress(*_TROUBLE, KeyboardInterrupt):
        question = cache.Question((path,), (status,), key)
        content = cache.digest(path, status)
        if not question.unchanged:
            return
        entry = cache.entry_of(status, content, key)
        # Written aside and renamed: a reader sees a whole entry or none, and of two
        # writers one wins.
        with cache.aside() as folder:
            new = folder / "entry"
            new.mkdir()
            _write_entry(new, trace)
            size = sum(file.stat().st_size for file in new.iterdir())
            if size <= cache.size_limit() and not cache.given_up():
                entry.parent.mkdir(exist_ok=True)
                # Another process may have been faster.
                with suppress(OSError):
                    new.rename(entry)
        if not cache.given_up():
            cache.make_room()


def _write_entry(folder: Path, trace: Trace) -> None:
    for name, table in trace.frames_by_name().items():
        if cache.given_up():
            return
        # Half the time of Parquet, and no larger.
        table.write_ipc(folder / _table_file(name), compression="zstd")
    (folder / cache.FACTS).write_bytes(orjson.dumps(asdict(trace.facts)))
    sums = {file.name: zlib.crc32(file.read_bytes()) for file in folder.iterdir()}
    (folder / _SUMS).write_bytes(orjson.dumps(sums))

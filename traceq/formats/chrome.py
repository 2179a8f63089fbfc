"""Reader of Chrome traces, as any version of PyTorch's profiler writes them."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl
from msgspec import Struct, field

from traceq.common.expressions import place_among
from traceq.common.progress import report_progress
from traceq.errors import InputError
from traceq.formats import event_heads, tables
from traceq.formats.chunks import Cut, chunks
from traceq.formats.events import Piece, Tally, decode
from traceq.formats.gc_pause import collecting_paused
from traceq.formats.inputs import decode_inputs
from traceq.formats.scan import Scan
from traceq.formats.source import Source
from traceq.native import available

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Frames: TypeAlias = dict[str, pl.DataFrame]
_Parts: TypeAlias = dict[str, list[pl.DataFrame]]

# Large enough that the work outweighs starting it, small enough that the few chunks
# in flight are nothing beside the file.
_CHUNK = 4 << 20
# Size of the arguments' text that is decoded together, and held in memory until then.
_BATCH = 32 << 20
# Number of events without arguments that are sorted together.
_BARE_BATCH = 1 << 18
# An event without a time stands at 0, weeks before all others. One that has its time
# there is followed by others sooner than this.
_APART_NS = 3_600_000_000_000
# Number of progress reports of the tables, once all was read.
_STAGES = 3
_WORKERS = min(4, os.cpu_count() or 1)
# Columns of raw tables that become others when all is read.
_CHANGED = ("ts", "lane")
# A column of texts holds the chunk it was cut from, even if all of them are null.
_NO_ARGS = pl.lit(None, pl.String).alias("args")


class RawTrace(Struct, frozen=True):
    """A trace as the file has it: tables by category, nothing linked yet."""

    tables: Frames
    header: dict[str, Any]
    """The members before the events."""
    footer: dict[str, Any]
    """The members after the events."""
    start: int
    """The earliest event, in nanoseconds as the file counts them; ts counts from it."""
    tally: Tally
    categories: frozenset[str]
    key_a_line: bool
    unpacked_bytes: int
    damage: tuple[str, ...]
    """Sentences on what could not be read; empty if everything was."""


def read(
    path: Path,
    progress: Callable[[int, int], None] | None = None,
    heard: Callable[[bytes], None] | None = None,
) -> RawTrace:
    """Read every event of a trace into raw tables, in memory bounded by the tables.

    ``progress`` is told, now and then, how many bytes of how many were read; ``heard``
    gets all bytes of the file, as they are in it.
    """
    source, cut = Source(path, progress, heard), Cut()
    scanned = available()
    # The scanner takes one chunk after the other, beside what unpacks the next.
    workers = 1 if scanned else _WORKERS
    with collecting_paused(), ThreadPoolExecutor(workers) as pool:
        work = _Work(pool, scanned)
        try:
            for chunk in chunks(path, source.blocks(), cut, _CHUNK):
                # Only of the last one can the end be missing.
                work.add(chunk, cut, whole=cut.whole)
            report_progress("tables", 0, _STAGES)
            work.finish()
        except BaseException:
            # Nobody who interrupts it waits for chunks that were not begun.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    tally = work.tally
    if tally.events == tally.lost:
        msg = (
            f"{path} is not a trace: it has no event that can be read; record again, or"
            " give the file that PyTorch's profiler wrote"
        )
        raise InputError(msg)
    report_progress("tables", 1, _STAGES)
    raw, timeless = _timed(
        {name: tables.whole(name, work.parts[name]) for name in tables.TABLES}
    )
    finished, start = _finish(raw)
    report_progress("tables", _STAGES, _STAGES)
    return RawTrace(
        tables=finished,
        header=cut.header,
        footer=cut.footer,
        start=start,
        tally=tally,
        categories=frozenset(work.categories),
        key_a_line=cut.key_a_line,
        unpacked_bytes=source.unpacked_bytes,
        damage=_damage(tally, source, cut, timeless),
    )


class _Work(Struct):
    """Chunks on their way into tables: cut into events first, then sorted.

    Both run on the pool, and Polars lets go of Python while it works. What is taken
    from it is taken in the order of the file, so that the tables have that order.
    """

    pool: ThreadPoolExecutor
    scanned: bool
    tally: Tally = field(default_factory=Tally)
    categories: set[str] = field(default_factory=set)
    parts: _Parts = field(default_factory=lambda: defaultdict(list))
    _scan: Scan | None = None
    _cutting: deque[Future[tuple[pl.DataFrame, Tally]]] = field(default_factory=deque)
    _sorting: deque[tuple[Future[tables.Sorted], _Parts]] = field(default_factory=deque)
    _batch: list[pl.DataFrame] = field(default_factory=list)
    _bare: list[pl.DataFrame] = field(default_factory=list)
    _bare_parts: _Parts = field(default_factory=lambda: defaultdict(list))

    def add(self, chunk: list[Piece], cut: Cut, *, whole: bool) -> None:
        """Start the work on a chunk, and wait if too much is under way."""
        if self.scanned and self._scan is None:
            self._scan = Scan(cut.layout)
        cutting = self._scan.decode if self._scan else partial(decode, cut.layout)
        self._cutting.append(self.pool.submit(cutting, chunk, whole=whole))
        while len(self._cutting) > _WORKERS:
            self._take_events()

    def finish(self) -> None:
        """Wait until all chunks are in the tables."""
        if self._scan:
            self._cutting.append(self.pool.submit(self._scan.finish))
        while self._cutting:
            self._take_events()
        self._sort(self._batch, self.parts)
        self._sort(self._bare, self._bare_parts)
        while self._sorting:
            self._take_tables()
        for name, rows in self._bare_parts.items():
            self.parts[name].extend(rows)
        if self._scan:
            for name, scanned in self._scan.tables().items():
                self.parts[name].insert(0, scanned[[*tables.dtypes(name)]])
            self.categories |= self._scan.categories

    def _take_events(self) -> None:
        events, counted = self._cutting.popleft().result()
        self.tally.add(counted)
        if events.is_empty():
            return
        has_args = events["args"].is_not_null()
        # Events without arguments to decode, mostly Python calls, are sorted apart.
        self._bare.append(events.filter(~has_args).with_columns(_NO_ARGS))
        self._batch.append(events.filter(has_args))
        if sum(events.estimated_size() for events in self._batch) > _BATCH:
            self._sort(self._batch, self.parts)
        if sum(events.height for events in self._bare) > _BARE_BATCH:
            self._sort(self._bare, self._bare_parts)

    def _sort(self, batch: list[pl.DataFrame], into: _Parts) -> None:
        if batch:
            done = self.pool.submit(tables.split, pl.concat(batch))
            self._sorting.append((done, into))
            batch.clear()
        while len(self._sorting) > 1:
            self._take_tables()

    def _take_tables(self) -> None:
        sorting, into = self._sorting.popleft()
        done = sorting.result()
        self.tally.flows += done.flows
        self.tally.lost += done.broken
        self.categories.update(done.categories)
        for name, rows in done.tables.items():
            into[name].extend(rows)


def _timed(raw: Frames) -> tuple[Frames, int]:
    """Leave out events without a time; return how many there were.

    PyTorch's profiler may lose the times of calls and of GPU work: it writes 0 for when
    they began and for how long they took.
    """
    timed = {name: rows for name, rows in raw.items() if "ts" in rows.columns}
    if _earliest(timed) != 0:
        return raw, 0
    has_time = {
        name: (rows["ts"] != 0) | (rows["dur"] != 0) for name, rows in timed.items()
    }
    rows_with_time = {name: rows.filter(has_time[name]) for name, rows in timed.items()}
    if _earliest(rows_with_time) < _APART_NS:
        return raw, 0
    lost = sum(
        rows.height - rows_with_time[name].height for name, rows in timed.items()
    )
    return raw | rows_with_time, lost


def _earliest(timed: Frames) -> int:
    starts = [rows["ts"].min() for rows in timed.values()]
    return min((ts for ts in starts if isinstance(ts, int)), default=0)


def _finish(raw: Frames) -> tuple[Frames, int]:
    """Give threads and inputs their numbers, and time its start."""
    metadata = raw.pop("metadata")
    threads = _threads(list(raw.values()), metadata)
    start = _earliest(raw)
    finished = {
        name: pl.DataFrame(
            [
                *(
                    column
                    for column in rows.iter_columns()
                    if column.name not in _CHANGED
                ),
                rows["ts"] - start,
                place_among(rows["lane"], threads["lane"]).alias("thread"),
            ]
        )
        for name, rows in raw.items()
    }
    report_progress("tables", 2, _STAGES)
    inputs, finished["inputs"] = decode_inputs(finished["ops"]["inputs"])
    finished["ops"] = finished["ops"].with_columns(inputs)
    finished["threads"] = threads.drop("lane")
    finished["other"] = finished["other"].with_columns(
        pl.Series(
            "args",
            [event_heads.tidy(args) for args in finished["other"]["args"]],
            pl.String,
        )
    )
    return finished, start


def _threads(raw: list[pl.DataFrame], metadata: pl.DataFrame) -> pl.DataFrame:
    """Make the table of threads, with the lane by which events name them."""
    names = {
        lane: event_heads.parse(args or "").get("name")
        for name, lane, args in metadata.select("name", "lane", "args").iter_rows()
        if name == "thread_name"
    }
    lanes = pl.concat(rows["lane"] for rows in raw).unique()
    threads = lanes.cast(pl.String).sort().to_frame("text").with_row_index("id")
    lane = pl.col("text").str.split(tables.LANE_SEPARATOR)
    named = [names.get(text) for text in threads["text"]]
    return threads.select(
        "id",
        pl.col("text").cast(pl.Categorical).alias("lane"),
        lane.list.first().alias("pid"),
        lane.list.last().alias("tid"),
        pl.Series(
            "name", [str(name) if name else None for name in named], dtype=pl.String
        ),
    )


def _damage(tally: Tally, source: Source, cut: Cut, timeless: int) -> tuple[str, ...]:
    damage = []
    if source.damage:
        damage.append(f"{source.damage}; what came before was read")
    elif not cut.whole:
        damage.append("the file ends before the trace does; what came before was read")
    if tally.lost:
        events = "event" if tally.lost == 1 else "events"
        damage.append(
            f"{tally.lost:,} {events} of {tally.events:,} could not be read"
            f" ({tally.lost_bytes:,} bytes)"
        )
    if timeless:
        have, are = ("event has", "is") if timeless == 1 else ("events have", "are")
        damage.append(
            f"{timeless:,} {have} no time, which PyTorch's profiler lost, and {are}"
            " left out"
        )
    if cut.broken_header:
        damage.append("what the file says about itself could not be read")
    return tuple(damage)

"""Read a Chrome trace as PyTorch's profiler of any version wrote it."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl

from traceq.errors import InputError
from traceq.formats import tables, texts
from traceq.formats.cut import Cut, chunks
from traceq.formats.events import Tally, decode
from traceq.formats.inputs import decode_inputs
from traceq.formats.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Frames: TypeAlias = dict[str, pl.DataFrame]
Parts: TypeAlias = dict[str, list[pl.DataFrame]]

# Small enough that the few chunks in flight are nothing beside the file.
_CHUNK = 3 << 20
# Events whose arguments are decoded together: starting that costs as much as a
# chunk, and what is not decoded yet is held as text.
_BATCH = 100_000
_WORKERS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class RawTrace:
    """A trace as the file has it: tables by category, nothing linked yet."""

    tables: Frames
    header: dict[str, Any]
    """What stands before the events."""
    footer: dict[str, Any]
    """What stands after them."""
    start: int
    """The earliest event, in nanoseconds as the file counts them; ts counts from it."""
    tally: Tally
    categories: frozenset[str]
    key_a_line: bool
    unpacked_bytes: int
    damage: tuple[str, ...]
    """Sentences on what could not be read; empty if everything was."""


def read(path: Path, progress: Callable[[int, int], None] | None = None) -> RawTrace:
    """Read every event of a trace into raw tables, in memory bounded by the tables.

    ``progress`` is told, now and then, how many bytes of how many were read.
    """
    source, cut, tally = Source(path, progress), Cut(), Tally()
    batch: list[pl.DataFrame] = []
    cutting: deque[Future[tuple[pl.DataFrame, Tally]]] = deque()
    sorting: deque[Future[tables.Sorted]] = deque()
    parts: Parts = {name: [rows] for name, rows in tables.empty().items()}
    categories: set[str] = set()

    def take_events() -> None:
        events, counted = cutting.popleft().result()
        tally.add(counted)
        batch.append(events)
        if sum(events.height for events in batch) > _BATCH:
            sort_batch()

    def sort_batch() -> None:
        sorting.append(pool.submit(tables.split, pl.concat(batch)))
        batch.clear()
        if len(sorting) > 1:
            take_rows()

    def take_rows() -> None:
        done = sorting.popleft().result()
        tally.flows += done.flows
        tally.lost += done.broken
        categories.update(done.categories)
        for name, rows in done.tables.items():
            parts[name].extend(rows)

    with ThreadPoolExecutor(_WORKERS) as pool:
        text: bytes | None = None
        for following in chunks(path, source.blocks(), cut, _CHUNK):
            if text is not None:
                cutting.append(pool.submit(decode, text, cut.separator, whole=True))
            text = following
            if len(cutting) > _WORKERS:
                take_events()
        cutting.append(pool.submit(decode, text or b"", cut.separator, whole=cut.whole))
        while cutting:
            take_events()
        if batch:
            sort_batch()
        while sorting:
            take_rows()

    if tally.events == tally.lost:
        msg = f"{path} is not a trace: it has no event that can be read"
        raise InputError(msg)
    finished, start = _finish({name: pl.concat(rows) for name, rows in parts.items()})
    return RawTrace(
        tables=finished,
        header=cut.header,
        footer=cut.footer,
        start=start,
        tally=tally,
        categories=frozenset(categories),
        key_a_line=cut.key_a_line,
        unpacked_bytes=source.unpacked_bytes,
        damage=_damage(tally, source, cut),
    )


def _finish(raw: Frames) -> tuple[Frames, int]:
    """Number the threads and the inputs, and count time from the start of the trace."""
    metadata = raw.pop("metadata")
    threads = _threads(list(raw.values()), metadata)
    lanes = threads.select("lane", thread="id")
    starts = [rows["ts"].min() for rows in raw.values()]
    start = min((ts for ts in starts if isinstance(ts, int)), default=0)
    finished = {
        name: rows.join(lanes, on="lane", how="left", maintain_order="left")
        .drop("lane")
        .with_columns(pl.col("ts") - start)
        for name, rows in raw.items()
    }
    inputs, finished["inputs"] = decode_inputs(finished["ops"]["inputs"])
    finished["ops"] = finished["ops"].with_columns(inputs)
    finished["threads"] = threads.drop("lane")
    return finished, start


def _threads(raw: list[pl.DataFrame], metadata: pl.DataFrame) -> pl.DataFrame:
    """Make the table of threads, with the lane by which events name them."""
    names = {
        lane: texts.parse(args or "").get("name")
        for name, lane, args in metadata.select("name", "lane", "args").iter_rows()
        if name == "thread_name"
    }
    lanes = pl.concat(rows["lane"].unique() for rows in raw).unique()
    threads = lanes.cast(pl.String).sort().to_frame("text").with_row_index("id")
    return threads.select(
        "id",
        pl.col("text").cast(pl.Categorical).alias("lane"),
        pl.col("text").str.split(tables.LANE_SEPARATOR).list.first().alias("pid"),
        pl.col("text").str.split(tables.LANE_SEPARATOR).list.last().alias("tid"),
        pl.Series("name", [names.get(lane) for lane in threads["text"]], dtype=pl.String),
    )


def _damage(tally: Tally, source: Source, cut: Cut) -> tuple[str, ...]:
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
    if cut.broken_header:
        damage.append("what the file says about itself could not be read")
    return tuple(damage)

"""Read a CUDA memory snapshot into tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.common.units import NS_PER_US
from traceq.errors import InputError
from traceq.formats.gc_pause import collecting_paused
from traceq.formats.kinds import is_snapshot_database
from traceq.formats.pickles import read_pickle
from traceq.formats.snapshot_columns import (
    DictRows,
    as_table,
    checked_types,
    enum_column,
    number_column,
    pool_names,
    text_column,
    with_ids,
)
from traceq.formats.snapshot_events import EventReader, EventRun
from traceq.formats.snapshot_sqlite import database_content
from traceq.formats.snapshot_stacks import StackTable
from traceq.model.schema import ID
from traceq.model.snapshot import (
    SNAPSHOT_TABLES,
    STATES,
    Snapshot,
    SnapshotFacts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# People give a ring buffer a size that is a multiple of this; old versions of torch
# gave it room for one event.
_ROUND, _OLD_ROOM = 100, 1
_ACTIVE = ("active_allocated", "active_pending_free")
# Errors that values of the wrong kind raise on their way into a table.
_MISFITS = (
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    pl.exceptions.PolarsError,
)
_SINCE = (
    # the oldest torch whose snapshots have this key, the newest first
    ("top", "host_segments", "2.14"),
    ("events", "pool_id", "2.12"),
    ("events", "user_metadata", "2.10"),
    ("events", "compile_context", "2.8"),
    ("top", "external_annotations", "2.5"),
    ("top", "allocator_settings", "2.3"),
    ("events", "time_us", "2.2"),
    ("segments", "segment_pool_id", "2.1"),
    ("top", "device_traces", "2.0"),
)


def read_snapshot(path: Path) -> Snapshot:
    """Return the snapshot in a ``.pickle`` or ``.pickle.gz``, of any torch since 1.13.

    An SQLite database with the tables of one is read as well.

    Nothing in the file is run. What is no snapshot raises an ``InputError``.
    """
    with collecting_paused():
        stacks = StackTable()
        events = EventReader(stacks)
        try:
            if is_snapshot_database(path):
                content, size = database_content(path), path.stat().st_size
            else:
                content, size = read_pickle(path, events)
            return _snapshot(content, path, size, events)
        except _MISFITS:
            msg = (
                f"{path} is a pickle, but not a memory snapshot: give what"
                " torch.cuda.memory._dump_snapshot wrote"
            )
            raise InputError(msg) from None


def _snapshot(content: Any, path: Path, size: int, taken: EventReader) -> Snapshot:  # noqa: ANN401
    # Before torch 2.0 the list of segments was all there was.
    top: dict[str, Any]
    top = {"segments": content} if isinstance(content, list) else content
    segments, traces = top["segments"], top.get("device_traces", [])
    host = _host_traces(top)
    blocks = sum(len(segment["blocks"]) for segment in segments)
    rows = sum(map(len, (*traces, *host))) + blocks
    stacks = taken.stacks
    if rows > size:
        # One list, named again and again, can be many rows in few bytes.
        raise ValueError(rows)
    since = _since(top)
    tables = {
        "segments": _segments(segments, stacks),
        "blocks": _blocks(segments, stacks),
        "annotations": _annotations(top.get("external_annotations", [])),
        "settings": _settings(top.get("allocator_settings", {})),
        "events": _device_events(top, taken, traces, host),
    }
    _number_stacks(tables, stacks)
    tables["devices"] = _devices(tables)
    start = _start(tables["events"], tables["annotations"])
    for name in ("events", "annotations"):
        tables[name] = tables[name].with_columns(pl.col("ts") - start)
    facts = SnapshotFacts(
        path=str(path),
        unpacked_bytes=size,
        start_ns=start,
        torch_from=since,
        history=not tables["events"].is_empty(),
        stacks=not tables["stacks"].is_empty(),
        pinned_bytes=_pinned(top),
        damage=(
            *_damage(tables["devices"]),
            *_repeated(blocks - tables["blocks"].height),
        ),
    )
    return Snapshot(facts, **tables)  # type: ignore[arg-type]  # all tables, no owners


def _host_traces(top: dict[str, Any]) -> list[list[Any]]:
    """Return the lists of events on pinned host memory, of one allocator or several."""
    traces = top.get("host_traces") or []
    return traces if all(isinstance(trace, list) for trace in traces) else [traces]


def _device_events(
    top: dict[str, Any],
    taken: EventReader,
    traces: list[list[Any]],
    host: list[list[Any]],
) -> pl.DataFrame:
    """Return the events of devices; those of the host are read in the file's order."""
    keys = list(top)
    first = bool(host) and keys.index("host_traces") < keys.index("device_traces")
    events = taken.table([*host, *traces] if first else [*traces, *host])
    before = len(host) if first else 0
    of_devices = events.with_columns(pl.col("device") - before).filter(
        pl.col("device").is_between(0, len(traces) - 1)
    )
    return events if not host else with_ids("events", of_devices.drop("id"))


def _pinned(top: dict[str, Any]) -> int | None:
    """Return the bytes of pinned host memory that are reserved at the end."""
    if "host_segments" not in top:
        return None
    return sum(int(segment.get("total_size", 0)) for segment in top["host_segments"])


def _number_stacks(tables: dict[str, pl.DataFrame], stacks: StackTable) -> None:
    """Add stacks and frames in the order in which the other tables name them."""
    pointing = ("segments", "blocks", "events")
    named = [tables[name]["stack"] for name in pointing]
    numbers = pl.int_range(stacks.count, dtype=ID, eager=True).alias("stack")
    order = pl.concat([*named, numbers]).drop_nulls().unique(maintain_order=True)
    places = order.arg_sort().cast(ID)
    for name in pointing:
        moved = places.gather(tables[name]["stack"]).alias("stack")
        tables[name] = tables[name].with_columns(moved)
    stacks.sort(order.to_list())
    tables["frames"] = stacks.frames()
    tables["stacks"] = stacks.stacks()


def _since(top: dict[str, Any]) -> str:
    """Return the oldest torch whose snapshots have the keys that this one has."""
    nothing: dict[str, Any] = {}
    segment = next(iter(top["segments"]), nothing)
    event = next(
        (trace[-1] for trace in top.get("device_traces", ()) if trace), nothing
    )
    if isinstance(event, EventRun):
        event = event.last
    places = {"top": top, "segments": segment, "events": event}
    return next((torch for place, key, torch in _SINCE if key in places[place]), "")


def _segments(raw: list[Any], stacks: StackTable) -> pl.DataFrame:
    segments = DictRows(raw)
    columns = {
        "device": number_column(segments["device"]),
        "address": number_column(segments["address"]),
        "size": number_column(segments["total_size"]),
        "allocated": number_column(segments["allocated_size"]),
        "active": number_column(segments["active_size"]),
        "requested": number_column(segments.get("requested_size")),
        "stream": number_column(segments.get("stream")),
        "kind": text_column(segments.get("segment_type")),
        "pool": text_column(pool_names(segments.get("segment_pool_id"))),
        "expandable": pl.Series(
            checked_types(segments.get("is_expandable"), bool),
            dtype=pl.Boolean(),
            strict=True,
        ),
        "stack": number_column(stacks.numbers(segments.get("frames"))),
    }
    return with_ids("segments", as_table("segments", columns))


def _blocks(segments: list[Any], stacks: StackTable) -> pl.DataFrame:
    blocks = [block for segment in segments for block in segment["blocks"]]
    counts = [len(segment["blocks"]) for segment in segments]
    of_segment = [at for at, count in enumerate(counts) for _ in range(count)]
    # Before torch 2.1 a block had a history, its latest tensor first, and no address.
    latest: list[dict[str, Any]]
    latest = [next(iter(block.get("history", ())), {}) for block in blocks]
    requested = [
        block.get("requested_size", last.get("real_size", block["size"]))
        if block["state"] in _ACTIVE
        else 0
        for block, last in zip(blocks, latest, strict=True)
    ]
    frames = [
        block.get("frames", last.get("frames"))
        for block, last in zip(blocks, latest, strict=True)
    ]
    columns = {
        "segment": number_column(of_segment),
        "device": number_column([segments[at]["device"] for at in of_segment]),
        "address": number_column(list(_addresses(segments))),
        "size": number_column([block["size"] for block in blocks]),
        "requested": number_column(requested),
        "state": enum_column(STATES, [block["state"] for block in blocks]),
        "stack": number_column(stacks.numbers(frames)),
    }
    # One block, named again and again, would be compared with itself each time.
    once = as_table("blocks", columns).unique(
        ["device", "address"], keep="first", maintain_order=True
    )
    return with_ids("blocks", once)


def _addresses(segments: list[Any]) -> Iterator[int]:
    """Yield the address of each block: blocks are contiguous in a segment."""
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            address = block.get("address", address)
            yield address
            address += block["size"]


def _annotations(raw: list[Any]) -> pl.DataFrame:
    annotations = DictRows(raw)
    columns = {
        "device": number_column(annotations.get("device")),
        "name": text_column(annotations["name"]),
        "stage": text_column(annotations["stage"]),
        "ts": number_column(annotations.get("time_us")) * NS_PER_US,
    }
    return with_ids("annotations", as_table("annotations", columns))


def _settings(settings: dict[str, Any]) -> pl.DataFrame:
    """Return settings by name; those of a dict as ``name.key``."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": entry for key, entry in value.items()}
        else:
            flat[name] = value
    if not all(isinstance(value, str | int | float) for value in flat.values()):
        raise TypeError
    columns = {"name": list(flat), "value": [str(value) for value in flat.values()]}
    return pl.DataFrame(columns, schema=SNAPSHOT_TABLES["settings"].dtypes)


def _devices(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the allocator's totals of each device that has any."""
    events, blocks = tables["events"], tables["blocks"]
    of_segments = (
        tables["segments"]
        .group_by("device")
        .agg(
            segments=pl.len(),
            reserved=pl.sum("size"),
            allocated=pl.sum("allocated"),
        )
    )
    requested, state = pl.col("requested"), pl.col("state")
    allocs = events.filter(pl.col("action") == "alloc")
    recorded = blocks.filter(state.is_in(_ACTIVE), pl.col("stack").is_not_null())
    parts = (
        of_segments,
        events.group_by("device").agg(events=pl.len()),
        blocks.group_by("device").agg(
            requested=requested.filter(state == _ACTIVE[0]).sum(),
            pending=requested.filter(state == _ACTIVE[1]).sum(),
        ),
        # A ring buffer keeps the newest events: if the tensor that holds a block came
        # while events were recorded, only being overwritten takes its event away.
        recorded.join(allocs, on=["device", "address"], how="anti")
        .group_by("device")
        .agg(lost=pl.len()),
    )
    devices = pl.concat([part.select("device") for part in parts]).unique()
    for part in parts:
        devices = devices.join(part, on="device", how="left")
    return as_table("devices", devices.sort("device").fill_null(0).to_dict())


def _damage(devices: pl.DataFrame) -> Iterator[str]:
    """Say of each device whether its history has lost its beginning.

    A history that was recorded earlier, and stopped, leaves stacks without events, too.
    A ring buffer that was overwritten is full: its events are as many as it can hold.
    """
    events = pl.col("events")
    is_full = (events == _OLD_ROOM) | ((events > 0) & (events % _ROUND == 0))
    overwritten = devices.filter(is_full, pl.col("lost") > 0)
    for device, lost in overwritten.select("device", "lost").iter_rows():
        tensors = f"{lost:,} live block" + ("s" if lost > 1 else "")
        yield (
            f"the beginning of device {device}'s history was overwritten: {tensors}"
            " came while it was recorded, but their events are gone; record again"
            " with a larger max_entries"
        )


def _repeated(blocks: int) -> Iterator[str]:
    """Say whether blocks are listed more than once."""
    if blocks:
        listed = "1 block is" if blocks == 1 else f"{blocks:,} blocks are"
        yield f"{listed} listed again at the same address; each is counted once"


def _start(events: pl.DataFrame, annotations: pl.DataFrame) -> int | None:
    """Return the first time in the file."""
    times = pl.concat([events["ts"], annotations["ts"]]).min()
    return times if isinstance(times, int) else None

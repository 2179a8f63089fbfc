"""Read a CUDA memory snapshot into tables."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.errors import InputError
from traceq.formats.gc_pause import collecting_paused
from traceq.formats.nsys.recognition import is_snapshot_database
from traceq.formats.pickled_columns import Column
from traceq.formats.pickles import read_pickle
from traceq.formats.snapshot_sqlite import database_content
from traceq.model.schema import ID, NUMBER, TEXT
from traceq.model.snapshot import (
    ACTIONS,
    SNAPSHOT_TABLES,
    STATES,
    Snapshot,
    SnapshotFacts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from traceq.formats.pickled_columns import Batch

_MICROSECOND = 1000
_CHUNK = 100_000
_ROWS = 20_000
# More events than can lie between two that are taken.
_GAP = 1 << 32
_MOST_ALIKE = 16
_MOST_SHAPES = 64
_LINES = 1 << 31
# An annotation says something of an allocation, which has its size.
_SIZELESS = ("annotate", "other")
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
        stacks = _Stacks()
        events = _Events(stacks)
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


def _snapshot(content: Any, path: Path, size: int, taken: _Events) -> Snapshot:  # noqa: ANN401
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
    return traces if all(isinstance(one, list) for one in traces) else [traces]


def _device_events(
    top: dict[str, Any],
    taken: _Events,
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
    return events if not host else _numbered("events", of_devices.drop("id"))


def _pinned(top: dict[str, Any]) -> int | None:
    """Return the bytes of pinned host memory that are reserved at the end."""
    if "host_segments" not in top:
        return None
    return sum(int(segment.get("total_size", 0)) for segment in top["host_segments"])


def _number_stacks(tables: dict[str, pl.DataFrame], stacks: _Stacks) -> None:
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
    if isinstance(event, _Run):
        event = event.last
    places = {"top": top, "segments": segment, "events": event}
    return next((torch for place, key, torch in _SINCE if key in places[place]), "")


@dataclass(frozen=True)
class _Run:
    """The replacement for events that were taken out of their list."""

    begin: int
    end: int
    last: Collection[str]
    """The keys of the last."""


class _Events:
    """The events of all devices, of which most are taken while the file is read."""

    def __init__(self, stacks: _Stacks) -> None:
        self.stacks = stacks
        self.keep = stacks.keep
        self._rows: list[tuple[Any, ...]] = []
        self._taken = 0
        self._parts: list[dict[str, pl.Series]] = []
        self._add(_Rows([]), [])

    def take(self, events: list[tuple[Any, ...]]) -> _Run:
        """Turn events into columns: tuples of key, value, key, value."""
        begin = self._taken
        self._taken += len(events)
        self._rows += events
        if len(self._rows) > _ROWS:
            self._make_columns()
        return _Run(begin, self._taken, events[-1][::2])

    def take_columns(self, events: Batch, values: list[Any]) -> _Run:
        """Take events that are columns already."""
        self._make_columns()
        begin = self._taken
        self._taken += events.height
        columns = events.by_key(values)
        if columns["action"].numbers.has_nulls():
            raise LookupError
        place = pl.int_range(begin + 1, self._taken + 1, dtype=pl.Int64, eager=True)
        self._add(_Compiled(columns, events.height), place * _GAP - 1)
        return _Run(begin, self._taken, events.last_keys(values))

    def table(self, traces: list[list[Any]]) -> pl.DataFrame:
        """Return the events of all lists; empties them, which are large, on its way."""
        self._make_columns()
        counts = []
        taken = left = 0
        for trace in traces:
            before = taken + left
            alone: list[Any] = []
            places: list[int] = []
            for event in trace:
                if not isinstance(event, _Run):
                    alone.append(event)
                    places.append(taken * _GAP + left)
                    left += 1
                elif event.begin == taken:
                    taken = event.end
                else:
                    raise ValueError(event)
            trace[:] = [None] * len(trace)
            counts.append(taken + left - before)
            for start in range(0, len(alone), _CHUNK):
                chunk = alone[start : start + _CHUNK]
                alone[start : start + _CHUNK] = [None] * len(chunk)
                self._add(_Rows(chunk), places[start : start + _CHUNK])
        devices = [_device(device, count) for device, count in enumerate(counts)]
        columns = {"device": pl.concat([_device(0, 0), *devices])}
        return _numbered("events", _shaped("events", columns | self._in_order()))

    def _make_columns(self) -> None:
        rows, self._rows = self._rows, []
        begin = self._taken - len(rows)
        for places, columns in _by_keys(rows):
            place = pl.Series(places, dtype=pl.Int64) + begin + 1
            self._add(_Rows(places, columns), place * _GAP - 1)

    def _add(self, events: _Rows | _Compiled, places: pl.Series | list[int]) -> None:
        """Add columns of events; ``place`` orders them."""
        part = _shaped("events", _event_columns(events, self.stacks)).to_dict()
        self._parts.append(part | {"place": pl.Series(places, dtype=pl.Int64)})

    def _in_order(self) -> dict[str, pl.Series]:
        """Return all columns; one at a time, since all of them twice are large."""
        place = pl.concat([part.pop("place") for part in self._parts])
        order = None if place.is_sorted() else place.arg_sort()
        columns = {}
        for name in [*self._parts[0]]:
            column = pl.concat([part.pop(name) for part in self._parts], rechunk=True)
            columns[name] = column if order is None else column.gather(order)
        return columns


def _device(device: int, count: int) -> pl.Series:
    return pl.repeat(device, count, dtype=NUMBER, eager=True).alias("device")


def _by_keys(
    rows: list[tuple[Any, ...]],
) -> Iterator[tuple[Sequence[int], dict[str, Sequence[Any]]]]:
    """Yield the columns of rows that have the same keys, and which rows these are."""
    if not rows:
        return
    if len({*map(len, rows)}) == 1:
        columns = [*zip(*rows, strict=True)]
        keys = _plain(rows[0][::2], str)
        if all(
            column.count(key) == len(rows)
            for key, column in zip(keys, columns[::2], strict=True)
        ):
            yield range(len(rows)), dict(zip(keys, columns[1::2], strict=True))
            return
    places: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row[::2], []).append(place)
    if len(places) > _MOST_SHAPES:
        raise ValueError(len(places))
    for keys, alike in places.items():
        columns = [*zip(*(rows[place][1::2] for place in alike), strict=True)]
        yield alike, dict(zip(keys, columns, strict=True))


def _event_columns(events: _Rows | _Compiled, stacks: _Stacks) -> dict[str, pl.Series]:
    def stack_numbers(values: Sequence[Any]) -> pl.Series:
        return _numbers(stacks.numbers(values))

    action = _made(_actions, events["action"])
    size = _made(_numbers, events.get("size"))
    if (size.is_null() & ~action.is_in(_SIZELESS)).any():
        raise LookupError
    return {
        "action": action,
        "address": _made(_numbers, events.get("addr")),
        "size": size.fill_null(0),
        "stream": _made(_numbers, events.get("stream")),
        "ts": _made(_numbers, events.get("time_us")) * _MICROSECOND,
        "stack": _made(stack_numbers, events.get("frames")),
        "device_free": _made(_numbers, events.get("device_free")),
        "pool": _made(_pool_texts, events.get("pool_id")),
        "compile_context": _made(_texts, events.get("compile_context")),
        "user_metadata": _made(_texts, events.get("user_metadata")),
    }


def _made(
    make: Callable[[Sequence[Any]], pl.Series], values: Sequence[Any] | Column
) -> pl.Series:
    """Return a column of the table; made of each value once, where these are known."""
    if not isinstance(values, Column):
        return make(values)
    if values.among is not None:
        return make(values.among).gather(values.numbers)
    if make is not _numbers:
        raise TypeError
    return values.numbers


def _actions(values: Sequence[Any]) -> pl.Series:
    return _one_of(ACTIONS, values)


def _pool_texts(values: Sequence[Any]) -> pl.Series:
    return _texts(_pools(values))


def _segments(raw: list[Any], stacks: _Stacks) -> pl.DataFrame:
    segments = _Rows(raw)
    columns = {
        "device": _numbers(segments["device"]),
        "address": _numbers(segments["address"]),
        "size": _numbers(segments["total_size"]),
        "allocated": _numbers(segments["allocated_size"]),
        "active": _numbers(segments["active_size"]),
        "requested": _numbers(segments.get("requested_size")),
        "stream": _numbers(segments.get("stream")),
        "kind": _texts(segments.get("segment_type")),
        "pool": _texts(_pools(segments.get("segment_pool_id"))),
        "expandable": pl.Series(
            _plain(segments.get("is_expandable"), bool),
            dtype=pl.Boolean(),
            strict=True,
        ),
        "stack": _numbers(stacks.numbers(segments.get("frames"))),
    }
    return _numbered("segments", _shaped("segments", columns))


def _blocks(segments: list[Any], stacks: _Stacks) -> pl.DataFrame:
    blocks = [block for segment in segments for block in segment["blocks"]]
    counts = [len(segment["blocks"]) for segment in segments]
    of_segment = [at for at, count in enumerate(counts) for _ in range(count)]
    # Before torch 2.1 a block had a history, its latest tensor first, and no address.
    latest: list[dict[str, Any]]
    latest = [next(iter(block.get("history", ())), {}) for block in blocks]
    asked = [
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
        "segment": _numbers(of_segment),
        "device": _numbers([segments[at]["device"] for at in of_segment]),
        "address": _numbers(list(_addresses(segments))),
        "size": _numbers([block["size"] for block in blocks]),
        "requested": _numbers(asked),
        "state": _one_of(STATES, [block["state"] for block in blocks]),
        "stack": _numbers(stacks.numbers(frames)),
    }
    # One block, named again and again, would be compared with itself each time.
    once = _shaped("blocks", columns).unique(
        ["device", "address"], keep="first", maintain_order=True
    )
    return _numbered("blocks", once)


def _addresses(segments: list[Any]) -> Iterator[int]:
    """Yield the address of each block: blocks are contiguous in a segment."""
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            address = block.get("address", address)
            yield address
            address += block["size"]


def _annotations(raw: list[Any]) -> pl.DataFrame:
    annotations = _Rows(raw)
    columns = {
        "device": _numbers(annotations.get("device")),
        "name": _texts(annotations["name"]),
        "stage": _texts(annotations["stage"]),
        "ts": _numbers(annotations.get("time_us")) * _MICROSECOND,
    }
    return _numbered("annotations", _shaped("annotations", columns))


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
    asked, state = pl.col("requested"), pl.col("state")
    allocs = events.filter(pl.col("action") == "alloc")
    recorded = blocks.filter(state.is_in(_ACTIVE), pl.col("stack").is_not_null())
    parts = (
        of_segments,
        events.group_by("device").agg(events=pl.len()),
        blocks.group_by("device").agg(
            requested=asked.filter(state == _ACTIVE[0]).sum(),
            pending=asked.filter(state == _ACTIVE[1]).sum(),
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
    return _shaped("devices", devices.sort("device").fill_null(0).to_dict())


def _damage(devices: pl.DataFrame) -> Iterator[str]:
    """Say of each device whether its history has lost its beginning."""
    for device, lost in (
        devices.filter(pl.col("events") > 0, pl.col("lost") > 0)
        .select("device", "lost")
        .iter_rows()
    ):
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


class _Stacks:
    """Call stacks and their frames, each kept once."""

    def __init__(self) -> None:
        self._frames: dict[tuple[Any, Any, Any], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        # A snapshot names the same frame object again and again. Looking objects up
        # by id is right only as long as they live, so they are kept alive.
        self._alive: list[Any] = []
        self._frame_by_id: dict[int, int] = {}
        self._alike: dict[tuple[int, int, int], list[tuple[list[Any], int]]] = {}
        self._flat = True
        self._named: dict[bytes, int | None] = {}

    def keep(self, name: bytes, stack: list[Any]) -> None:
        """Remember a stack by its name, which ``numbers`` may be given instead."""
        self._named[name] = self._number(stack) if stack else None

    def numbers(self, stacks: Sequence[Any]) -> list[int | None]:
        """Return each stack's number; none where there is no stack."""
        with suppress(LookupError, TypeError):
            return [*map(self._named.__getitem__, stacks)]
        numbers: list[int | None] = []
        before, number = None, None
        for stack in stacks:
            # The two events of a free have the same stack.
            if stack is not before:
                before = stack
                if isinstance(stack, bytes):
                    number = self._named[stack]
                else:
                    number = self._number(stack) if stack else None
            numbers.append(number)
        return numbers

    def _number(self, stack: list[Any]) -> int:
        """Return a stack's number.

        Comparing with one that looks the same is much faster than looking up.
        """
        looks = (len(stack), id(stack[len(stack) // 2]), id(stack[-1]))
        for other, number in self._alike.get(looks, ()):
            if other == stack:
                return number
        return self._new(stack, looks)

    def _new(self, stack: list[Any], looks: tuple[int, int, int]) -> int:
        key = tuple(map(self._frame, stack))
        number = self._stacks.setdefault(key, len(self._stacks))
        # Lists of lists of lists, or many of one look, could take forever to compare.
        alike = self._alike.setdefault(looks, [])
        if self._flat and len(alike) < _MOST_ALIKE:
            alike.append((stack, number))
        return number

    def _frame(self, frame: dict[str, Any]) -> int:
        number = self._frame_by_id.get(id(frame))
        if number is None:
            key = (frame["filename"], frame["line"], frame["name"])
            number = self._frames.setdefault(key, len(self._frames))
            self._frame_by_id[id(frame)] = number
            self._alive.append(frame)
            # Lists of lists of lists can take forever to compare.
            self._flat &= all(isinstance(value, str | int) for value in frame.values())
        return number

    @property
    def count(self) -> int:
        """Number of stacks."""
        return len(self._stacks)

    def sort(self, order: list[int]) -> None:
        """Put the stacks in this order, and their frames as the stacks name them."""
        stacks, frames = [*self._stacks], [*self._frames]
        stacks = [stacks[number] for number in order]
        named = chain(chain.from_iterable(stacks), range(len(frames)))
        moved = {old: new for new, old in enumerate(dict.fromkeys(named))}
        self._frames = {frames[old]: new for old, new in moved.items()}
        self._stacks = {
            tuple(map(moved.__getitem__, stack)): new
            for new, stack in enumerate(stacks)
        }

    def stacks(self) -> pl.DataFrame:
        """Return the stacks table."""
        dtypes = SNAPSHOT_TABLES["stacks"].dtypes
        frames = pl.Series(list(map(list, self._stacks)), dtype=dtypes["frames"])
        return _numbered("stacks", pl.DataFrame({"frames": frames}))

    def frames(self) -> pl.DataFrame:
        """Return the frames table."""
        columns = {
            # A file's name may hold bytes that are no text.
            "file": _texts([_clean(file) for file, _, _ in self._frames]),
            "line": _numbers([_line(line) for _, line, _ in self._frames]),
            "function": _texts([_clean(name) for _, _, name in self._frames]),
        }
        return _numbered("frames", _shaped("frames", columns))


def _line(number: int) -> int | None:
    """Return the number of a line; none for 2^64 - 1, which is -1 without its sign."""
    return number if number < _LINES else None


def _clean(text: str) -> str:
    return text.encode(errors="replace").decode()


class _Rows:
    """Many dicts by their keys; a key that a dict lacks is none there."""

    def __init__(
        self, rows: Sequence[Any], columns: dict[str, Sequence[Any]] | None = None
    ) -> None:
        self._rows = rows
        self._columns = columns or _alike(rows)

    def get(self, key: str) -> Sequence[Any]:
        """Return one value of each row."""
        if self._columns is None:
            return [row.get(key) for row in self._rows]
        if key in self._columns:
            return self._columns[key]
        return [None] * len(self._rows)

    def __getitem__(self, key: str) -> Sequence[Any]:
        """Return one value of each row, which every snapshot has."""
        if self._columns is None:
            return [row[key] for row in self._rows]
        return self._columns[key] if self._rows else []


@dataclass(frozen=True)
class _Compiled:
    """Columns of events; a key that they lack is none."""

    columns: dict[str, Column]
    height: int

    def get(self, key: str) -> Column | list[None]:
        """Return one value of each event."""
        return self.columns.get(key) or [None] * self.height

    def __getitem__(self, key: str) -> Column:
        """Return one value of each event, which every snapshot has."""
        return self.columns[key]


def _alike(rows: Sequence[dict[str, Any]]) -> dict[str, Sequence[Any]] | None:
    """Return the columns of dicts that all have the same keys, at once."""
    if not rows:
        return {}
    keys = tuple(rows[0])
    if set(map(len, rows)) != {len(keys)} or len(keys) == 1:
        return None
    try:
        return dict(
            zip(keys, zip(*map(itemgetter(*keys), rows), strict=True), strict=True)
        )
    except KeyError:
        return None


def _plain(values: Sequence[Any], *kinds: type) -> Sequence[Any]:
    """Return the values, all of these types or none.

    Polars walks into lists and dicts to find out what they hold, and one that holds
    itself has no end.
    """
    if not {*map(type, values)} <= {*kinds, type(None)}:
        raise TypeError
    return values


def _all_none(values: Sequence[Any]) -> bool:
    """Return whether no value is there; compares none of them with each other."""
    return all(value is None for value in values[:1]) and (
        values.count(None) == len(values)
    )


def _numbers(values: Sequence[Any]) -> pl.Series:
    if values and _all_none(values):
        return pl.Series([None], dtype=NUMBER).new_from_index(0, len(values))
    return pl.Series(_plain(values, int, bool, float), dtype=NUMBER, strict=True)


def _texts(values: Sequence[Any]) -> pl.Series:
    """Return texts; each distinct one is copied once, however often it is named."""
    values = _plain(values, str)
    if values and values.count(values[0]) == len(values):
        one = pl.Series(values[:1], dtype=pl.String(), strict=True).cast(TEXT)
        return one.new_from_index(0, len(values))
    distinct = list(dict.fromkeys(values))
    texts = pl.Series(distinct, dtype=pl.String(), strict=True).cast(TEXT)
    places = {text: at for at, text in enumerate(distinct)}
    return texts.gather(pl.Series(map(places.__getitem__, values), dtype=ID))


def _one_of(names: Sequence[str], values: Sequence[Any]) -> pl.Series:
    """Return texts of a known few; others, of a torch to come, as ``other``."""
    positions = {name: at for at, name in enumerate(names)}
    at = pl.Series(map(positions.get, values), dtype=ID).fill_null(positions["other"])
    return pl.Series(names, dtype=pl.Enum(names)).gather(at)


def _pools(pools: Sequence[Any]) -> list[str | None]:
    """Return the two numbers of each pool as one text."""
    if _all_none(pools):
        return [None] * len(pools)
    # Pickles of other programs than torch may hold lists instead of tuples.
    keys = [tuple(pool) if isinstance(pool, list) else pool for pool in pools]
    texts: dict[Any, str | None] = dict.fromkeys(keys)
    for pool in texts:
        if pool is not None:
            first, second = pool
            texts[pool] = f"{first:d}.{second:d}"
    return list(map(texts.__getitem__, keys))


def _shaped(table: str, columns: Mapping[str, pl.Series]) -> pl.DataFrame:
    """Return columns of a table in its order and types."""
    dtypes = SNAPSHOT_TABLES[table].dtypes
    dtypes.pop("id", None)
    frame = pl.DataFrame(dict(columns))
    present = {name: dtype for name, dtype in dtypes.items() if name in columns}
    return frame.select(list(present)).cast(pl.Schema(present))


def _numbered(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    return SNAPSHOT_TABLES[table].shaped(frame.with_row_index("id"))

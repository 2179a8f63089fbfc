"""Memory snapshots in SQLite, as proposed for torch: what a pickle would have in it.

Three tables: ``device_traces``, ``blocks`` and ``segments``. The format is not settled,
so a column that is missing is taken from others, or is unknown.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from traceq.errors import InputError
from traceq.formats.nsys.database import Database

if TYPE_CHECKING:
    from pathlib import Path

_ACTIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")
_NUMBER, _TEXT = pl.Int64(), pl.String()
_EVENTS = {
    **dict.fromkeys(("id", "device", "addr", "size", "stream", "time_us"), _NUMBER),
    **dict.fromkeys(("device_free",), _NUMBER),
    **dict.fromkeys(("action", "frames", "compile_context", "user_metadata"), _TEXT),
}
_BLOCKS = {
    **dict.fromkeys(("id", "segment_id", "addr", "address", "size"), _NUMBER),
    **dict.fromkeys(("requested_size",), _NUMBER),
    **dict.fromkeys(("state", "frames"), _TEXT),
}
_SEGMENTS = {
    **dict.fromkeys(("id", "segment_id", "device", "addr", "address"), _NUMBER),
    **dict.fromkeys(("size", "total_size", "allocated_size", "active_size"), _NUMBER),
    **dict.fromkeys(("requested_size", "stream"), _NUMBER),
    **dict.fromkeys(("segment_type",), _TEXT),
}


def database_content(path: Path) -> dict[str, Any]:
    """Return the snapshot in a database, as a pickle of torch has it."""
    try:
        events, blocks, segments = _tables(path)
    except InputError:
        msg = f"{path} is damaged: dump the memory snapshot again"
        raise InputError(msg) from None
    stacks = _Stacks()
    of_segment: dict[int | None, list[dict[str, Any]]] = {}
    for row in blocks.to_dicts():
        of_segment.setdefault(row["segment_id"], []).append(_block(row, stacks))
    made = [_segment(row, of_segment) for row in segments.to_dicts()]
    traces: list[list[dict[str, Any]]] = []
    for row in events.to_dicts():
        device = min(max(row.pop("device") or 0, 0), 1 << 10)
        del row["id"]
        while len(traces) <= device:
            traces.append([])
        traces[device].append(
            {key: value for key, value in row.items() if value is not None}
            | {"frames": stacks.read(row["frames"])}
        )
    return {"segments": made, "device_traces": traces}


def _tables(path: Path) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return events, blocks and segments."""
    database = Database(path)
    try:
        events = database.read("device_traces", _EVENTS)
        blocks = database.read("blocks", _BLOCKS)
        segments = database.read("segments", _SEGMENTS)
    finally:
        database.close()
    if database.damage:
        raise InputError(database.damage[0])
    return events.sort("id", nulls_last=True), blocks, segments


def _block(row: dict[str, Any], stacks: _Stacks) -> dict[str, Any]:
    size = row["size"] or 0
    requested = row["requested_size"]
    block = {
        "size": size,
        "requested_size": size if requested is None else requested,
        "state": row["state"] or "inactive",
        "frames": stacks.read(row["frames"]),
    }
    address = row["address"] if row["addr"] is None else row["addr"]
    return block if address is None else block | {"address": address}


def _segment(
    row: dict[str, Any], of_segment: dict[int | None, list[dict[str, Any]]]
) -> dict[str, Any]:
    number = row["id"] if row["segment_id"] is None else row["segment_id"]
    blocks = of_segment.get(number, [])
    blocks.sort(key=lambda block: block.get("address", 0))
    held = sum(block["size"] for block in blocks if block["state"] == _ACTIVE[0])
    active = sum(block["size"] for block in blocks if block["state"] in _ACTIVE)
    first = next((block.get("address", 0) for block in blocks), 0)
    return {
        "device": row["device"] or 0,
        "address": _first(row["address"], row["addr"], first),
        "total_size": _first(
            row["total_size"], row["size"], sum(block["size"] for block in blocks)
        ),
        "allocated_size": _first(row["allocated_size"], held),
        "active_size": _first(row["active_size"], active),
        "requested_size": row["requested_size"],
        "stream": row["stream"],
        "segment_type": row["segment_type"],
        "blocks": blocks,
    }


def _first(*numbers: int | None) -> int:
    return next(number for number in numbers if number is not None)


class _Stacks:
    """Stacks, which are JSON texts; of each text one list."""

    def __init__(self) -> None:
        self._read: dict[str, list[dict[str, Any]]] = {}

    def read(self, text: str | None) -> list[dict[str, Any]]:
        """Return the frames in a text; none if it is anything else."""
        if not text:
            return []
        if text not in self._read:
            self._read[text] = _frames(text)
        return self._read[text]


def _frames(text: str) -> list[dict[str, Any]]:
    with suppress(orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
        return [
            {
                "filename": str(frame["filename"]),
                "line": int(frame["line"]),
                "name": str(frame["name"]),
            }
            for frame in orjson.loads(text)
        ]
    return []

"""Snapshots of newer torch: labels, annotations, pinned host memory, no stacks."""

from __future__ import annotations

import json
import pickle
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq

from traceq.analysis.memory.history import History
from traceq.formats.snapshot import read_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.snapshot import Snapshot

MIB = 1 << 20
_FRAMES = [{"filename": "train.py", "line": 3, "name": "main"}]


def event(action: str, address: int, **more: object) -> dict[str, Any]:
    common = {"addr": address, "size": MIB, "stream": 0, "time_us": address}
    return {"action": action, **common, "frames": _FRAMES, **more}


def annotate(address: int, text: str, **more: object) -> dict[str, Any]:
    return event("annotate", address, user_metadata=text, **more)


def content(*events: dict[str, Any], **top: object) -> dict[str, Any]:
    """Return a snapshot of eight blocks, of which the even ones are held."""
    states = ("active_allocated", "inactive")
    blocks = [
        {
            "address": at * MIB,
            "size": MIB,
            "requested_size": MIB,
            "state": states[at % 2],
        }
        for at in range(8)
    ]
    segment = {
        "device": 0,
        "address": 0,
        "total_size": 8 * MIB,
        "allocated_size": 4 * MIB,
        "active_size": 4 * MIB,
        "requested_size": 4 * MIB,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": blocks,
    }
    return {"segments": [segment], "device_traces": [[*events]], **top}


def read(folder: Path, what: object) -> Snapshot:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(what, protocol=4))
    return read_snapshot(path)


def categories(folder: Path, *events: dict[str, Any]) -> dict[int, tuple[str, str]]:
    """Return category and confidence of the allocations, the last of each address."""
    allocations = History(read(folder, content(*events))).allocations
    rows = allocations.select("address", "category", "confidence").iter_rows()
    return {address // MIB: (category, how) for address, category, how in rows}


@pytest.mark.parametrize(
    ("label", "category"),
    [
        ("traceq: parameters", "weights"),
        ("traceq: buffers", "weights"),
        ("gradients", "gradients"),
        ("optimizer state", "optimizer state"),
        ('{"category":"gradients","layer":3}', "gradients"),
    ],
)
def test_an_annotated_allocation_has_its_category_for_certain(
    label: str, category: str, tmp_path: Path
) -> None:
    result = categories(tmp_path, event("alloc", 0), annotate(0, label))

    assert result[0] == (category, "certain")


def test_what_was_there_before_the_history_can_be_annotated(tmp_path: Path) -> None:
    result = categories(tmp_path, annotate(2 * MIB, "parameters"))

    assert result[2] == ("weights", "certain")


def test_the_text_of_the_allocation_itself_is_a_label(tmp_path: Path) -> None:
    result = categories(tmp_path, event("alloc", 0, user_metadata="optimizer state"))

    assert result[0] == ("optimizer state", "certain")


def test_the_last_label_of_an_allocation_counts(tmp_path: Path) -> None:
    labels = (annotate(0, "parameters"), annotate(0, "gradients"), annotate(0, "x"))

    assert categories(tmp_path, event("alloc", 0), *labels)[0][0] == "gradients"


def test_a_label_ends_with_its_allocation(tmp_path: Path) -> None:
    first = (event("alloc", 0), annotate(0, "gradients"))
    freed = (event("free_requested", 0), event("free_completed", 0))
    result = categories(tmp_path, *first, *freed, event("alloc", 0))

    assert result[0][0] != "gradients"


def test_a_name_that_begins_like_a_label_is_none(tmp_path: Path) -> None:
    result = categories(
        tmp_path, event("alloc", 0, user_metadata="gradients.layer.3.proj")
    )

    assert result[0][0] != "gradients"


def test_annotations_do_not_change_what_is_allocated(tmp_path: Path) -> None:
    events = (event("alloc", 0), event("alloc", 2 * MIB))
    plain = History(read(tmp_path, content(*events))).peaks
    labelled = (events[0], annotate(0, "gradients"), events[1])
    peaks = History(read(tmp_path, content(*labelled))).peaks

    assert peaks["allocated"].to_list() == plain["allocated"].to_list()


def test_an_annotation_without_size_and_stream_is_read(tmp_path: Path) -> None:
    bare = {"action": "annotate", "addr": 0, "user_metadata": "gradients"}

    assert categories(tmp_path, event("alloc", 0), bare)[0][0] == "gradients"


@pytest.mark.parametrize("order", ["host first", "host last"])
@pytest.mark.parametrize("lists", ["one list", "lists"])
def test_pinned_host_memory_is_read_and_kept_apart(
    tmp_path: Path, order: str, lists: str
) -> None:
    first, nested = order == "host first", lists == "lists"
    pinned = [event("alloc", at * MIB, size=5 * MIB) for at in (64, 72, 80)]
    host = {
        "host_segments": [{"total_size": 16 * MIB, "blocks": []}],
        "host_traces": [pinned] if nested else pinned,
    }
    device = content(event("alloc", 0), event("alloc", 2 * MIB))
    snapshot = read(tmp_path, host | device if first else device | host)

    assert snapshot.facts.pinned_bytes == 16 * MIB
    assert snapshot.events["address"].to_list() == [0, 2 * MIB]
    assert snapshot.events["device"].to_list() == [0, 0]


def test_the_report_names_pinned_host_memory(tmp_path: Path) -> None:
    host = {"host_segments": [{"total_size": 16 * MIB}], "host_traces": []}
    read(tmp_path, content(event("alloc", 0), **host))

    assert (
        "16.0 MiB of host memory" in traceq("memory", tmp_path / "snapshot.pickle").out
    )


def test_a_snapshot_without_stacks_is_read_and_called_so(tmp_path: Path) -> None:
    bare = [
        {
            key: value
            for key, value in event("alloc", at * MIB).items()
            if key != "frames"
        }
        for at in (0, 2)
    ]
    snapshot = read(tmp_path, content(*bare))
    answer = traceq("memory", tmp_path / "snapshot.pickle")

    assert not snapshot.facts.stacks
    assert (answer.status, "without stacks" in answer.out) == (0, True)


def test_a_snapshot_without_its_history_is_read(tmp_path: Path) -> None:
    only_state = content()
    del only_state["device_traces"]

    assert not read(tmp_path, only_state).facts.history


def database(folder: Path, frames: str | None) -> Path:
    """Write a snapshot of three allocations, of which one was freed, as SQLite."""
    path = folder / "snapshot.db"
    connection = sqlite3.connect(path)
    connection.executescript(
        """
        CREATE TABLE device_traces (id INTEGER PRIMARY KEY, device INTEGER,
            time_us INTEGER, size INTEGER, action TEXT, addr INTEGER, frames TEXT);
        CREATE TABLE segments (segment_id INTEGER PRIMARY KEY, device INTEGER,
            address INTEGER, total_size INTEGER);
        CREATE TABLE blocks (segment_id INTEGER, addr INTEGER, size INTEGER,
            state TEXT);
        """
    )
    actions = ("alloc", "alloc", "free_requested", "free_completed", "alloc")
    addresses = (0, 1, 1, 1, 2)
    connection.executemany(
        "INSERT INTO device_traces VALUES (?, 0, ?, ?, ?, ?, ?)",
        [
            (at, at, MIB, action, address * MIB, frames)
            for at, (action, address) in enumerate(zip(actions, addresses, strict=True))
        ],
    )
    connection.execute("INSERT INTO segments VALUES (7, 0, 0, ?)", (3 * MIB,))
    states = ("active_allocated", "inactive", "active_allocated")
    connection.executemany(
        "INSERT INTO blocks VALUES (7, ?, ?, ?)",
        [(at * MIB, MIB, state) for at, state in enumerate(states)],
    )
    connection.commit()
    connection.close()
    return path


def test_a_snapshot_in_sqlite_has_its_peak_and_lines(tmp_path: Path) -> None:
    snapshot = read_snapshot(database(tmp_path, json.dumps(_FRAMES)))

    assert History(snapshot).peaks["allocated"].to_list() == [2 * MIB]
    assert snapshot.frames["file"].to_list() == ["train.py"]
    assert snapshot.devices["reserved"].to_list() == [3 * MIB]


def test_a_snapshot_in_sqlite_is_one_for_the_commands(tmp_path: Path) -> None:
    path = database(tmp_path, json.dumps(_FRAMES))

    assert "2.00 MiB allocated" in traceq("memory", path).out
    assert traceq("lint", path).status in (0, 1)


def test_stacks_of_another_format_are_no_stacks(tmp_path: Path) -> None:
    assert not read_snapshot(database(tmp_path, "train.py:3 main")).facts.stacks


def test_a_damaged_database_ends_in_a_sentence(tmp_path: Path) -> None:
    path = database(tmp_path, None)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    answer = traceq("memory", path)

    assert "internal error" not in answer.err
    assert answer.status == 2
    assert answer.err.count("\n") == 1
    assert "nsys" not in answer.err

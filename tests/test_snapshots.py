"""Memory snapshots are read safely, of every age, and their curve is exact."""

from __future__ import annotations

import gzip
import os
import pickle
import pickletools
import struct
from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from linting import case_snapshot
from recordings import CAPTURES, OWN_SNAPSHOTS, SNAPSHOTS, printed, read

from traceq.analysis.memory.curve import memory_curve, memory_peaks
from traceq.errors import InputError
from traceq.formats.snapshot import read_snapshot
from traceq.model.snapshot import SNAPSHOT_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


MIB = 1 << 20
# The program allocates more, or something else, in each step, and the log is of others.
STEPS_DIFFER = {"memory_leak", "graph_record", "graph_rerecord", "recompile"}
OWN = OWN_SNAPSHOTS["attn_manual"]

each_snapshot = pytest.mark.parametrize("path", SNAPSHOTS.values(), ids=SNAPSHOTS)


@cache
def plain(path: Path) -> dict[str, Any]:
    """Unpickle a file of our own with nothing between; the old one is a list."""
    content = pickle.loads(gzip.decompress(path.read_bytes()))  # noqa: S301
    return {"segments": content} if isinstance(content, list) else content


def written(folder: Path, content: object, protocol: int = 4) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def event(action: str, address: int, size: int, **more: object) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, **more}


def segment(*blocks: dict[str, Any], address: int = 0) -> dict[str, Any]:
    active = sum(block["size"] for block in blocks if block["state"] != "inactive")
    return {
        "device": 0,
        "address": address,
        "total_size": sum(block["size"] for block in blocks),
        "allocated_size": active,
        "active_size": active,
        "blocks": list(blocks),
    }


def block(size: int, state: str = "active_allocated", **more: object) -> dict[str, Any]:
    return {"size": size, "requested_size": size, "state": state, **more}


def frame(line: int) -> dict[str, object]:
    return {"filename": "train.py", "line": line, "name": "main"}


# What is read.


@each_snapshot
def test_every_table_is_as_the_schema_says(path: Path) -> None:
    snapshot = read(path)

    for name, table in SNAPSHOT_TABLES.items():
        assert dict(snapshot.table(name).schema) == table.dtypes, name


@each_snapshot
def test_the_events_are_those_of_a_plain_unpickle(path: Path) -> None:
    events = read(path).events

    expected = [
        (device, entry["action"], entry.get("addr"), entry["size"], entry.get("stream"))
        for device, trace in enumerate(plain(path).get("device_traces", []))
        for entry in trace
    ]
    assert (
        events.select("device", "action", "address", "size", "stream").rows()
        == expected
    )


@each_snapshot
def test_the_stacks_are_those_of_a_plain_unpickle(path: Path) -> None:
    snapshot = read(path)
    frames = snapshot.frames.select("file", "line", "function").rows()
    stacks = [
        [frames[at] for at in stack] for stack in snapshot.stacks["frames"].to_list()
    ]

    expected = [
        [(f["filename"], f["line"], f["name"]) for f in entry.get("frames", [])]
        for trace in plain(path).get("device_traces", [])
        for entry in trace
    ]
    at = snapshot.events["stack"].to_list()
    assert [stacks[stack] if stack is not None else [] for stack in at] == expected


@each_snapshot
def test_the_blocks_are_those_of_a_plain_unpickle(path: Path) -> None:
    blocks = read(path).blocks

    expected = [
        (item["size"], item["state"])
        for held in plain(path)["segments"]
        for item in held["blocks"]
    ]
    assert blocks.select("size", "state").rows() == expected


def test_a_plain_file_and_a_gzipped_one_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "plain.pickle"
    path.write_bytes(gzip.decompress(OWN.read_bytes()))

    for name in SNAPSHOT_TABLES:
        assert read(OWN).table(name).equals(read_snapshot(path).table(name))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_of_pickle_is_read(protocol: int, tmp_path: Path) -> None:
    path = written(tmp_path, plain(OWN), protocol)

    assert read_snapshot(path).events.equals(read(OWN).events)


def test_a_frame_is_kept_once_however_many_objects_it_is(tmp_path: Path) -> None:
    trace = [event("alloc", 512 * n, 512, frames=[frame(7)]) for n in range(4)]
    content = {"segments": [], "device_traces": [trace]}

    snapshot = read_snapshot(written(tmp_path, content))

    assert snapshot.frames.rows() == [(0, "train.py", 7, "main")]
    assert snapshot.events["stack"].to_list() == [0] * 4


def test_devices_are_told_by_their_place(tmp_path: Path) -> None:
    traces = [[], [event("alloc", 0, 512)], [], [event("alloc", 0, 1024)]]

    snapshot = read_snapshot(
        written(tmp_path, {"segments": [], "device_traces": traces})
    )

    assert snapshot.events.select("device", "size").rows() == [(1, 512), (3, 1024)]
    assert snapshot.devices["device"].to_list() == [1, 3]


def test_an_action_of_a_torch_to_come_is_other(tmp_path: Path) -> None:
    content = {"segments": [], "device_traces": [[event("teleport", 0, 512)]]}

    snapshot = read_snapshot(written(tmp_path, content))

    assert snapshot.events["action"].to_list() == ["other"]


def test_names_that_are_no_text_are_read(tmp_path: Path) -> None:
    odd = {"filename": "run/\udcff.py", "line": 1, "name": "main"}
    content = {"segments": [], "device_traces": [[event("alloc", 0, 1, frames=[odd])]]}

    assert read_snapshot(written(tmp_path, content)).frames["file"][0] == "run/?.py"


# All ages.


@pytest.mark.parametrize(
    ("name", "torch", "history", "stacks"),
    [
        ("public/snapshot_old_format", "2.0", True, True),
        ("public/snapshot_no_time", "2.1", True, True),
        ("public/snapshot_no_history", "2.3", True, True),
        ("public/snapshot_empty_traces", "2.5", False, False),
        ("public/snapshot_pools_pending", "2.5", False, True),
        ("public/snapshot_train", "2.10", True, True),
    ],
)
def test_the_age_of_a_snapshot_is_told(
    name: str, torch: str, *, history: bool, stacks: bool
) -> None:
    facts = case_snapshot(f"{name}.pickle.gz").facts

    assert (facts.torch_from, facts.history, facts.stacks) == (torch, history, stacks)


def test_a_bare_list_of_segments_is_a_snapshot_of_torch_1(tmp_path: Path) -> None:
    old = {"size": 512, "state": "active_allocated"}
    old["history"] = [{"addr": 0, "real_size": 500, "frames": [frame(3)]}]
    path = written(tmp_path, [segment(old, block(1024, "inactive"), address=4096)])

    snapshot = read_snapshot(path)

    assert snapshot.blocks.select("address", "requested", "stack").rows() == [
        (4096, 500, 0),
        (4608, 0, None),
    ]
    assert memory_peaks(memory_curve(snapshot))["allocated"].to_list() == [500]


def test_blocks_that_a_stream_still_uses_are_not_held_by_tensors() -> None:
    devices = case_snapshot("public/snapshot_pools_pending.pickle.gz").devices

    assert devices["pending"].sum() == 596836352
    assert devices["requested"].sum() == 24886778000


# What a ring buffer has lost.


def test_a_history_that_lost_its_beginning_is_called_incomplete(tmp_path: Path) -> None:
    held = segment(block(512, address=0, frames=[frame(1)]))
    events = [event("alloc", 4096 + at, 1) for at in range(100)]
    content = {"segments": [held], "device_traces": [events]}

    facts = read_snapshot(written(tmp_path, content)).facts

    assert facts.incomplete
    assert "the beginning of device 0's history was overwritten" in facts.damage[0]
    assert "larger max_entries" in facts.damage[0]


def test_a_buffer_with_room_left_was_not_overwritten(tmp_path: Path) -> None:
    # Stacks are of a history that was recorded before, and stopped.
    held = segment(block(512, address=0, frames=[frame(1)]))
    events = [event("alloc", 4096 + at, 1) for at in range(99)]
    content = {"segments": [held], "device_traces": [events]}

    assert not read_snapshot(written(tmp_path, content)).facts.incomplete


def test_what_was_there_before_the_recording_is_no_loss(tmp_path: Path) -> None:
    held = segment(block(512, address=0))
    content = {"segments": [held], "device_traces": [[event("alloc", 4096, 512)]]}

    assert not read_snapshot(written(tmp_path, content)).facts.incomplete


@pytest.mark.parametrize("keep", [100, 700, 1500])
def test_a_ring_buffer_that_wrapped_is_noticed_in_a_real_history(
    keep: int, tmp_path: Path
) -> None:
    """Of the last events alone, those that kept blocks alive are missing."""
    content = plain(OWN)
    first = content["device_traces"][0]
    # Blocks whose events are cut away must be there at the end, with their stacks.
    retained = first[-keep:]
    lost = [entry for entry in first[:-keep] if entry["action"] == "alloc"]
    addresses = {entry["addr"] for entry in lost} - {
        entry["addr"] for entry in retained
    }
    stacked = [
        part
        | {
            "blocks": [
                b | {"frames": lost[0]["frames"]} if b["address"] in addresses else b
                for b in part["blocks"]
            ]
        }
        for part in content["segments"]
    ]
    held = [
        b
        for part in stacked
        for b in part["blocks"]
        if b["address"] in addresses and b["state"] == "active_allocated"
    ]
    cut = content | {"segments": stacked, "device_traces": [retained]}

    facts = read_snapshot(written(tmp_path, cut)).facts

    assert facts.incomplete == bool(held)


# The curve.


@each_snapshot
def test_the_curve_ends_at_the_allocators_own_totals(path: Path) -> None:
    snapshot = read(path)
    ends = memory_curve(snapshot).group_by("device", maintain_order=True).last()

    blocks = [
        (held["device"], item)
        for held in plain(path)["segments"]
        for item in held["blocks"]
    ]
    for device, allocated, reserved in ends.select(
        "device", "allocated", "reserved"
    ).iter_rows():
        held_here = [
            one
            for at, one in blocks
            if at == device and one["state"] == "active_allocated"
        ]
        asked = sum(
            entry["requested_size"]
            if "requested_size" in entry
            else entry["history"][0]["real_size"]
            for entry in held_here
        )
        assert allocated == asked
        assert reserved == sum(
            held["total_size"]
            for held in plain(path)["segments"]
            if held["device"] == device
        )


@each_snapshot
def test_the_curve_is_never_negative(path: Path) -> None:
    curve = memory_curve(read(path))

    assert curve.select(pl.col("allocated", "active", "reserved").min() >= 0).row(
        0
    ) == (
        True,
        True,
        True,
    )
    assert (curve["active"] >= curve["allocated"]).all()
    assert (curve["reserved"] >= curve["active"]).all()


@each_snapshot
def test_the_curve_is_that_of_a_walk_forward(path: Path) -> None:
    """An allocator that starts with what the curve says gets to the same everywhere."""
    snapshot = read(path)
    if snapshot.facts.incomplete:
        pytest.skip("the beginning of its history was overwritten")
    curve = memory_curve(snapshot).filter(pl.col("device") == 0)
    total = curve["allocated"][0]
    walked = [total]
    for action, size in (
        snapshot.events.filter(pl.col("device") == 0)
        .select("action", "size")
        .iter_rows()
    ):
        total += {"alloc": size, "free_requested": -size}.get(action, 0)
        walked.append(total)

    assert curve["allocated"].to_list() == walked


@pytest.mark.parametrize("name", sorted(CAPTURES.step_ms.keys() - STEPS_DIFFER))
def test_the_peak_is_what_torch_measured(name: str) -> None:
    curve = memory_curve(read(OWN_SNAPSHOTS[name]))

    peak = memory_peaks(curve)["allocated"][0] / MIB

    assert peak == pytest.approx(printed(name)["peak_mib"], rel=0.01)


def test_a_recording_without_one_of_the_frees_counts_the_other(tmp_path: Path) -> None:
    for kind in ("free_requested", "free_completed"):
        trace = [event("alloc", 0, 512), event(kind, 0, 512), event("alloc", 0, 100)]
        held = segment(block(512, requested_size=100, address=0))
        path = written(tmp_path, {"segments": [held], "device_traces": [trace]})

        curve = memory_curve(read_snapshot(path))

        assert curve["allocated"].to_list() == [0, 512, 0, 100]
        assert curve["active"].to_list() == [0, 512, 0, 100]


# What is refused.


def refusal(folder: Path, content: bytes) -> str:
    """Return the one sentence with which a file is refused."""
    path = folder / "hostile.pickle"
    path.write_bytes(content)
    with pytest.raises(InputError) as exception_info:
        read_snapshot(path)
    message = str(exception_info.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


def _call(mark: Path) -> tuple[bytes, bytes]:
    """Return what names a function, and what its arguments are, in a pickle's bytes."""
    argument = f"touch {mark}".encode()
    text = b"X" + struct.pack("<I", len(argument)) + argument
    return b"cos\nsystem\n", text


PROGRAMS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "GLOBAL and REDUCE": lambda function, text: function + text + b"\x85R.",
    "STACK_GLOBAL and REDUCE": lambda _, text: (
        b"\x8c\x02os\x8c\x06system\x93" + text + b"\x85R."
    ),
    "INST": lambda _, text: b"(" + text + b"ios\nsystem\n.",
    "OBJ": lambda function, text: b"(" + function + text + b"o.",
    "NEWOBJ": lambda function, text: function + text + b"\x85\x81.",
    "NEWOBJ_EX": lambda function, text: function + text + b"\x85}\x92.",
    "BUILD": lambda function, text: function + text + b"b.",
    "inside a list": lambda function, text: b"](" + function + text + b"\x85Re.",
    "inside a dict": lambda function, text: b"}(K\x01" + function + text + b"\x85Ru.",
    "after many blocks": lambda function, text: (
        b"](" + b"K\x01" * 3_000_000 + function + text + b"\x85Re."
    ),
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_in_a_pickle_runs(program: str, protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    body = PROGRAMS[program](*_call(mark))
    content = b"\x80" + bytes([protocol]) + body

    message = refusal(tmp_path, content)

    assert "is not a memory snapshot" in message
    assert not mark.exists()


def test_the_programs_would_run_elsewhere(tmp_path: Path) -> None:
    """What is refused above is a danger: Python's own unpickler obeys it."""
    for name in ("GLOBAL and REDUCE", "INST", "OBJ", "STACK_GLOBAL and REDUCE"):
        mark = tmp_path / "ran"
        pickle.loads(b"\x80\x04" + PROGRAMS[name](*_call(mark)))  # noqa: S301

        assert mark.exists(), name
        mark.unlink()


ALLOWED = """
    PROTO FRAME STOP MARK EMPTY_LIST EMPTY_DICT APPEND APPENDS SETITEM SETITEMS NONE
    NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE
    BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET TUPLE2
""".split()  # noqa: SIM905 - a list of names
ARGUMENTS = {
    "stringnl": b"'a'\n",
    "stringnl_noescape": b"a\n",
    "stringnl_noescape_pair": b"os\nsystem\n",
    "decimalnl_short": b"1\n",
    "decimalnl_long": b"1L\n",
    "floatnl": b"1.0\n",
    "unicodestringnl": b"a\n",
    "uint1": b"\x01",
    "uint2": b"\x01\x00",
    "uint4": b"\x01\x00\x00\x00",
    "uint8": b"\x01" + b"\x00" * 7,
    "int4": b"\x01\x00\x00\x00",
    "string1": b"\x01a",
    "string4": b"\x01\x00\x00\x00a",
    "bytes1": b"\x01a",
    "bytes4": b"\x01\x00\x00\x00a",
    "bytes8": b"\x01" + b"\x00" * 7 + b"a",
    "bytearray8": b"\x01" + b"\x00" * 7 + b"a",
    "unicodestring8": b"\x01" + b"\x00" * 7 + b"a",
    "long1": b"\x01\x01",
    "long4": b"\x01\x00\x00\x00\x01",
}


@pytest.mark.parametrize(
    "command",
    [known for known in pickletools.opcodes if known.name not in ALLOWED],
    ids=lambda known: known.name,
)
def test_every_command_that_no_snapshot_needs_is_refused(
    command: pickletools.OpcodeInfo, tmp_path: Path
) -> None:
    argument = ARGUMENTS[command.arg.name] if command.arg else b""
    code = command.code.encode("latin-1")

    message = refusal(tmp_path, b"\x80\x04}K\x01K\x02" + code + argument + b"s.")

    assert f"its pickle uses {command.name} in a way that none does" in message


def test_persistent_ids_are_refused(tmp_path: Path) -> None:
    for content in (b"\x80\x02K\x01Q.", b"\x80\x02Pstorage\n."):
        assert "is not a memory snapshot" in refusal(tmp_path, content)


def test_an_archive_of_torch_save_is_called_by_its_name(tmp_path: Path) -> None:
    assert "is a zip archive, as torch.save writes" in refusal(tmp_path, b"PK\x03\x04")


def test_a_trace_is_called_by_its_name(tmp_path: Path) -> None:
    assert "is JSON, such as a trace" in refusal(tmp_path, b'{"traceEvents": []}')


# A gzip file has the time in it, and workers have to call a test by one name.
@pytest.mark.parametrize("content", [b"", gzip.compress(b"")], ids=["plain", "gzipped"])
def test_an_empty_file_is_called_so(content: bytes, tmp_path: Path) -> None:
    assert "is empty" in refusal(tmp_path, content)


@pytest.mark.real
def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = pickle.dumps({"segments": [segment(block(512))], "device_traces": []})
    for cut in range(2, len(whole)):
        assert "is cut off" in refusal(tmp_path, whole[:cut]), cut


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_real_file_that_is_cut_off_is_refused(share: float, tmp_path: Path) -> None:
    packed = OWN.read_bytes()
    whole = gzip.decompress(packed)

    assert "is cut off" in refusal(tmp_path, whole[: int(share * len(whole))])
    assert "is cut off" in refusal(tmp_path, packed[: int(share * len(packed))])


@pytest.mark.slow
def test_bytes_that_flip_give_an_answer_or_a_refusal(tmp_path: Path) -> None:
    whole = pickle.dumps(
        {
            "segments": [segment(block(512, frames=[frame(1)]))],
            "device_traces": [[event("alloc", 0, 512, frames=[frame(1)])] * 3],
        },
        protocol=2,
    )
    for at in range(2, len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            path = tmp_path / "flipped.pickle"
            path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
            try:
                read_snapshot(path)
            except InputError as error:
                assert str(path) in str(error)  # noqa: PT017 - either is right


def _nested(depth: int) -> bytes:
    """Return lists inside of each other, with numbers between to look like data."""
    return b"](J\x01\x01\x01\x01" * depth + b"e" * depth


@pytest.mark.real
@pytest.mark.parametrize("depth", [10_000, 1_000_000])
@pytest.mark.parametrize("key", [b"segments", b"device_traces", b"allocator_settings"])
@pytest.mark.slow
def test_deep_nesting_is_refused_and_breaks_nothing(
    key: bytes, depth: int, tmp_path: Path
) -> None:
    head = b"\x80\x02}(X" + struct.pack("<I", len(key)) + key

    refusal(tmp_path, head + _nested(depth) + b"u.")


def test_deep_nesting_in_an_event_is_refused(tmp_path: Path) -> None:
    for key in ("user_metadata", "size", "frames", "pool_id", "action"):
        path = tmp_path / "deep.pickle"
        body = pickle.dumps(event("alloc", 0, 512), protocol=2)[2:-1]
        name = key.encode()
        text = b"X" + struct.pack("<I", len(name)) + name
        trace = b"](" + body + text + _nested(5000) + b"se"
        top = (
            b"\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]("
            + trace
            + b"eu."
        )
        path.write_bytes(top)
        with pytest.raises(InputError):
            read_snapshot(path)


@pytest.mark.real
def test_hollow_containers_that_fill_the_memory_are_refused(tmp_path: Path) -> None:
    content = b"\x80\x02](" + b"]" * 3_000_000 + b"e."

    assert "empty lists and dicts" in refusal(tmp_path, content)


@pytest.mark.parametrize("place", [1 << 20, (1 << 32) - 1])
def test_a_place_in_the_memo_that_the_file_is_too_small_for_is_refused(
    place: int, tmp_path: Path
) -> None:
    content = b"\x80\x02]r" + struct.pack("<I", place) + b"(" + b"K\x01" * 20 + b"e."

    assert "LONG_BINPUT" in refusal(tmp_path, content)


def test_lists_that_name_each_other_do_not_multiply(tmp_path: Path) -> None:
    """Thirty lists of ten times the one before would be 10^30 events."""
    laugh: list[Any] = [event("alloc", 0, 512)]
    for _ in range(30):
        laugh = [laugh] * 10
    flat = [[event("alloc", 0, 512)] * 10_000] * 10_000
    for content in (
        {"segments": [], "device_traces": laugh},
        {"segments": laugh, "device_traces": []},
        {"segments": [], "device_traces": flat},
    ):
        assert "not a memory snapshot" in refusal(tmp_path, pickle.dumps(content))


def test_tuples_of_tuples_are_never_hashed(tmp_path: Path) -> None:
    """Hashing two of the one before, and so on, would take until the end of days."""
    content = b"\x80\x02K\x01K\x01\x86q\x00" + b"h\x00h\x00\x86q\x00" * 100
    content += b"0}h\x00K\x01s."

    assert "TUPLE2" in refusal(tmp_path, content)


def test_a_text_or_a_number_of_absurd_length_is_refused(tmp_path: Path) -> None:
    refusal(tmp_path, b"\x80\x02X\xff\xff\xff\x7f" + b"a" * 100)
    refusal(tmp_path, b"\x80\x02\x8a\xff" + b"\x01" * 300 + b".")


def test_numbers_too_large_for_a_column_are_refused(tmp_path: Path) -> None:
    content = {"segments": [], "device_traces": [[event("alloc", 0, 1 << 70)]]}

    assert "not a memory snapshot" in refusal(tmp_path, pickle.dumps(content))


@pytest.mark.parametrize(
    "content",
    [
        1,
        "text",
        [],
        {},
        {"segments": 1},
        {"segments": [1]},
        {"segments": [{}]},
        {"segments": [], "device_traces": 1},
        {"segments": [], "device_traces": [1]},
        {"segments": [], "device_traces": [[1]]},
        {"segments": [], "device_traces": [[{}]]},
        {"segments": [], "device_traces": [[{"action": [], "size": 1}]]},
        {"segments": [], "device_traces": [[event("alloc", 0, 1, frames=[1])]]},
        {"segments": [], "allocator_settings": []},
        {"segments": [], "external_annotations": [1]},
        {1: 2},
        None,
    ],
    ids=repr,
)
def test_pickles_of_something_else_are_refused(content: object, tmp_path: Path) -> None:
    if content == []:
        assert read_snapshot(written(tmp_path, content)).blocks.is_empty()
        return
    assert "not a memory snapshot" in refusal(tmp_path, pickle.dumps(content))


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    bomb = gzip.compress(b"\x80\x02](" + b"N" * (20 << 20))
    assert len(bomb) < MIB / 16

    assert "unpacks to far more" in refusal(tmp_path, bomb)


def test_a_damaged_gzip_stream_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(os.urandom(100_000)))
    packed[500:600] = bytes(100)

    refusal(tmp_path, bytes(packed))


@pytest.mark.slow
def test_a_million_events_are_read(tmp_path: Path) -> None:
    trace = [event("alloc", 512 * at, at % 7 + 1) for at in range(1_000_000)]
    content = {"segments": [], "device_traces": [trace]}

    events = read_snapshot(written(tmp_path, content)).events

    assert events.height == 1_000_000
    assert events["size"].sum() == sum(entry["size"] for entry in trace)


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_snapshot(tmp_path / "gone.pickle")


def test_a_folder_is_no_snapshot(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        read_snapshot(tmp_path)

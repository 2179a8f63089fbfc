"""Messages of NCCL in exports of Nsight Systems, from payloads of its ranges."""

from __future__ import annotations

import sqlite3
import struct
from typing import TYPE_CHECKING, NamedTuple

import pytest
from nsys_tables import PROCESS, create_tables

from traceq.formats.nsys.read import read

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

_GROUP = 0xDEADBEEF
_INIT, _COLLECTIVE, _PEER = 16777218, 16777223, 16777225
_THREAD = PROCESS | 7


class _Call(NamedTuple):
    """A range of NCCL, its payload, and the launch of a kernel inside it."""

    name: str
    start: int
    end: int
    payload: bytes | None = None
    launches: bool = False


def _payload(schema: int, values: bytes) -> bytes:
    sizes = (len(values), 32 + len(values))
    return struct.pack("<IIIIQQ", 1, 0, schema, 0, *sizes) + values


def _collective(size: int) -> bytes:
    return _payload(_COLLECTIVE, struct.pack("<QQI4x", _GROUP, size, 0))


def _peer(size: int) -> bytes:
    return _payload(_PEER, struct.pack("<QQI4x", _GROUP, size, 1))


def _init(ranks: int) -> bytes:
    return _payload(_INIT, struct.pack("<QIII4x", _GROUP, ranks, 0, 0))


def _drawn(file: Path, *calls: _Call) -> pl.DataFrame:
    """Write an export with calls of NCCL, and return its kernels."""
    connection = sqlite3.connect(file)
    create_tables(connection)
    connection.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData")
    connection.execute(
        "CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId, schemaId, idx, type, name,"
        " offset)"
    )
    connection.executemany(
        "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (1, ?, ?, 18, ?, ?)",
        [
            (_INIT, 0, "NCCL communicator ID", None),
            (_INIT, 1, "No. of ranks", 8),
            (_COLLECTIVE, 0, "NCCL communicator ID", None),
            (_COLLECTIVE, 1, "Message size [bytes]", 8),
            (_PEER, 0, "NCCL communicator ID", None),
            (_PEER, 1, "Message size [bytes]", 8),
            (_PEER, 2, "Peer rank", 16),
        ],
    )
    connection.executemany(
        "INSERT INTO StringIds VALUES (?, ?)",
        [(1, "ncclDevKernel_Generic"), (2, "cudaLaunchKernelExC_v11060")],
    )
    for number, call in enumerate(calls, 1):
        connection.execute(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId,"
            " binaryData) VALUES (?, ?, 59, ?, ?, 1, ?)",
            (call.start, call.end, call.name, _THREAD, call.payload),
        )
        if call.launches:
            connection.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 2)",
                (call.start + 1, call.start + 2, _THREAD, number),
            )
            connection.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId,"
                " streamId, correlationId, globalPid, demangledName) VALUES (?, ?, 0,"
                " 7, ?, ?, 1)",
                (call.start + 100, call.end + 200, number, PROCESS),
            )
    connection.commit()
    connection.close()
    return read(file).raw.tables["kernels"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "report.sqlite"


def test_a_collective_has_the_size_of_its_message(file: Path) -> None:
    call = _Call("ncclAllReduce", 10, 20, _collective(4096), launches=True)
    row = _drawn(file, call).row(0, named=True)
    assert (row["elements"], row["sent_dtype"]) == (4096, "Byte")


def test_a_collective_has_the_name_of_the_call(file: Path) -> None:
    call = _Call("ncclReduceScatter", 10, 20, _collective(64), launches=True)
    assert _drawn(file, call)["collective"].to_list() == ["reduce_scatter"]


def test_a_group_sends_what_its_calls_send(file: Path) -> None:
    kernels = _drawn(
        file,
        _Call("ncclGroupStart", 10, 11),
        _Call("ncclSend", 12, 13, _peer(100)),
        _Call("ncclRecv", 14, 15, _peer(700)),
        _Call("ncclSend", 16, 17, _peer(20)),
        _Call("ncclGroupEnd", 18, 30, launches=True),
    )
    assert kernels["elements"].to_list() == [120]


def test_a_call_after_a_group_is_not_of_it(file: Path) -> None:
    kernels = _drawn(
        file,
        _Call("ncclGroupStart", 10, 11),
        _Call("ncclSend", 12, 13, _peer(100)),
        _Call("ncclGroupEnd", 14, 20, launches=True),
        _Call("ncclAllReduce", 30, 40, _collective(8), launches=True),
    )
    assert kernels["elements"].to_list() == [100, 8]


def test_a_recording_may_begin_inside_a_group(file: Path) -> None:
    kernels = _drawn(
        file,
        _Call("ncclGroupEnd", 10, 12),
        _Call("ncclAllReduce", 30, 40, _collective(8), launches=True),
    )
    assert kernels["elements"].to_list() == [8]


def test_a_communicator_has_as_many_ranks_as_it_was_made_of(file: Path) -> None:
    kernels = _drawn(
        file,
        _Call("ncclCommInitRank", 1, 5, _init(8)),
        _Call("ncclAllGather", 10, 20, _collective(64), launches=True),
    )
    assert kernels["group_size"].to_list() == [8]


def test_collectives_of_one_communicator_are_of_one_group(file: Path) -> None:
    kernels = _drawn(
        file,
        _Call("ncclAllGather", 10, 20, _collective(64), launches=True),
        _Call("ncclAllReduce", 30, 40, _collective(8), launches=True),
    )
    assert kernels["group"].to_list() == [str(_GROUP)] * 2


def test_a_kernel_outside_of_calls_has_no_size(file: Path) -> None:
    kernels = _drawn(
        file,
        _Call("ncclAllReduce", 10, 20, _collective(64)),
        _Call("replay", 30, 40, launches=True),
    )
    assert kernels["elements"].to_list() == [None]


@pytest.mark.parametrize("length", [0, 7, 12, 31, 40])
def test_a_short_payload_has_no_size(file: Path, length: int) -> None:
    call = _Call("ncclAllReduce", 10, 20, _collective(64)[:length], launches=True)
    assert _drawn(file, call)["elements"].to_list() == [None]


def test_without_payloads_there_are_no_sizes(file: Path) -> None:
    kernels = _drawn(file, _Call("ncclAllReduce", 10, 20, launches=True))
    assert kernels["elements"].to_list() == [None]

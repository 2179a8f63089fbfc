"""Any trace, however it is written, becomes the same tables."""

from __future__ import annotations

import gzip
import json
import os
import re
import threading
from collections import Counter
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl
import pytest
from layouts import LAYOUTS, timed
from polars.testing import assert_frame_equal
from recordings import loaded

import traceq
from traceq.model.schema import TABLES
from traceq.testing import draw

if TYPE_CHECKING:
    from pathlib import Path

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")

DOCUMENT = draw(
    """
    host     [ProfilerStep#1                                       ]
    host      [train.py(3): main                                  ]
    host       [aten::addmm         ] [aten::copy_              ]
    host        [cudaLaunchKernel>1]   [cudaMemcpyAsync>2     ]
    gpu 7                      [nvjet_tst<1  ] [Memcpy HtoD (Pageable -> Device)<2 ]
    """,
    {
        "aten::addmm": {
            "External id": 5,
            "Sequence number": 7,
            "Fwd thread id": 0,
            "Input Dims": [[64], [4, 64], [64, 8], [], []],
            "Input type": ["float", "c10::BFloat16", "c10::BFloat16", "Scalar", ""],
            "Input Strides": [[1], [64, 1], [1, 64], [], []],
            "Concrete Inputs": ["", "", "", "1", "[2, 3]"],
            "Ev Idx": 3,
        },
        "nvjet_tst": {
            "grid": [12, 1, 1],
            "block": [256, 1, 1],
            "registers per thread": 32,
        },
        "Memcpy HtoD (Pageable -> Device)": {"bytes": 4096},
    },
)
DOCUMENT["traceEvents"] += [
    {
        "ph": "M",
        "name": "thread_name",
        "pid": 1000,
        "tid": 1,
        "ts": 0,
        "args": {"name": "main"},
    },
    {"ph": "s", "id": 1, "pid": 1000, "tid": 1, "ts": 5, "cat": "ac2g", "name": "ac2g"},
    {
        "ph": "f",
        "id": 1,
        "pid": 0,
        "tid": 7,
        "ts": 9,
        "cat": "ac2g",
        "name": "ac2g",
        "bp": "e",
    },
    {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 1000,
        "tid": 1,
        "ts": 8,
        "args": {
            "Bytes": -512,
            "Addr": 140,
            "Total Allocated": 1024,
            "Device Type": 1,
            "Device Id": 0,
        },
    },
    timed(
        "PyTorch Profiler (0)",
        0,
        60,
        cat="Trace",
        pid="Spans",
        tid="x",
        args={"Op count": 0},
    ),
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 61},
]


def write(folder: Path, text: str, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def load_text(folder: Path, text: str) -> traceq.Trace:
    return traceq.load(write(folder, text), cache=False)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> traceq.Trace:
    return load_text(tmp_path_factory.mktemp("expected"), json.dumps(DOCUMENT))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_trace_is_the_same_in_every_layout(
    layout: str, expected: traceq.Trace, tmp_path: Path
) -> None:
    trace = load_text(tmp_path, LAYOUTS[layout](DOCUMENT))

    assert trace.facts.events == len(DOCUMENT["traceEvents"])
    assert trace.facts.flows == 2
    assert trace.facts.damage == ()
    for name, table in expected.frames_by_name().items():
        assert_frame_equal(trace.table(name), table)


def test_a_gzipped_trace_is_the_same(expected: traceq.Trace, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    text = LAYOUTS["kineto-2.11"](DOCUMENT).encode()
    # Two members, as parallel compressors write.
    path.write_bytes(gzip.compress(text[:300]) + gzip.compress(text[300:]))

    trace = traceq.load(path, cache=False)

    assert_frame_equal(trace.ops, expected.ops)
    assert trace.facts.damage == ()


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_may_come_through_a_pipe(
    *, packed: bool, expected: traceq.Trace, tmp_path: Path
) -> None:
    content = json.dumps(DOCUMENT).encode()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(
        target=pipe.write_bytes, args=(gzip.compress(content) if packed else content,)
    )
    writer.start()

    trace = traceq.load(pipe)

    writer.join()
    assert_frame_equal(trace.ops, expected.ops)


def test_events_of_which_the_profiler_lost_the_time_are_left_out_and_told(
    tmp_path: Path,
) -> None:
    weeks = 4_060_561_231_000
    events = [
        timed("aten::mm", weeks, 50),
        timed("cudaLaunchKernel", 0.0, 0.0, cat="cuda_runtime"),
        timed("gemm", 0.0, 0.0, cat="kernel"),
        timed("gemm", weeks + 30, 40, cat="kernel"),
    ]

    trace = load_text(tmp_path, LAYOUTS["kineto-2.11"]({"traceEvents": events}))

    assert trace.ops["ts"].to_list() == [0]
    assert trace.kernels["ts"].to_list() == [30_000]
    assert trace.runtime.height == 0
    assert trace.facts.damage == (
        "2 events have no time, which PyTorch's profiler lost, and are left out",
    )


def test_an_event_without_length_at_the_start_has_its_time(tmp_path: Path) -> None:
    events = [timed("aten::mm", 0, 0), timed("aten::mul", 7, 1)]

    trace = load_text(tmp_path, LAYOUTS["kineto-2.11"]({"traceEvents": events}))

    assert trace.ops["ts"].to_list() == [0, 7_000]
    assert trace.facts.damage == ()


def test_a_trace_larger_than_a_chunk_is_read_in_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("traceq.formats.chrome._CHUNK", 2_000)
    monkeypatch.setattr("traceq.formats.chrome._BATCH", 1_000)
    monkeypatch.setattr("traceq.formats.source.BLOCK", 300)
    events = [timed(f"op{at}", at, 1, args={"Ev Idx": at}) for at in range(500)]

    trace = load_text(tmp_path, LAYOUTS["kineto-2.11"]({"traceEvents": events}))

    assert trace.ops["name"].to_list() == [f"op{at}" for at in range(500)]
    assert trace.facts.damage == ()


@pytest.mark.parametrize(
    ("ts", "nanoseconds"),
    [
        ("1682725898236567", 1_682_725_898_236_567_000),
        ("3844467395529.833", 3_844_467_395_529_833),
        ("136.73", 136_730),
        ("37.502999999999986", 37_503),
        ("1.5e3", 1_500_000),
        ('"12.5"', 12_500),
        ("0", 0),
        ("-3.25", -3_250),
    ],
)
def test_times_become_nanoseconds_without_loss(
    ts: str, nanoseconds: int, tmp_path: Path
) -> None:
    events = [timed("first", 1, 0.125), timed("late", 2, 2)]
    text = json.dumps(events).replace('"ts": 1', f'"ts": {ts}')
    trace = load_text(tmp_path, text.replace('"ts": 2,', '"ts": 9000000000000000.001,'))

    first, late = trace.ops["ts"]
    assert late - first == 9_000_000_000_000_000_001 - nanoseconds
    assert trace.ops["dur"].to_list() == [125, 2000]


def test_time_counts_from_the_earliest_event_and_the_facts_say_when_that_was(
    tmp_path: Path,
) -> None:
    event = timed("a", 7.25, 1)
    trace = load_text(
        tmp_path, json.dumps({"baseTimeNanoseconds": 1_000_000, "traceEvents": [event]})
    )

    assert trace.ops["ts"].to_list() == [0]
    assert trace.facts.start_ns == 1_007_250


def test_inputs_are_decoded(expected: traceq.Trace) -> None:
    addmm = expected.ops.filter(pl.col("name") == "aten::addmm")
    inputs = expected.inputs.row(addmm["inputs"][0], named=True)

    assert inputs["dims"] == [[64], [4, 64], [64, 8], [], []]
    assert inputs["types"] == ["float", "c10::BFloat16", "c10::BFloat16", "Scalar", ""]
    assert inputs["strides"] == [[1], [64, 1], [1, 64], [], []]
    assert inputs["values"] == ["", "", "", "1", "[2, 3]"]


def test_a_list_of_tensors_has_no_dims_but_its_text(tmp_path: Path) -> None:
    args = {
        "Input Dims": [[[2, 3], [4, 3]], []],
        "Input type": ["TensorList", "Scalar"],
    }
    event = timed("aten::cat", 1, 1, args=args)
    inputs = load_text(tmp_path, json.dumps([event])).inputs.row(0, named=True)

    assert inputs["dims"] == [None, []]
    assert json.loads(inputs["dims_text"]) == args["Input Dims"]


def test_same_inputs_are_one_row(tmp_path: Path) -> None:
    events = [
        timed(
            "aten::mm",
            at,
            1,
            args={"External id": at, "Input Dims": [[2, 3], [3, 4]], "Ev Idx": at},
        )
        for at in range(5)
    ]
    trace = load_text(tmp_path, json.dumps(events))

    assert trace.inputs.height == 1
    assert trace.ops["inputs"].to_list() == [0] * 5


def test_addresses_of_objects_are_not_part_of_a_name(tmp_path: Path) -> None:
    name = "<built-in method append of list object at 0x7f1f8557b7c0>"
    event = timed(name, 1, 1, cat="python_function")

    frames = load_text(tmp_path, json.dumps([event])).frames

    assert frames["name"].to_list() == ["<built-in method append of list object>"]


def test_names_need_not_be_ascii(tmp_path: Path) -> None:
    event = timed("加法 → ü", 1, 2, args={"Ev Idx": 1})
    for ascii_only in (True, False):
        text = json.dumps([event, event], ensure_ascii=ascii_only)
        trace = load_text(tmp_path, text)
        assert trace.ops["name"].to_list() == ["加法 → ü"] * 2
        assert trace.ops["dur"].to_list() == [2000, 2000]


OLD_NAMES = {
    "Operator": "ops",
    "Kernel": "kernels",
    "Memcpy": "kernels",
    "Memset": "kernels",
    "Runtime": "runtime",
    "gpu_user_Annotation": "annotations",
}


@pytest.mark.parametrize("category", OLD_NAMES)
def test_categories_of_old_versions_are_known(category: str, tmp_path: Path) -> None:
    event = timed("a", 1, 1, cat=category, tid="stream 7")
    op = timed("b", 1, 1)

    trace = load_text(tmp_path, json.dumps([event, op]))

    assert "a" in trace.table(OLD_NAMES[category])["name"]


def test_regions_of_old_versions_were_operators(tmp_path: Path) -> None:
    event = timed("ProfilerStep#3", 1, 9, cat="Operator")

    trace = load_text(tmp_path, json.dumps([event]))

    assert trace.steps["step"].to_list() == [3]


def test_the_profiler_before_kineto_had_processes_for_categories(
    tmp_path: Path,
) -> None:
    events = [
        {
            "name": "aten::mm",
            "ph": "X",
            "ts": 1.5,
            "dur": 2,
            "tid": 1,
            "pid": "CPU functions",
            "args": {},
        },
        {
            "name": "gemm",
            "ph": "X",
            "ts": 3,
            "dur": 2,
            "tid": 0,
            "pid": "CUDA functions",
            "args": {},
        },
    ]
    trace = load_text(tmp_path, json.dumps(events))

    assert trace.ops["name"].to_list() == ["aten::mm"]
    assert trace.kernels["name"].to_list() == ["gemm"]


def test_an_allocation_is_a_moment_though_the_python_exporter_gives_it_a_duration(
    tmp_path: Path,
) -> None:
    memory = timed(
        "[memory]",
        2,
        900,
        cat="cpu_instant_event",
        args={"Bytes": 64, "Device Type": 0},
    )
    ops = [timed(name, ts, 5) for name, ts in (("outer", 0), ("later", 10))]
    trace = load_text(tmp_path, json.dumps([*ops, memory]))

    assert trace.memory["op"].to_list() == [0]
    assert trace.ops["parent"].to_list() == [None, None]


def test_a_list_of_objects_among_the_arguments_is_not_a_row_of_events(
    tmp_path: Path,
) -> None:
    strange = timed(
        "strange",
        1,
        9,
        args={"parts": [{"a": 1}, {"b": 2}, {"c": 3}], "Sequence number": 4},
    )
    plain = timed("plain", 2, 1)

    trace = load_text(tmp_path, json.dumps([plain, strange, plain]))

    assert sorted(trace.ops["name"]) == ["plain", "plain", "strange"]
    assert trace.ops.filter(pl.col("name") == "strange")["sequence"].to_list() == [4]
    assert trace.facts.damage == ()


@pytest.mark.parametrize("layout", ["one-line", "compact", "indented", "kineto-2.11"])
def test_lists_of_objects_after_the_events_are_no_events(
    layout: str, tmp_path: Path
) -> None:
    events = [timed("aten::mm", 1, 9), timed("k", 2, 3, cat="kernel")]
    said = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "x": [{"a": [1]}]}
    text = LAYOUTS[layout]({"traceEvents": events})
    end = text.rindex("}")

    trace = load_text(tmp_path, text[:end] + ", " + json.dumps(said)[1:])

    assert (trace.ops.height, trace.kernels.height) == (1, 1)
    assert trace.devices["name"].to_list() == ["NVIDIA H200"]
    assert trace.facts.damage == ()


def test_a_file_may_change_its_layout_in_the_middle(tmp_path: Path) -> None:
    event = timed("a", 1, 9, args={"Ev Idx": 1})
    first = LAYOUTS["kineto-2.11"]({"traceEvents": [event] * 20})
    merged = first.replace("\n  ],", ", " + json.dumps([event] * 3)[1:-1] + "\n  ],")

    trace = load_text(tmp_path, merged)

    assert trace.ops.height == 23
    assert trace.facts.events == 23


def test_an_event_may_be_spaced_as_no_other_is(tmp_path: Path) -> None:
    event = timed("a", 1, 9, args={"Sequence number": 3})
    text = LAYOUTS["kineto-2.11"]({"traceEvents": [event] * 3})
    last = text.rindex('"ts": ')
    # NaN is no JSON: a parser would refuse the event.
    odd = text[last:].replace('"ts": ', '"ts" :\t', 1).replace('"ts" :', '"ts":')
    odd = odd.replace(', "dur": ', ' ,\n"dur":  ').replace(": 3", ': 3, "x": NaN')

    trace = load_text(tmp_path, text[:last] + odd)

    assert trace.ops["dur"].to_list() == [9000] * 3
    assert trace.ops["sequence"].to_list() == [3] * 3
    assert trace.facts.damage == ()


def test_an_event_that_fits_no_table_is_kept_with_its_arguments(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [
        timed("a", 1, 9),
        timed("Stream Sync", 1, 2, cat="cuda_sync", pid=0, tid=7, args={"stream": 7}),
    ]
    other = load_text(tmp_path, json.dumps(events)).other

    assert other["category"].to_list() == ["cuda_sync"]
    assert json.loads(other["args"][0]) == {"stream": 7}


# Python calls whose return the profiler missed, in code that torch.compile runs.
_UNCLOSED = {"graph_record.trace.json.gz": 2}


def test_every_event_has_the_name_and_the_times_that_a_plain_parse_gives_it(
    whole_trace: Path,
) -> None:
    text = gzip.decompress(whole_trace.read_bytes())
    try:
        document = orjson.loads(text)
        events = document["traceEvents"] if isinstance(document, dict) else document
    except orjson.JSONDecodeError:
        pytest.skip("not whole JSON: nothing to compare with")
    tables = ("ops", "kernels", "runtime", "annotations", "frames", "other")
    plain = Counter(
        (_without_address(event["name"]), _nanoseconds(event.get("dur", 0)))
        for event in events
        if event["ph"] in "Xi" and event["name"] not in ("[memory]", "[OutOfMemory]")
    )

    trace = loaded(whole_trace)

    read = Counter[tuple[str, int]]()
    for table in tables:
        rows = trace.host_ops if table == "ops" else getattr(trace, table)
        read.update(rows.select("name", "dur").iter_rows())
    # Calls whose return was not recorded end where the call around them does.
    unclosed, cut = plain - read, read - plain
    assert [name for name, _ in sorted(cut.elements())] == [
        name for name, _ in sorted(unclosed.elements())
    ]
    assert unclosed.total() == _UNCLOSED.get(whole_trace.name, 0)


@cache
def _without_address(name: str) -> str:
    return _ADDRESS.sub(">", name)


@cache
def _nanoseconds(value: float | str) -> int:
    # JSON's numbers lose digits as floats, as one rounds them for the file.
    return max(0, round(Decimal(str(value)) * 1000))


def test_every_table_has_the_published_columns(fixture_trace: Path) -> None:
    trace = loaded(fixture_trace)

    for name, table in trace.frames_by_name().items():
        assert dict(table.schema) == TABLES[name].dtypes

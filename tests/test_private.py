"""A word planted in every field of a recording is in none after shrink."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from linting import bundled_rules

from traceq.errors import InputError
from traceq.formats.sanitize.paths import Paths
from traceq.formats.sanitize.regions import Regions
from traceq.formats.sanitize.snapshot import clean_snapshot
from traceq.formats.sanitize.trace import read_written
from traceq.linter.config import Config
from traceq.shrink.lines import needed_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MARK = "m4rk3r"
SENTENCE = f"the run of {MARK} on box-17"
PATH = f"/mnt/{MARK}/data.bin"

Way = tuple[Any, ...]


def event(category: str, name: str, /, **args: Any) -> dict[str, Any]:  # noqa: ANN401
    head = {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": 8}
    return head | {"ts": 10.5, "dur": 2, "args": args}


def meta(name: str, /, **args: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"ph": "M", "name": name, "pid": 7, "tid": 8, "ts": 0, "args": args}


GROUP = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl"}
COLLECTIVE = {
    "Collective name": "allreduce",
    "In msg nelems": 64,
    "Out msg nelems": 64,
    "Group size": 2,
    "dtype": "Float",
    "In split size": "[]",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1]",
}
TRACE: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
    "distributedInfo": {
        "backend": "nccl",
        "rank": 0,
        "world_size": 2,
        "pg_count": 1,
        "pg_config": [GROUP],
        "nccl_version": "2.27.5",
    },
    "cuda_runtime_version": 13000,
    "with_stack": 1,
    "host_name": "box-17",
    "trace_id": "599D",
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 1790857026000000000,
    "traceEvents": [
        event(
            "cpu_op",
            "aten::mm",
            **{
                "External id": 1,
                "Record function id": 0,
                "Concrete Inputs": ["", "0.5", "[1, 2]", "True"],
                "Input type": ["float", "Scalar", "ScalarList", "c10::BFloat16"],
                "Input Strides": [[1], [], [], [[8, 1], [1]]],
                "Input Dims": [[8], [], [], [[8, 8], [8]]],
                "Sequence number": 3,
                "Fwd thread id": 0,
                "Call stack": "/home/ann/p/a.py(3): f;/home/ann/p/b.py(4): g",
                "Ev Idx": 1,
                "kernel_file": "/var/x.py",
                "kernel_kwargs": "XBLOCK=1",
            },
        ),
        event("cpu_op", "record_param_comms", **COLLECTIVE),
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0"),
        event("user_annotation", "ProfilerStep#1", scope="user_scope"),
        event("user_annotation", "FORWARD"),
        event("gpu_user_annotation", "nccl:all_reduce"),
        event("python_function", "/home/ann/p/a.py(3): f", **{"Python id": 1}),
        event("python_function", "nn.Module: Net_0", **{"Python module id": 1})
        | {"caller": "/home/ann/p/a.py(5): f"},
        event("python_function", "<built-in method mm of type object at 0xAB>"),
        event("cuda_runtime", "cudaLaunchKernel", cbid=211, correlation=4),
        event("cuda_driver", "cuLaunchKernelEx", correlation=5),
        event(
            "kernel",
            "void gemm<float>(float*)",
            **{
                "device": 0,
                "stream": 7,
                "correlation": 4,
                "grid": [1, 1, 1],
                "block": [32, 1, 1],
                "blocks per SM": 0.5,
                "shared memory": "0",
                "kind": "Dispatch Kernel",
            },
            **COLLECTIVE,
        ),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", bytes=8, src="0x1"),
        event("gpu_memset", "Memset (Device)", bytes=8, device=0),
        event("overhead", "Lazy Function Loading"),
        event("cuda_sync", "Stream Sync", cuda_sync_kind="Stream Sync"),
        event("Trace", "PyTorch Profiler (0)", **{"Op count": 4}),
        {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]"}
        | {
            "pid": 7,
            "tid": 8,
            "ts": 11,
            "args": {"Bytes": 8, "Addr": 1, "Device Id": 0},
        },
        {
            "ph": "s",
            "id": 1,
            "pid": 7,
            "tid": 8,
            "ts": 1,
            "cat": "ac2g",
            "name": "ac2g",
        },
        meta("process_name", name="python3"),
        meta("process_labels", labels="GPU 0"),
        meta("process_sort_index", sort_index=5),
        meta("thread_name", name="thread 12 (pt_autograd_0)"),
        meta("thread_name", name="stream 7 "),
        {
            "ph": "i",
            "name": "Record Window End",
            "s": "g",
            "pid": "",
            "tid": "",
            "ts": 9,
        },
    ],
    "traceName": "/home/ann/out.json",
}
CODE = ("aten::mm", "record_param_comms", "evaluate_function", "cuda", "cuLaunch")
FRAME = {"filename": "/home/ann/p/a.py", "line": 3, "name": "f"}
STACK = {"frames": [FRAME]}
SNAPSHOT: dict[str, Any] = {
    "segments": [
        {
            "device": 0,
            "address": 1 << 20,
            "total_size": 512,
            "allocated_size": 512,
            "active_size": 512,
            "requested_size": 500,
            "stream": 0,
            "segment_type": "small",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "blocks": [
                {"address": 1 << 20, "size": 512, "requested_size": 500}
                | {"state": "active_allocated", "user_metadata": "x"}
                | {"history": [{"addr": 1, "real_size": 500} | STACK]}
                | STACK
            ],
        }
        | STACK
    ],
    "device_traces": [
        [
            {"action": "alloc", "addr": 1 << 20, "size": 500, "stream": 0}
            | {"time_us": 5, "compile_context": "0/0", "user_metadata": "x"}
            | {"pool_id": (0, 0)}
            | STACK
        ]
    ],
    "allocator_settings": {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "max_split_size": -1,
        "roundup_power2_divisions": {"1": 0},
    },
    "external_annotations": [
        {"stage": "START", "name": "FORWARD", "device": 0, "time_us": 1}
    ],
}


def leaves(result: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:  # noqa: ANN401
    """Yield every value that is no list and no object, with the way to it."""
    if isinstance(result, dict):
        for key, value in result.items():
            yield from leaves(value, (*way, key))
    elif isinstance(result, (list, tuple)):
        for at, value in enumerate(result):
            yield from leaves(value, (*way, at))
    else:
        yield way, result


def planted(result: Any, way: Way, word: Any) -> Any:  # noqa: ANN401
    """Return a copy with another value in one place."""
    if not way:
        return word
    first, rest = way[0], way[1:]
    changed = list(result) if isinstance(result, tuple) else copy.copy(result)
    changed[first] = planted(result[first], rest, word)
    return tuple(changed) if isinstance(result, tuple) else changed


def objects(result: Any, way: Way = ()) -> Iterator[Way]:  # noqa: ANN401
    if isinstance(result, dict):
        yield way
    pairs = (
        result.items()
        if isinstance(result, dict)
        else enumerate(result)
        if isinstance(result, (list, tuple))
        else ()
    )
    for key, value in pairs:
        yield from objects(value, (*way, key))


def at(result: Any, way: Way) -> Any:  # noqa: ANN401
    for key in way:
        result = result[key]
    return result


def words_for(way: Way, value: Any) -> list[Any]:  # noqa: ANN401
    """Return what to plant: names of code are kept, but no paths and no sentences."""
    text = str(value)
    if way[-1] == "name" and text.startswith("void"):
        return [f"{text} {PATH}"]
    if way[-1] in ("Call stack", "caller") or (way[-1] == "name" and ".py(" in text):
        return [SENTENCE, PATH, MARK, f"/mnt/{MARK}/a.py(3): f", f"a.py(3): {SENTENCE}"]
    if way[-1] == "name" and any(word in text for word in CODE):
        return [SENTENCE, PATH]
    return [SENTENCE, PATH, MARK, [MARK], {MARK: MARK}, f"{text} {SENTENCE}"]


def cleaned_trace(folder: Path, trace: dict[str, Any]) -> bytes:
    file = folder / "trace.json"
    file.write_text(json.dumps(trace), encoding="utf-8")
    return read_written(file).json()


def cleaned_snapshot(folder: Path, snapshot: dict[str, Any]) -> bytes:
    file = folder / "snapshot.pickle"
    file.write_bytes(pickle.dumps(snapshot))
    paths = Paths(["/home/ann/p/a.py"])
    try:
        return clean_snapshot(file, paths, Regions(paths))
    except InputError:
        return b"refused"


@pytest.mark.slow
def test_a_word_in_any_field_of_a_trace_is_gone(tmp_path: Path) -> None:
    retained = [
        (way, word)
        for way, value in leaves(TRACE)
        for word in words_for(way, value)
        if MARK.encode() in cleaned_trace(tmp_path, planted(TRACE, way, word))
    ]

    assert retained == []


@pytest.mark.real
def test_a_word_under_an_unknown_key_of_a_trace_is_gone(tmp_path: Path) -> None:
    for way in objects(TRACE):
        for value in (MARK, None, [1], {"a": 1}):
            more = at(TRACE, way) | {MARK: value}
            assert MARK.encode() not in cleaned_trace(
                tmp_path, planted(TRACE, way, more)
            ), way


def test_a_word_after_the_events_of_a_trace_is_gone(tmp_path: Path) -> None:
    info = {"backend": "nccl", "pg_config": [{"pg_name": MARK}], MARK: 1}
    trace = TRACE | {"distributedInfo": TRACE["distributedInfo"]}
    del trace["distributedInfo"]
    text = cleaned_trace(tmp_path, trace | {"distributedInfo": info, MARK: MARK})

    assert MARK.encode() not in text
    assert json.loads(text)["distributedInfo"] == {"backend": "nccl"}


def test_a_word_in_any_field_of_a_snapshot_is_gone(tmp_path: Path) -> None:
    retained = []
    for way, _ in leaves(SNAPSHOT):
        words = [MARK, SENTENCE, PATH, [MARK]]
        if way[-1] == "filename":
            words = [f"/mnt/{MARK}/a.py"]
        elif way[-1] == "name" and "frames" in way:
            words = [PATH]
        retained += [
            (way, word)
            for word in words
            if MARK.encode() in cleaned_snapshot(tmp_path, planted(SNAPSHOT, way, word))
        ]

    assert retained == []


def test_a_word_under_an_unknown_key_of_a_snapshot_is_gone(tmp_path: Path) -> None:
    for way in objects(SNAPSHOT):
        for value in (MARK, None, {"a": MARK}):
            more = at(SNAPSHOT, way) | {"Key of " + MARK: value}
            assert MARK.encode() not in cleaned_snapshot(
                tmp_path, planted(SNAPSHOT, way, more)
            ), way


def test_what_torch_writes_stays_as_it_is(tmp_path: Path) -> None:
    document = json.loads(cleaned_trace(tmp_path, TRACE))
    names = [item["name"] for item in document["traceEvents"]]
    (op, *_) = document["traceEvents"]

    written = [item["name"] for item in TRACE["traceEvents"] if item["ph"] != "s"]
    assert names == [name.replace("/home/ann/p/", "") for name in written]
    for key in ("Concrete Inputs", "Input type", "Input Strides", "Input Dims"):
        assert op["args"][key] == TRACE["traceEvents"][0]["args"][key]
    assert document["deviceProperties"] == TRACE["deviceProperties"]


def test_a_snapshot_that_torch_wrote_stays_as_it_is(tmp_path: Path) -> None:
    document = pickle.loads(cleaned_snapshot(tmp_path, SNAPSHOT))  # noqa: S301 - ours

    assert document["allocator_settings"] == SNAPSHOT["allocator_settings"]
    assert document["external_annotations"] == SNAPSHOT["external_annotations"]
    assert document["segments"][0]["segment_pool_id"] == (0, 0)


WARNING = "a.py:7: UserWarning: called a synchronizing CUDA operation"


@pytest.mark.real
@pytest.mark.parametrize(
    "line",
    [
        f"[{MARK}@box] {{}}",
        f"2026-11-15 {MARK}: {{}}",
        f"{{}} (Triggered internally at x.cpp:1.) {MARK}",
        f"{MARK}\n{{}}\n{MARK}",
    ],
)
def test_a_word_in_any_line_of_a_log_is_gone(line: str) -> None:
    lines = line.format(WARNING).split("\n")

    retained = needed_lines(lines, bundled_rules(), Config(select=("LOG",)))

    assert any("synchronizing" in text for text in retained)
    assert MARK not in " ".join(retained)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("FORWARD", "FORWARD"),
        ("## train_step 3 ##", "## train_step 3 ##"),
        ("Optimizer.step#AdamW.step", "Optimizer.step#AdamW.step"),
        ("forward of alice-net", "region-1 forward"),
        ("load_data_loader for bob", "region-1"),
        ("alice", "region-1"),
        ("region-7", "region-7"),
        ("epoch 20261115", "region-1"),
    ],
)
def test_a_region_is_of_a_known_kind_or_has_a_number(text: str, name: str) -> None:
    regions = Regions(Paths([]))

    assert regions.name(text) == regions.name(text) == name
    assert Regions(Paths([])).name(name) == name


def test_regions_are_numbered_beside_those_that_have_a_number() -> None:
    regions = Regions(Paths([]), taken=['name": "region-3"'])

    assert [regions.name(text) for text in ("ann", "bob", "ann")] == [
        "region-4",
        "region-5",
        "region-4",
    ]


def test_regions_keep_their_texts_if_asked(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    named = event("user_annotation", "attention of eve")
    trace = TRACE | {"traceEvents": [*TRACE["traceEvents"], named]}
    file.write_text(json.dumps(trace), encoding="utf-8")

    assert b"attention of eve" in read_written(file, keep_regions=True).json()
    assert b"attention of eve" not in read_written(file).json()


@pytest.mark.slow
def test_a_run_folder_leaves_no_word_in_a_fixture(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    named = [event("user_annotation", f"{word} {SENTENCE}") for word in ("a", "fwd")]
    trace = TRACE | {"traceEvents": [*TRACE["traceEvents"], *named]}
    (run / "rank-0.trace.json").write_text(json.dumps(trace), encoding="utf-8")
    (run / "rank-0.memory.pickle").write_bytes(pickle.dumps(SNAPSHOT))
    rank = {
        "format": 1,
        "name": "rank-0",
        "rank": 0,
        "state": "done",
        "trace": {"file": "rank-0.trace.json"},
        "memory": {"file": "rank-0.memory.pickle"},
        "versions": {"torch": f"2.11.0 {MARK}"},
        "packages": {"own": [MARK], "installed": [f"lib_{MARK}"]},
    }
    command = [f"/opt/{MARK}/bin/python", f"/home/{MARK}/train.py", "--lr", "0.1"]
    command += ["--name", MARK, f"--out={PATH}", f"X={MARK}"]
    manifest = {"format": 1, "command": command, "label": MARK, "ranks": [rank]}
    (run / "run.json").write_text(json.dumps(manifest))

    answer = traceq("shrink", run, "-o", tmp_path / "small")

    assert answer.status == 0, answer.err
    for file in (tmp_path / "small").iterdir():
        content = file.read_bytes()
        content = gzip.decompress(content) if file.suffix == ".gz" else content
        assert MARK.encode() not in content, file.name
    origin = (tmp_path / "small" / "origin.toml").read_text(encoding="utf-8")
    assert 'program = "python train.py --lr 0.1 --name … --out=… …"' in origin

"""Inputs made to hurt: each is read or refused in a sentence, in bounded memory."""

from __future__ import annotations

import gzip
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command import traceq
from linting import log_findings, outcome
from many import document

from traceq.errors import InputError
from traceq.formats import source
from traceq.formats.log import read_log
from traceq.formats.snapshot import read_snapshot
from traceq.inputs.load_trace import load
from traceq.linter import inputs
from traceq.model.recording import Recording
from traceq.testing import draw, load_drawn

if TYPE_CHECKING:
    from traceq.model.snapshot import Snapshot

BLOCK = {"address": 4096, "size": 512, "requested_size": 500}
FRAME = {"filename": "train.py", "line": 3, "name": "main"}


def segment(**other: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever torch writes
    block = {**BLOCK, "state": "active_allocated", "frames": [FRAME]}
    return {
        "device": 0,
        "address": 4096,
        "total_size": 2 << 20,
        "allocated_size": 512,
        "active_size": 512,
        "stream": 0,
        "segment_type": "small",
        "blocks": [block],
        **other,
    }


def snapshot(tmp_path: Path, *segments: dict[str, Any]) -> Snapshot:
    file = tmp_path / "snapshot.pickle"
    content = {"segments": list(segments), "device_traces": [[]]}
    file.write_bytes(pickle.dumps(content))
    return read_snapshot(file)


@pytest.mark.parametrize("key", ["address", "stream", "segment_type", "is_expandable"])
def test_a_snapshot_that_holds_itself_is_refused(tmp_path: Path, key: str) -> None:
    endless: dict[str, Any] = {}
    endless["itself"] = endless

    with pytest.raises(InputError, match="not a memory snapshot"):
        snapshot(tmp_path, segment(**{key: endless}))


def test_a_block_that_is_listed_again_and_again_counts_once(tmp_path: Path) -> None:
    one = segment()
    one["blocks"] *= 50

    result = snapshot(tmp_path, one)

    assert result.blocks.height == 1
    assert result.facts.damage == (
        "49 blocks are listed again at the same address; each is counted once",
    )


def test_a_line_of_minus_one_without_its_sign_is_unknown(tmp_path: Path) -> None:
    one = segment()
    one["blocks"][0]["frames"] = [{**FRAME, "line": 2**64 - 1}, FRAME]

    assert snapshot(tmp_path, one).frames["line"].to_list() == [None, 3]


def test_a_pool_may_be_a_list(tmp_path: Path) -> None:
    result = snapshot(tmp_path, segment(segment_pool_id=[0, 1]))

    assert result.segments["pool"].to_list() == ["0.1"]


LIMITED = """
import resource, sys
import traceq.linter.engine  # Polars takes addresses that it never uses
most = 3 << 30
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + most, used + most))
from traceq.cli import main
main()
"""


def lint_in_little_memory(trace: dict[str, Any], folder: Path) -> None:
    """Lint a trace in 3 GiB beyond what Python and Polars take."""
    file = folder / "trace.json"
    file.write_text(json.dumps(trace))

    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "lint", str(file), "--no-cache"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode in (0, 1), done.stderr
    assert "crashed" not in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
@pytest.mark.parametrize("kind", ["threads", "streams", "names"])
def test_memory_does_not_grow_with_threads_times_events(
    kind: str, tmp_path: Path
) -> None:
    lint_in_little_memory(document(12_000, kind), tmp_path)


def recursion(depth: int) -> dict[str, Any]:
    """Return a function that calls itself, four launches before that and four after."""
    head = {"ph": "X", "pid": 1, "tid": 1}
    mark = {"cat": "user_annotation", "name": "ProfilerStep#1", "ts": -1}
    whole, starts = 40 * depth, (1, 4, 7, 10, -13, -10, -7, -4)
    events = [{**head, **mark, "dur": whole + 2}]
    for level in range(depth):
        begin, end = 20 * level, whole - 20 * level
        name = {"cat": "python_function", "name": "train.py(3): f", "args": {}}
        events.append({**head, **name, "ts": begin, "dur": end - begin})
        for at in starts:
            ts, args = at + (begin if at > 0 else end), {"correlation": len(events)}
            launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": args}
            work = {"cat": "kernel", "name": "k", "pid": 0, "tid": 7, "args": args}
            events += [
                {**head, "cat": "cpu_op", "name": "aten::add", "ts": ts, "dur": 2},
                {**head, **launch, "ts": ts + 0.5, "dur": 1},
                {**head, **work, "ts": ts + 1, "dur": 1},
            ]
    return {"schemaVersion": 1, "traceEvents": events}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_memory_does_not_grow_with_the_depth_of_a_recursion_times_its_ops(
    tmp_path: Path,
) -> None:
    lint_in_little_memory(recursion(4_000), tmp_path)


LIMITED_GROUPS = """
import resource
import polars as pl
from traceq.analysis.base.ownership import by_place
from traceq.linter.view import View
at = {"file": "a.py", "line": 1, "function": "f", "via": None, "call_line": None}
ids = pl.int_range(400_000)
modules = pl.Series(["x" * 10_000, "y" * 10_000], dtype=pl.Categorical)
kernels = pl.select(id=ids, ts=ids, dur=1, owner=ids).with_columns(
    pl.lit(modules).gather(pl.col("id") % 2).alias("module"),
    *(pl.lit(value).alias(key) for key, value in at.items()),
)
most = 2 << 30
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + most, used + most))
for rows in (by_place(kernels, []), View.by_place(kernels)):
    print(rows["modules"].list.len().to_list(), len(rows["module"][0]))
"""


@pytest.mark.real
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_the_long_name_of_a_module_is_not_in_memory_for_each_of_its_kernels() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED_GROUPS],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "[2] 10000\n" * 2, done.stderr


REPEATED = """
import json, resource, sys
def op(at, name, thread):
    args = {"Sequence number": 5, "Fwd thread id": thread}
    head = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    return {**head, "name": name, "ts": 2 * at, "dur": 1, "args": args}
events = [op(at, "aten::mm", 0) for at in range(20_000)]
events += [op(at, "MmBackward0", 1) for at in range(20_000, 40_000)]
open(sys.argv[1], "w").write(json.dumps({"schemaVersion": 1, "traceEvents": events}))
from pathlib import Path
from traceq.inputs.load_trace import load
most = 3 << 30
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + most, used + most))
print(load(Path(sys.argv[1]), cache=False).ops["forward"].unique().to_list())
"""


@pytest.mark.real
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_a_sequence_number_may_be_there_any_number_of_times(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REPEATED, str(tmp_path / "trace.json")],
        capture_output=True,
        text=True,
        check=False,
    )

    # The one that began last.
    assert done.stdout == "[None, 19999]\n", done.stderr


def test_a_trace_that_unpacks_to_far_more_than_one_would_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "ALWAYS_UNPACKED", 1 << 20)
    file = tmp_path / "trace.json.gz"
    event = b'{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "ts": 1, "dur": 1}, '
    file.write_bytes(gzip.compress(b'{"traceEvents": [' + event * (64 << 10)))

    with pytest.raises(InputError, match="it unpacks to far more than one would"):
        load(file, cache=False)


@pytest.mark.real
def test_of_a_log_that_unpacks_to_far_more_only_the_beginning_is_read(
    tmp_path: Path,
) -> None:
    file = tmp_path / "long.log.gz"
    file.write_bytes(gzip.compress(b"x\n" * (12 << 20)))

    log = read_log(file)

    assert log.cut
    assert log.lines.height == 500_000


def test_a_log_that_is_read_to_its_end_is_not_cut(tmp_path: Path) -> None:
    file = tmp_path / "short.log"
    file.write_text("one\r\n\ntwo", encoding="utf-8")

    log = read_log(file)

    assert not log.cut
    assert log.lines.rows() == [(1, "one"), (2, ""), (3, "two")]


@pytest.mark.parametrize("long", ["1" * 10**6, "9." * 10**5, "a/" * 10**5, "(" * 10**5])
def test_lines_of_a_million_characters_are_looked_at(long: str) -> None:
    tried = "CUDA out of memory. Tried to allocate 2.00 MiB"
    log = "\n".join([f"{tried} {long}", *[f"{long} MiB is free {long}"] * 12])

    (finding,) = log_findings(log, "LOG006")

    assert finding.message == "OOM: 2.00 MiB could not be allocated"


@pytest.mark.parametrize("size", ["0 bytes", "1.2.3 MiB", ". GiB"])
def test_odd_sizes_in_a_log_are_no_crash(size: str) -> None:
    (finding,) = log_findings(f"CUDA out of memory. Tried to allocate {size}", "LOG006")

    assert finding.message == f"OOM: {size} could not be allocated"


def test_strides_that_are_fewer_than_the_inputs_are_no_crash() -> None:
    shapes = inputs([[64, 64], [64, 64]], ["float", "float"], [[1]])

    trace = load_drawn(
        """
        host   [aten::mm            ]
        host    [cudaLaunchKernel>1]
        gpu 7                   [sgemm<1       ]
        """,
        {"aten::mm": shapes},
    )

    assert not outcome(Recording("drawn", trace), "GEM").crashed


def test_arguments_nested_deeper_than_json_is_written_are_read(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    trace = draw("host   [aten::mm  ]")
    trace["traceEvents"].append(
        {"ph": "X", "cat": "new", "name": "n", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
        | {"args": {"deep": deep}}
    )
    file = tmp_path / "deep.json"
    file.write_text(json.dumps(trace), encoding="utf-8")

    assert load(file, cache=False).other.height == 1


@pytest.mark.real
def test_a_trace_of_a_gpu_without_a_name_can_be_shrunk(tmp_path: Path) -> None:
    document = draw("""
        host  [ProfilerStep#1                      ]
        host   [aten::mm            ]
        host    [cudaLaunchKernel>1]
        gpu 7                     [gemm<1     ]
    """)
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(document), encoding="utf-8")

    answer = traceq("shrink", file, "-o", tmp_path / "small")

    assert answer.status == 0, answer.err
    assert 'gpu = "unknown"' in (tmp_path / "small" / "origin.toml").read_text()

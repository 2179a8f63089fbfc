"""Reports that only nsys reads, and files of other profilers."""

from __future__ import annotations

import json
import pickle
import sqlite3
import sys
from typing import TYPE_CHECKING

import pytest
from command import traceq
from nsys_tables import write_export
from recordings import path_of

from traceq.formats.chrome import read as read_chrome
from traceq.inputs.load_trace import load

if TYPE_CHECKING:
    from pathlib import Path

# A stand-in for nsys, which is not installed: it copies a database to --output.
_PROGRAM = """\
#!{python}
import pathlib, sys
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(" ".join(arguments) + "\\n")
if arguments[:3] != ["export", "--type", "sqlite"]:
    sys.exit("unknown arguments")
if pathlib.Path(arguments[-1]).read_bytes() == b"damaged":
    sys.exit("Importer error: the report is damaged")
output = pathlib.Path(arguments[arguments.index("--output") + 1])
output.write_bytes(pathlib.Path({database!r}).read_bytes())
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    file = tmp_path / "expected.sqlite"
    write_export(file, read_chrome(path_of("copies_fixed.trace.json.gz")))
    return file


@pytest.fixture
def report(tmp_path: Path) -> Path:
    file = tmp_path / "my report.nsys-rep"
    file.write_bytes(b"closed")
    return file


@pytest.fixture
def log(tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a stand-in for nsys on the PATH; return where it lists its calls."""
    folder, log = tmp_path / "bin", tmp_path / "calls.txt"
    folder.mkdir()
    program = folder / "nsys"
    program.write_text(
        _PROGRAM.format(python=sys.executable, log=str(log), database=str(database))
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return log


@pytest.fixture
def no_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("ending", [".nsys-rep", ".qdrep", ".qdstrm"])
def test_a_report_is_exported_by_nsys(
    ending: str, report: Path, database: Path
) -> None:
    renamed = report.rename(report.with_suffix(ending))
    kernels = load(renamed, cache=False).kernels
    assert kernels.equals(load(database, cache=False).kernels)


def test_nothing_is_written_beside_the_report(report: Path, log: Path) -> None:
    before = {*report.parent.iterdir()}
    load(report, cache=False)
    assert {*report.parent.iterdir()} - before == {log}


@pytest.mark.slow
def test_a_report_is_exported_once(report: Path, log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fixture"
    answer = traceq("shrink", report, "-o", folder, "--max-kb", "4000")
    assert answer.status == 0, answer.err
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.usefixtures("log")
def test_findings_name_the_report(report: Path) -> None:
    assert traceq("lint", "--no-cache", report).lines[0] == str(report)


@pytest.mark.usefixtures("log")
def test_the_reason_of_nsys_is_passed_on(report: Path) -> None:
    report.write_bytes(b"damaged")
    answer = traceq("lint", "--no-cache", report)
    assert answer.status == 2
    assert "cannot be exported by nsys: Importer error: the report is damaged" in (
        answer.err
    )


@pytest.mark.usefixtures("no_nsys")
def test_without_nsys_the_command_is_printed(report: Path) -> None:
    answer = traceq("lint", "--no-cache", report)
    assert answer.status == 2
    assert (
        "run nsys export --type sqlite --output 'my report.sqlite'"
        f" '{report}'" in answer.err
    )


@pytest.mark.usefixtures("no_nsys")
def test_without_nsys_there_is_one_sentence(report: Path) -> None:
    assert traceq("lint", "--no-cache", report).err.count("\n") == 1


def _rocpd(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE rocpd_kernel_dispatch (id, start, end)")
    connection.commit()
    connection.close()


def _write(file: Path, content: bytes | str) -> None:
    file.write_bytes(content.encode() if isinstance(content, str) else content)


_DUMP = {"version": "2.10", "pg_config": {}, "nccl_version": "2.27", "entries": []}
_TREE = [{"children": [], "frame": {"name": "ROOT"}, "metrics": {"time (ns)": 1}}]
_TABLE = '"Kind","Agent_Id","Queue_Id","Kernel_Name"\n"KERNEL_DISPATCH",1,1,"gemm"\n'
_OTHERS: dict[str, tuple[bytes | str, str]] = {
    "report.ncu-rep": (b"NVR\x00\x01", "Nsight Compute"),
    "renamed.bin": (b"NVR\x00\x01", "Nsight Compute"),
    "host.xplane.pb": (b"\n\x10/host:CPU", "profile of XLA"),
    "matmul.hatchet": (json.dumps(_TREE), "Proton"),
    "tree.json": (json.dumps(_TREE), "Proton"),
    "results.json": ('{"rocprofiler-sdk-tool": []}', "trace of rocprofv3"),
    "out.pftrace": (b"\n\x08", "trace of rocprofv3"),
    "kernel_trace.csv": (_TABLE, "table of rocprofv3"),
    "nccl_trace_rank_0": (pickle.dumps(_DUMP, protocol=2), "flight recorder"),
    "nccl_trace.json": (json.dumps(_DUMP), "flight recorder"),
}


@pytest.mark.parametrize("name", _OTHERS)
def test_the_file_of_another_profiler_is_named(name: str, tmp_path: Path) -> None:
    content, what = _OTHERS[name]
    _write(tmp_path / name, content)
    assert what in traceq("lint", "--no-cache", tmp_path / name).err


@pytest.mark.parametrize("name", _OTHERS)
def test_it_is_refused_in_one_sentence_with_what_to_record(
    name: str, tmp_path: Path
) -> None:
    _write(tmp_path / name, _OTHERS[name][0])
    answer = traceq("lint", "--no-cache", tmp_path / name)
    assert answer.status == 2
    assert answer.err.count("\n") == 1
    assert "record" in answer.err.partition(": ")[2]


def test_a_database_of_rocprofv3_is_named(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    _rocpd(file)
    answer = traceq("lint", "--no-cache", file)
    assert answer.status == 2
    assert "is a database of rocprofv3: record with PyTorch's profiler" in answer.err


def test_a_trace_with_such_words_is_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    event = {"ph": "X", "name": "mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}
    args = {"children": 1, "frame": 1, "metrics": 1}
    _write(
        file, json.dumps({"traceEvents": [{**event, "cat": "cpu_op", "args": args}]})
    )
    assert load(file, cache=False).ops.height == 1

"""Tables that are kept: the same as those that were read, and never in the way."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from conftest import FIXTURES, ROOT
from polars.testing import assert_frame_equal

import traceq
from traceq.cache import store, tables
from traceq.testing import draw

if TYPE_CHECKING:
    from pathlib import Path

DRAWING = """
host     [aten::mm                ]
host      [cudaLaunchKernel>1]
gpu 7                       [gemm<1]
"""


def write_trace(path: Path, text: str = DRAWING) -> Path:
    path.write_text(json.dumps(draw(text)), encoding="utf-8")
    return path


def load_and_keep(path: Path) -> traceq.Trace:
    trace = traceq.load(path)
    store.finish()
    return trace


def is_kept(path: Path) -> bool:
    return tables.find(path) is not None


def entry_of(folder: Path) -> Path:
    (facts,) = folder.glob("code-*/*/facts.json")
    return facts.parent


def assert_equal(trace: traceq.Trace, other: traceq.Trace) -> None:
    assert trace.facts == other.facts
    for name, table in trace.frames_by_name().items():
        assert_frame_equal(table, other.frames_by_name()[name])


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.parent.name)
def test_what_is_kept_equals_what_was_read(path: Path) -> None:
    read = load_and_keep(path)

    trace = tables.find(path)

    assert trace is not None
    assert_equal(trace, read)


@pytest.mark.usefixtures("own_cache")
def test_the_second_load_reads_no_event(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.json")
    heard: list[int] = []
    load_and_keep(path)

    traceq.load(path, progress=lambda done, _: heard.append(done))

    assert heard == []


@pytest.mark.usefixtures("own_cache")
def test_a_copy_under_another_name_is_found_and_has_its_own_name(
    tmp_path: Path,
) -> None:
    load_and_keep(write_trace(tmp_path / "one.json"))

    trace = tables.find(write_trace(tmp_path / "two.json"))

    assert trace is not None
    assert trace.facts.path == str(tmp_path / "two.json")


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("settled", [True, False])
def test_changed_content_of_the_same_size_and_date_is_read_again(
    settled: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if settled:
        # As if the file had been there for long, so that its identity is believed.
        monkeypatch.setattr(store, "_UNSETTLED_NS", 0)
    path = write_trace(tmp_path / "trace.json")
    date = path.stat().st_mtime_ns
    load_and_keep(path)
    size = path.stat().st_size
    write_trace(path, DRAWING.replace("aten::mm", "aten::mv"))
    os.utime(path, ns=(date, date))
    assert path.stat().st_size == size

    assert traceq.load(path).ops["name"].to_list() == ["aten::mv"]


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    tmp_path: Path, own_cache: Path
) -> None:
    path = write_trace(tmp_path / "trace.json")
    # A clock that ticks every 10 ms would give both versions one time.
    os.utime(path, (1, 1))
    before = path.stat()
    trace = traceq.load(path, cache=False)
    write_trace(path, DRAWING.replace("aten::mm", "aten::mv"))

    tables.keep(path, trace, before)
    store.finish()

    assert not list(own_cache.glob("code-*/*"))


@pytest.mark.real
def test_a_damaged_byte_anywhere_makes_no_wrong_trace(
    tmp_path: Path, own_cache: Path
) -> None:
    path = write_trace(tmp_path / "trace.json")
    load_and_keep(path)
    entry = entry_of(own_cache)
    whole = {file.name: file.read_bytes() for file in entry.iterdir()}
    assert {"facts.json", "kernels.arrow"} < set(whole)

    for damaged, content in whole.items():
        for at in range(0, len(content), 1 + len(content) // 10):
            entry.mkdir(exist_ok=True)
            for name, untouched in whole.items():
                (entry / name).write_bytes(untouched)
            flipped = bytes([content[at] ^ 1])
            (entry / damaged).write_bytes(content[:at] + flipped + content[at + 1 :])

            assert tables.find(path) is None, (damaged, at)


@pytest.mark.parametrize("keep_bytes", [0, 10, -1])
def test_a_truncated_entry_is_ignored_and_written_again(
    keep_bytes: int, tmp_path: Path, own_cache: Path
) -> None:
    path = write_trace(tmp_path / "trace.json")
    read = load_and_keep(path)
    for file in entry_of(own_cache).iterdir():
        file.write_bytes(file.read_bytes()[:keep_bytes])

    assert_equal(load_and_keep(path), read)
    assert is_kept(path)


def test_an_entry_that_lacks_a_file_is_ignored_and_written_again(
    tmp_path: Path, own_cache: Path
) -> None:
    path = write_trace(tmp_path / "trace.json")
    read = load_and_keep(path)
    (entry_of(own_cache) / "ops.arrow").unlink()

    assert_equal(load_and_keep(path), read)
    assert is_kept(path)


def test_a_directory_that_cannot_be_made_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRACEQ_CACHE", str(tmp_path / "file" / "below"))
    path = write_trace(tmp_path / "trace.json")

    assert load_and_keep(path).ops.height == 1
    assert load_and_keep(path).ops.height == 1


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write")
def test_a_directory_that_cannot_be_written_is_harmless(
    tmp_path: Path, own_cache: Path
) -> None:
    own_cache.mkdir(mode=0o500)

    assert load_and_keep(write_trace(tmp_path / "trace.json")).ops.height == 1


def test_a_user_without_a_home_can_load(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.json")
    unset = ("TRACEQ_CACHE", "XDG_CACHE_HOME", "HOME")
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    code = f"""
import pathlib
def nowhere(cls): raise RuntimeError("no home")
pathlib.Path.home = classmethod(nowhere)
import traceq
assert traceq.load({str(path)!r}).ops.height == 1
from traceq.cli import main
import sys
sys.argv = ["traceq", "cache", "info"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert done.stderr == (
        "traceq: this user has no home directory: set TRACEQ_CACHE to keep tables\n"
    )


@pytest.mark.slow
def test_processes_that_write_at_once_all_succeed(own_cache: Path) -> None:
    path = FIXTURES[0]
    code = f"import traceq; print(traceq.load({str(path)!r}).ops.height)"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    answers = {process.communicate() for process in running}

    assert answers == {(f"{traceq.load(path, cache=False).ops.height}\n".encode(), b"")}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert is_kept(path)
    assert not list(own_cache.glob("traceq-new-*")), "nothing is left aside"


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_the_entry_unused_for_longest_goes_when_the_bound_is_reached(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = FIXTURES[:3]
    for path in (one, two):
        load_and_keep(path)
    for age, entry in enumerate(sorted(own_cache.glob("code-*/*"))):
        os.utime(entry / "facts.json", (age, age))
    assert is_kept(one), "it is used again, and so the younger one"
    # One MiB of two other entries beside these would be too much.
    filler = bytes(1 << 20)
    for entry in own_cache.glob("code-*/*"):
        (entry / "filler").write_bytes(filler)
    monkeypatch.setenv("TRACEQ_CACHE_MB", "2")

    load_and_keep(three)

    assert is_kept(one)
    assert not is_kept(two)
    assert is_kept(three)
    assert size_of(own_cache) < 2 << 20


@pytest.mark.usefixtures("own_cache")
def test_an_entry_larger_than_the_bound_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRACEQ_CACHE_MB", "0")

    load_and_keep(FIXTURES[0])

    assert not is_kept(FIXTURES[0])
    assert not list(store.entries())


def test_what_a_killed_process_left_is_removed_after_a_day(
    tmp_path: Path, own_cache: Path
) -> None:
    old, new = own_cache / "traceq-new-old", own_cache / "traceq-new-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))

    load_and_keep(write_trace(tmp_path / "trace.json"))

    assert not old.exists()
    assert new.exists(), "another process may be writing it"


@pytest.mark.usefixtures("own_cache")
def test_entries_of_other_code_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_trace(tmp_path / "trace.json")
    load_and_keep(path)
    monkeypatch.setattr(store, "_code", lambda: "code-" + "0" * 16)

    assert not is_kept(path)


@pytest.mark.parametrize("folder", store.MAKES_TABLES)
def test_each_folder_of_the_code_that_makes_tables_contains_code(folder: str) -> None:
    # A checkout has no folder that contains only bytecode; nothing is cached then.
    assert any((ROOT / "traceq" / folder).glob("*.py"))


def test_every_edit_of_the_code_that_makes_tables_gives_it_another_name(
    tmp_path: Path,
) -> None:
    copy = tmp_path / "traceq"
    shutil.copytree(ROOT / "traceq", copy, ignore=shutil.ignore_patterns("*.so"))

    def code() -> str:
        done = subprocess.run(
            [sys.executable, "-c", "import traceq.cache.store as c; print(c._code())"],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    names = [code()]
    assert code() == names[0]
    for edited in (
        "cache/store.py",
        "common/expressions.py",
        "native/scan.c",
        "graph/source/places.py",
        "graph/steps.py",
        "inputs/load_trace.py",
        "model/schema.py",
    ):
        with (copy / edited).open("a", encoding="utf-8") as file:
            file.write("\n")
        names.append(code())

    assert len({*names}) == len(names)


def test_clearing_removes_entries_and_nothing_else(
    tmp_path: Path, own_cache: Path
) -> None:
    paths = [
        own_cache / name
        for name in ("code-review/notes-1/facts.json", "seen/diary.txt", "new-year.txt")
    ]
    for file in paths:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    path = write_trace(tmp_path / "trace.json")
    load_and_keep(path)

    count, size = store.clear()

    assert count == 1
    assert size > 0
    assert not is_kept(path)
    assert sorted(file for file in own_cache.rglob("*") if file.is_file()) == sorted(
        paths
    )


def test_a_file_that_was_read_whole_is_not_read_again_for_its_name(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_trace(tmp_path / "trace.json")
    content = hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.delattr(store, "_hash")

    load_and_keep(path)

    assert [entry.name for entry in own_cache.glob("code-*/*")] == [
        f"{path.stat().st_size}-{content}"
    ]


@pytest.mark.real
def test_without_cache_nothing_is_read_or_written(
    tmp_path: Path, own_cache: Path
) -> None:
    path = write_trace(tmp_path / "trace.json")
    traceq.load(path, cache=False)
    store.finish()
    assert not own_cache.exists()
    load_and_keep(path)
    heard: list[int] = []

    traceq.load(path, cache=False, progress=lambda done, _: heard.append(done))

    assert heard != []

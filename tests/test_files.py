"""A file that cannot be written whole stays as it was, and nothing is left beside."""

from __future__ import annotations

import contextlib
import shutil
import stat
from typing import TYPE_CHECKING

import pytest
from collecting import module
from command import traceq
from conftest import ROOT

from traceq.common.atomic_files import write_files, write_folder
from traceq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

resource = pytest.importorskip("resource")

TRACE = ROOT / "fixtures" / "twins" / "norm_mismatch" / "trace.json.gz"
LARGE = b"x" * 10_000


@contextlib.contextmanager
def full_disk(room: int = 500) -> Iterator[None]:
    """Let no file grow beyond some bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"before")

    with full_disk(), pytest.raises(UsageError, match="a cannot be written"):
        write_files({file: LARGE})

    assert file.read_bytes() == b"before"
    assert names(tmp_path) == ["a"]


def test_of_several_files_all_are_written_or_none(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(UsageError, match="b cannot be written"):
        write_files({tmp_path / "a": b"small", tmp_path / "b": LARGE})

    assert names(tmp_path) == []


def test_a_folder_whose_files_cannot_be_written_is_not_left(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(UsageError):
        write_folder(tmp_path / "new", {"a": b"small", "b": LARGE})

    assert names(tmp_path) == []


def test_a_folder_has_its_files(tmp_path: Path) -> None:
    write_folder(tmp_path / "x" / "new", {"a": b"1", "b": b"2"})

    assert names(tmp_path / "x" / "new") == ["a", "b"]


def test_a_file_keeps_its_mode_and_a_link_its_target(tmp_path: Path) -> None:
    file, link = tmp_path / "a", tmp_path / "link"
    file.write_bytes(b"before")
    file.chmod(0o640)
    link.symlink_to(file)

    write_files({link: b"after"})

    assert link.is_symlink()
    assert file.read_bytes() == b"after"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_folder_in_the_way_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        write_files({tmp_path: b""})


@pytest.mark.real
@pytest.mark.parametrize(
    "words",
    [
        ("lint", TRACE, "--format", "json", "-o"),
        ("lint", TRACE, "--write-baseline"),
        ("summary", TRACE, "--format", "csv", "-o"),
        ("diff", TRACE, TRACE, "--format", "html", "-o"),
    ],
    ids=["lint", "baseline", "summary", "diff"],
)
@pytest.mark.slow
def test_a_report_that_cannot_be_written_leaves_no_file(
    words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    with full_disk(room=20):
        answer = traceq(*words, tmp_path / "out", "--no-cache")

    assert answer.status == 2
    assert "out cannot be written: File too large" in answer.err
    assert names(tmp_path) == []


def test_an_update_that_cannot_be_written_changes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    fixture = tmp_path / "fixture"
    shutil.copytree(TRACE.parent, fixture)
    (fixture / "findings.json").write_bytes(b'{"version": 2, "findings": []}')
    (fixture / "traceq.toml").unlink()
    before = {file.name: file.read_bytes() for file in fixture.iterdir()}

    with full_disk(room=600):
        answer = traceq("check", fixture, "--update", "--no-cache")

    assert answer.status == 2
    assert "cannot be written" in answer.err
    assert {file.name: file.read_bytes() for file in fixture.iterdir()} == before


def test_a_manifest_that_cannot_be_written_leaves_nothing_beside(
    tmp_path: Path,
) -> None:
    replace = module("shared.status_files").replace
    (tmp_path / "run.json").write_bytes(b"before")

    with full_disk(), pytest.raises(OSError, match="too large"):
        replace(tmp_path / "run.json", LARGE)

    assert names(tmp_path) == ["run.json"]
    assert (tmp_path / "run.json").read_bytes() == b"before"

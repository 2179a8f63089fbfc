"""`traceq demo`: what it writes, prints and refuses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from command import traceq

from traceq.common.locations import demo_recordings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real

MOST_BYTES = 300_000


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which the command runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_recordings_of_the_demo_are_small() -> None:
    folders = demo_recordings().values()
    files = (file for folder in folders for file in folder.iterdir())

    assert sum(file.stat().st_size for file in files) < MOST_BYTES


def test_the_demo_lints_what_it_writes(here: Path) -> None:
    answer = traceq("demo")

    assert answer.status == 0
    assert re.search(r"^CPY003 .*train\.py:36", answer.out, re.MULTILINE)
    assert (here / "traceq-demo" / "after" / "trace.json.gz").is_file()


def test_the_lines_of_its_findings_are_those_of_its_source(here: Path) -> None:
    traceq("demo", here / "d")

    shown = traceq("lint", here / "d/before", "-v", "--root", here / "d/before").lines

    marked = [line for line in shown if " > " in line]
    assert any('x = batch.to("cuda")' in line for line in marked)


@pytest.mark.slow
def test_the_commands_that_it_names_work(here: Path) -> None:
    named = [line.split() for line in traceq("demo").lines if line[:8] == "  traceq"]
    calls = {words[1]: words[2:] for words in named}

    assert traceq("diff", *calls["diff"]).status == 0
    assert traceq("report", *calls["report"]).status in {0, 1}
    assert (here / "traceq-demo" / "report.html").is_file()


@pytest.mark.slow
def test_the_demo_runs_twice(here: Path) -> None:
    assert [traceq("demo", here / "d").status for _ in range(2)] == [0, 0]


def test_a_file_that_differs_is_not_overwritten(here: Path) -> None:
    other = here / "traceq-demo" / "before" / "train.py"
    other.parent.mkdir(parents=True)
    other.write_text("print('mine')\n")

    answer = traceq("demo")

    assert answer.status == 2
    assert answer.err.count("\n") == 1
    assert other.read_text() == "print('mine')\n"
    assert not (here / "traceq-demo" / "after").exists()

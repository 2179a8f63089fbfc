"""Lint and a report page right after a recording; the program's status stays."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from collecting import COLLECT, LOOP, QUICK, WITH_TORCH, collect, collect_program

if TYPE_CHECKING:
    from pathlib import Path

    from collecting import Run

LOOK = (*QUICK, "--lint", "--report")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    program = f"{LOOP}for i in range(30): step()\nraise SystemExit(3)\n"
    return collect_program(tmp_path_factory.mktemp("run"), program, LOOK)


class TestWithTorch:
    """One run of a program that imports torch, and fails."""

    pytestmark = WITH_TORCH

    def test_the_exit_status_is_the_programs_own(self, recorded: Run) -> None:
        assert recorded.status == 3

    def test_lint_is_printed_after_the_recording(self, recorded: Run) -> None:
        assert "rules ran" in " ".join(recorded.out.split())
        assert "next:" not in recorded.err

    def test_the_page_lies_in_the_run_folder(self, recorded: Run) -> None:
        page = recorded.folder / "report.html"

        assert page.read_text(encoding="utf-8").startswith("<!")
        assert f"report: {page}" in recorded.err

    def test_the_run_file_does_not_name_them(self, recorded: Run) -> None:
        assert not {"lint", "report"} & {*recorded.facts["options"]}


def test_nothing_is_linted_where_nothing_was_recorded(tmp_path: Path) -> None:
    run = collect(tmp_path, [sys.executable, "-c", "print('ran')"], LOOK)

    assert (run.status, run.out) == (2, "ran\n")
    assert "report.html" not in run.files


def test_without_traceq_a_sentence_says_what_is_missing(tmp_path: Path) -> None:
    code = (
        "import sys; from types import SimpleNamespace as N; from pathlib import Path;"
        f"sys.path[:] = [p for p in sys.path if 'site-packages' not in p];"
        f"sys.argv = ['collect', '--help'];"
        f"import runpy; c = runpy.run_path({str(COLLECT)!r}, run_name='x');"
        "c['_mount'](); from _traceq_collect.launcher import after, screen;"
        "after.look(N(lint=True, report=False), Path('.'), screen.Screen())"
    )

    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "pip install torch-traceq" in done.stderr

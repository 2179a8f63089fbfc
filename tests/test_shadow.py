"""Another package called traceq in the same environment is named in one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT

from traceq import __version__
from traceq.cli.shadow import shadowed

if TYPE_CHECKING:
    from pathlib import Path


def test_alone_there_is_nothing_to_say(tmp_path: Path) -> None:
    (tmp_path / f"torch_traceq-{__version__}.dist-info").mkdir()

    assert shadowed(str(tmp_path)) == ""


def test_the_other_package_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "traceq-0.0.1.dist-info").mkdir()

    sentence = shadowed(str(tmp_path))

    assert "traceq 0.0.1" in sentence
    assert "pip uninstall traceq" in sentence
    assert "torch-traceq" in sentence


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with ours, and what the other one leaves there."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "traceq", folder / "traceq")
    (folder / "traceq-0.0.1.dist-info").mkdir()
    return folder


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "traceq", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.real
def test_the_version_stays_alone_on_standard_output(both: Path) -> None:
    done = ran(both, "--version")

    assert done.stdout == f"traceq {__version__}\n"
    assert "traceq 0.0.1 is installed beside torch-traceq" in done.stderr


@pytest.mark.real
def test_files_of_the_other_package_in_ours_are_a_sentence(both: Path) -> None:
    (both / "traceq" / "__init__.py").write_text("")

    done = ran(both, "lint", "trace.json")

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "pip uninstall traceq" in done.stderr

"""A new user's first day: the pages, block by block, in a fresh environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from collecting import WITH_TORCH
from conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs" / "get-started.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[\w.-]+) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# What installs is tested in test_packaging.py; here it is installed already.
_NOT_HERE = ("pip ", "make ")
# Findings are 1, and what a new user is to look at.
_MAY_FIND = ("traceq lint", "traceq diff")

pytestmark = [*WITH_TORCH, pytest.mark.slow]


def marked(mark: str) -> str:
    (text,) = [
        match["text"] for match in _BLOCK.finditer(PAGE) if match["mark"] == mark
    ]
    return text


@dataclass(frozen=True)
class Newcomer:
    """Someone with a new folder, a new home and a new environment."""

    folder: Path
    environment: Path

    def types(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line of a page in a shell."""
        return subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env={
                "HOME": str(self.environment),
                "PATH": f"{self.environment / 'bin'}:{os.environ['PATH']}",
                "OMP_NUM_THREADS": "1",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    def follows(self, page: str) -> None:
        """Do what the blocks of a page say, one after the other."""
        for block in _BLOCK.finditer(page):
            if block["mark"] == "train.py":
                (self.folder / "train.py").write_text(block["text"], encoding="utf-8")
            elif block["mark"] == "fix":
                self.changes(*fix())
            elif not block["kind"] and not block["mark"]:
                self.types_all(block["text"])

    def types_all(self, text: str) -> None:
        lines = [line for line in text.splitlines() if line.strip()]
        for line in lines:
            if line.startswith(_NOT_HERE):
                continue
            done = self.types(line)
            allowed = (0, 1) if line.startswith(_MAY_FIND) else (0,)
            assert done.returncode in allowed, f"{line}: {done.stdout}{done.stderr}"

    def changes(self, old: str, new: str) -> None:
        """Change a line of the program."""
        file = self.folder / "train.py"
        text = file.read_text(encoding="utf-8")
        assert text.count(old) == 1
        file.write_text(text.replace(old, new), encoding="utf-8")


def fix() -> tuple[str, str]:
    """Return the line that the page removes, and the one it writes instead."""
    before, after = marked("fix").splitlines()
    return before.removeprefix("-"), after.removeprefix("+")


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    environment, folder = tmp_path / "env", tmp_path / "project"
    venv = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
    subprocess.run(venv, check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    here = [str(ROOT), *(name for name in sys.path if name.endswith("-packages"))]
    (packages / "here.pth").write_text("\n".join(here) + "\n")
    command = environment / "bin" / "traceq"
    python = environment / "bin" / "python"
    command.write_text(f"#!{python}\nfrom traceq.cli import main\n\nmain()\n")
    command.chmod(0o755)
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    return Newcomer(folder, environment)


def assert_held(newcomer: Newcomer) -> None:
    """The check is green, and red once the problem is put back."""
    green = newcomer.types("traceq check")
    assert green.returncode == 0, green.stdout + green.stderr
    assert marked("green") in green.stdout

    old, new = fix()
    newcomer.changes(new, old)
    red = newcomer.types("traceq check")
    assert red.returncode == 1, red.stdout + red.stderr
    assert " ".join(marked("red").split()) in " ".join(red.stdout.split())


def test_get_started_ends_with_a_check_that_fails(newcomer: Newcomer) -> None:
    newcomer.follows(PAGE)

    assert_held(newcomer)


def test_the_readme_ends_with_a_check_that_fails(newcomer: Newcomer) -> None:
    (newcomer.folder / "train.py").write_text(marked("train.py"), encoding="utf-8")
    newcomer.changes(*fix())

    _, _, use = README.partition("## Use it\n")
    newcomer.follows(use)

    assert_held(newcomer)

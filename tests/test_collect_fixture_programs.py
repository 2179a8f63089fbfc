"""The sick programs of fixtures/programs run, and so do their repaired twins."""

from __future__ import annotations

import subprocess
import sys

from collecting import WITH_TORCH, environment
from conftest import ROOT

pytestmark = WITH_TORCH

PROGRAMS = ROOT / "fixtures" / "programs"

# One process for all: torch takes longer to import than they take to run.
RUNNER = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    for options in ([], ["--fixed"]):
        sys.argv = [name, "--steps", "4", *options]
        print(name, *options, flush=True)
        runpy.run_path(name, run_name="__main__")
"""


def test_every_program_runs_and_times_itself() -> None:
    names = sorted(str(path) for path in PROGRAMS.glob("*.py") if path.stem != "loops")
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(PROGRAMS), *names],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    timed = [line for line in done.stdout.splitlines() if line.startswith("plain: ")]
    assert len(timed) == 2 * len(names)
    assert len(names) >= 6


def test_the_page_names_every_program() -> None:
    page = (PROGRAMS / "README.md").read_text()
    for program in PROGRAMS.glob("*.py"):
        assert program.stem == "loops" or f"`{program.name}`" in page

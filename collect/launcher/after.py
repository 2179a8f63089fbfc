"""Lint or report page of a new recording, by traceq itself."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .screen import Screen

# Without the working directory: a program may have a file there that is named so.
_START = "import sys; sys.path[:1] = []; from traceq.cli import main; main()"
_PAGE = "report.html"


def look(chosen: Any, folder: Path, screen: Screen) -> None:
    """Lint a run, or write its page, as far as the options ask for it."""
    if not (chosen.lint or chosen.report):
        return
    if find_spec("traceq") is None:
        screen.say("--lint and --report need traceq here: pip install torch-traceq")
        return
    if chosen.lint:
        _run("lint", str(folder))
    if chosen.report:
        page = folder / _PAGE
        _run("report", str(folder), "--output", str(page))
        if page.exists():
            screen.say(f"report: {page}")


def _run(*words: str) -> None:
    """Run a command of traceq; its exit status is not the program's, and not ours."""
    subprocess.run([sys.executable, "-c", _START, *words], check=False)

"""Launch of the measurement of the recording overhead, once the program has ended."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parent.parent / "overhead" / "measure.py"
TIMEOUT_S = 60.0

_LONGEST = 200  # characters of an error that are kept


def measured_rank(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rank whose recording is repeated: the first one with a trace."""
    traced = [rank for rank in ranks if rank.get("trace")]
    return (traced or ranks)[0]


def interpreter(rank: dict[str, Any], status_folder: Path) -> str:
    """Return the Python that a rank ran in, if it is known."""
    try:
        return (status_folder / f"interpreter-{rank['name']}").read_text()
    except OSError:
        return ""


def why_not(ended: dict[str, Any], rank: dict[str, Any], python: str) -> str:
    """Return the reason why nothing is to be measured, if there is one."""
    if not rank.get("trace"):
        return "there is no trace"
    if rank.get("local_rank"):
        return "the launcher of local rank 0 measures it"
    if ended["signal"]:
        return f"{ended['signal']} ended the program"
    if not python or not os.access(python, os.X_OK):
        return "the Python that the program ran in is not known"
    return ""


def start(python: str, rank: dict[str, Any], file: Path) -> subprocess.Popen[bytes]:
    """Start the measurement as the rank was recorded; it writes to a file."""
    trace = rank["trace"]
    settings = {
        "device": rank["device"],
        **{key: trace[key] for key in ("stacks", "shapes", "memory_events")},
    }
    return subprocess.Popen(
        [python, str(SCRIPT), json.dumps(settings), str(file)],
        env={**os.environ, **rank["environment"]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def wait(child: subprocess.Popen[bytes]) -> str:
    """Wait for the measurement; return why it failed, if it did."""
    try:
        _, errors = child.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return f"it took more than {TIMEOUT_S:.0f} s"
    lines = errors.decode(errors="replace").strip().splitlines()
    reported = lines[-1][:_LONGEST] if lines else f"exit status {child.returncode}"
    return reported if child.returncode else ""

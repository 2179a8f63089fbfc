"""A program does not outlive its launcher, and is interrupted with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="only Linux binds processes"
    ),
]
PROGRAM = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
try:
    time.sleep(120)
except KeyboardInterrupt:
    pathlib.Path(sys.argv[1] + ".interrupted").touch()
    sys.exit(3)
"""


def started(tmp_path: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start a program under collect, in a session without a terminal."""
    program, file = tmp_path / "program.py", tmp_path / "pid"
    program.write_text(PROGRAM)
    words = ["-m", "traceq", "collect", "--out", str(tmp_path / "runs"), "--"]
    launcher = subprocess.Popen(
        [sys.executable, *words, sys.executable, str(program), str(file)],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return launcher, int(file.read_text())


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0] != "Z"


def has_ended(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_running(pid)


def test_a_program_ends_when_its_launcher_is_killed(tmp_path: Path) -> None:
    launcher, program = started(tmp_path)

    launcher.kill()
    launcher.wait(30)

    assert has_ended(program)


def test_a_second_interrupt_of_the_launcher_alone_reaches_the_program(
    tmp_path: Path,
) -> None:
    launcher, program = started(tmp_path)

    launcher.send_signal(signal.SIGINT)
    time.sleep(1.5)
    assert is_running(program)
    launcher.send_signal(signal.SIGINT)

    assert launcher.wait(60) == 3
    assert has_ended(program)
    assert (tmp_path / "pid.interrupted").exists()

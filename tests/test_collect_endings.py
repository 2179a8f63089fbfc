"""How programs end under collect/: well, early, by a signal, or stopped by us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from collecting import (
    LOOP,
    QUICK,
    WITH_TORCH,
    Run,
    collect,
    collect_program,
    environment,
    words,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH


def test_a_crash_is_the_programs_own_and_what_was_recorded_stays(
    tmp_path: Path,
) -> None:
    program = LOOP + "for i in range(9): step()\nraise ValueError('mine')"
    run = collect_program(tmp_path, program, (*QUICK[:-1], "8"))
    assert run.status == 1
    assert "ValueError: mine" in run.err
    assert run.rank["state"] == "ended early"
    assert run.rank["ended_in"] == "tracing"
    assert run.rank["step_time"]["steps"] == 3
    assert len(run.step_names()) == 3
    names = [one["name"] for one in run.annotations() if "Profiler" in one["name"]]
    assert names[:3] == run.step_names()


def test_a_killed_program_leaves_what_was_written(tmp_path: Path) -> None:
    program = LOOP + "import os\nfor i in range(7): step()\nos.kill(os.getpid(), 9)"
    run = collect_program(tmp_path, program)
    assert run.status == 128 + 9
    assert run.facts["exit"]["signal"] == "SIGKILL"
    assert run.rank["state"] == "killed"
    assert run.rank["step_time"]["steps"] == 3
    assert "killed" in run.why_missing("trace")
    assert run.files == {"run.json", "rank-0.json", "stderr.log"}


def test_a_program_that_ends_in_its_warm_up_is_told_what_it_lacked(
    tmp_path: Path,
) -> None:
    run = collect_program(tmp_path, LOOP + "for i in range(4): step()", ())
    assert run.status == 2
    assert run.rank["state"] == "ended early"
    assert "ended after 4 steps, within the warm-up of 10 (--warmup)" in run.err


def test_a_program_that_ends_within_the_warm_up_by_time_is_told_so(
    tmp_path: Path,
) -> None:
    run = collect_program(tmp_path, "import torch", ("--steps-by", "time"))
    assert run.status == 2
    assert "ended within 10 s of importing torch" in run.err
    assert "shorten it with --warmup" in run.err


def test_then_exit_stops_the_program_well(tmp_path: Path) -> None:
    program = LOOP + "import atexit\natexit.register(print, 'left')\nwhile True: step()"
    run = collect_program(tmp_path, program, (*QUICK, "--then-exit"))
    assert (run.status, run.out) == (0, "left\n")
    assert run.facts["exit"]["stopped_by_traceq"]
    assert len(run.step_names()) == 2


def test_a_fault_of_ours_ends_the_recording_and_not_the_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        LOOP + "import shutil\nfor i in range(20):\n    step()\n"
        "    if i == 3: shutil.rmtree('out/run')\nprint('ran')\nraise SystemExit(3)"
    )
    run = collect(tmp_path, [sys.executable, "program.py"])
    assert (run.status, run.out) == (3, "ran\n")
    assert "Traceback" not in run.err


def test_ctrl_c_reaches_the_program_once_and_what_was_recorded_stays(
    tmp_path: Path,
) -> None:
    program = LOOP + (
        "import pathlib\n"
        "try:\n"
        "    for i in range(100000):\n"
        "        step()\n"
        "        if i == 8: pathlib.Path('there').touch()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "    raise SystemExit(4)\n"
    )
    status, out = signalled(tmp_path, program, signal.SIGINT, group=True)
    assert (status, out) == (4, "interrupted\n")
    run = Run(status, out, "", tmp_path / "out" / "run")
    assert run.facts["state"] == "finished"
    assert run.rank["step_time"] is not None


def test_a_signal_to_the_launcher_is_passed_on(tmp_path: Path) -> None:
    program = LOOP + (
        "import pathlib, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "for i in range(100000):\n"
        "    step()\n"
        "    if i == 8: pathlib.Path('there').touch()\n"
    )
    status, _ = signalled(tmp_path, program, signal.SIGTERM, group=False)
    assert status == 7


def signalled(
    folder: Path, program: str, number: signal.Signals, *, group: bool
) -> tuple[int, str]:
    """Run a program, send a signal once it has made some steps; status and stdout."""
    (folder / "program.py").write_text(program)
    child = subprocess.Popen(
        words(folder, [sys.executable, "program.py"]),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (folder / "there").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    if group:
        os.killpg(child.pid, number)
    else:
        child.send_signal(number)
    out, _ = child.communicate(timeout=60)
    return child.returncode, out

"""Ends of programs under collect/: well, early, by a signal, or stopped by us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
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
    program = LOOP + "for i in range(12): step()\nraise ValueError('mine')"
    run = collect_program(tmp_path, program, (*QUICK[:-1], "8"))
    assert run.status == 1
    assert "ValueError: mine" in run.err
    assert run.rank["state"] == "ended early"
    assert run.rank["ended_in"] == "tracing"
    assert run.rank["step_time"]["steps"] == 3
    assert len(run.step_names()) == 3
    names = [
        annotation["name"]
        for annotation in run.annotations()
        if "Profiler" in annotation["name"]
    ]
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


def test_a_real_time_signal_is_a_shells_status_and_the_run_file_is_complete(
    tmp_path: Path,
) -> None:
    program = "import os\nos.kill(os.getpid(), 40)"
    run = collect_program(tmp_path, program)
    assert run.status == 128 + 40
    assert run.facts["state"] == "finished"
    assert run.facts["exit"]["status"] == 128 + 40
    assert run.facts["exit"]["signal"] == "signal 40"
    assert "Traceback" not in run.err


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


BREAKS = {
    "timer": "from _traceq_agent.agent import actions\nactions.StepTimer = None\n",
    "schedule": "from _traceq_agent.agent import schedule\n"
    "schedule.Schedule.boundary = None\n",
    "failing": "from _traceq_agent.agent import session, rank_file\n"
    "session.Session._boundary = session.Session._disarm = None\n",
    "words": "from _traceq_agent.agent import session\n"
    "def fail(_): raise ValueError('\\udcff')\n"
    "session.Session._boundary = fail\n",
}


@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize("status", [0, 3])
def test_a_fault_of_ours_never_changes_the_exit_status(
    tmp_path: Path, broken: str, status: int
) -> None:
    program = f"{LOOP}{BREAKS[broken]}for i in range(12): step()\nprint('ran')\n"
    run = collect_program(tmp_path, f"{program}raise SystemExit({status})")
    assert (run.status, run.out) == (status, "ran\n")
    assert run.facts["state"] == "finished"
    assert "Traceback" not in run.err
    assert "nothing was recorded" in run.err.splitlines()[-1]


THREADS = """
import threading
def train(steps):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(steps):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
threads = [threading.Thread(target=train, args=[n]) for n in STEPS]
for one in threads: one.start()
for one in threads: one.join()
"""


@pytest.mark.parametrize("steps", ["[200] * 5", "[3, 200, 200, 200, 200]"])
def test_of_five_threads_that_train_one_is_recorded_and_we_say_so(
    tmp_path: Path, steps: str
) -> None:
    run = collect_program(tmp_path, f"{LOOP}STEPS = {steps}\n{THREADS}")
    assert run.status == 0
    assert run.rank["state"] == "done"
    assert len(run.step_names()) == 2
    assert "several threads make steps: those of one were recorded" in run.err


FULL = """
import os, resource
def fill():
    for process in (os.getpid(), os.getppid()):
        resource.prlimit(process, resource.RLIMIT_FSIZE, (0, 0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit")
@pytest.mark.parametrize("full_after", [0, 4, 20])
def test_a_disk_that_fills_up_is_said_in_the_last_line(
    tmp_path: Path, full_after: int
) -> None:
    program = (
        f"{LOOP}{FULL}for i in range(20):\n    if i == {full_after}: fill()\n"
        "    step()\nfill()\nprint('x', file=sys.stderr)\nraise SystemExit(3)"
    )
    run = collect_program(tmp_path, "import sys\n" + program)
    last = run.err.splitlines()[-1]
    assert run.status == 3
    if full_after < 20:
        assert last.startswith("traceq: nothing was written: File too large")
    else:
        assert "run.json cannot be completed: File too large" in last
        assert "rank-0.trace.json.gz" in last
    assert "Traceback" not in run.err


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit")
def test_a_disk_that_is_full_already_keeps_the_program_from_starting(
    tmp_path: Path,
) -> None:
    large = ("--label", "note=" + "large " * 300)
    command = words(tmp_path, ["echo", "x"], large)
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 1; exec "$@"', "-", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing was written, and the program was not started" in done.stderr
    assert done.stderr.endswith(": File too large\n")
    assert not (tmp_path / "out" / "run").exists()


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

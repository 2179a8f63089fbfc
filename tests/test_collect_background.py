"""Files that are written while the program goes on, by a process of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from collecting import LOOP, QUICK, WITH_TORCH, collect_program, module

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH

additions = module("shared.additions")
manifest = module("shared.manifest")

GOES_ON = (
    LOOP
    + """
import glob, os, time
for _ in range(14): step()
# Forked, and not this process's child: there is none to wait for.
try:
    os.waitpid(-1, os.WNOHANG)
    print("a child")
except ChildProcessError:
    print("no child")
"""
)


def test_the_program_has_no_child_that_it_does_not_know_of(tmp_path: Path) -> None:
    run = collect_program(tmp_path, GOES_ON)
    assert run.out == "no child\n"
    assert (
        run.rank["trace"]["bytes"]
        == run.folder.joinpath("rank-0.trace.json.gz").stat().st_size
    )


def test_what_is_known_after_writing_is_in_both_manifests(tmp_path: Path) -> None:
    run = collect_program(tmp_path, GOES_ON)
    trace = manifest.read(run.folder / "rank-0.json")["trace"]
    assert trace == run.rank["trace"]
    assert trace["call_lines"] > 0
    assert trace["write_seconds"] > 0
    assert [source["path"] for source in run.rank["sources"]] == ["program.py"]
    assert not [name for name in run.files if name.startswith(".")]


def test_a_program_that_is_killed_after_its_steps_has_its_trace(tmp_path: Path) -> None:
    program = LOOP + "import os\nfor i in range(14): step()\nos.kill(os.getpid(), 9)"
    run = collect_program(tmp_path, program)
    assert run.facts["exit"]["signal"] == "SIGKILL"
    assert len(run.step_names()) == 2
    assert run.events()


KILLS_THE_WRITER = (
    LOOP
    + """
import os, re, signal, sys
agent = sys.modules["_traceq_agent.agent.background"]
become = agent._become_writer
def killed(pipe, work):
    become(pipe, lambda: os.kill(os.getpid(), signal.SIGKILL))
agent._become_writer = killed
for _ in range(14): step()
"""
)


def test_a_trace_whose_writer_was_killed_is_said_to_be_missing(tmp_path: Path) -> None:
    run = collect_program(tmp_path, KILLS_THE_WRITER)
    assert run.rank["trace"] is None
    assert "the process that wrote it was ended" in run.why_missing("trace")


SIGNALLED = (
    LOOP
    + """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
# A signal that comes while Python forks.
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGTERM))
for _ in range(40): step()
"""
)


def test_a_signal_that_comes_while_a_writer_is_forked_is_not_lost(
    tmp_path: Path,
) -> None:
    run = collect_program(tmp_path, SIGNALLED)
    assert run.status == 7
    assert run.events()


NO_FORK = (
    LOOP
    + """
import sys
agent = sys.modules["_traceq_agent.agent.background"]
agent.available = lambda: False
for _ in range(14): step()
"""
)


def test_where_nothing_can_be_forked_the_program_writes_itself(tmp_path: Path) -> None:
    run = collect_program(tmp_path, NO_FORK)
    assert run.rank["state"] == "done"
    assert run.rank["trace"]["bytes"] > 0


def test_the_pause_is_measured_and_said(tmp_path: Path) -> None:
    run = collect_program(tmp_path, LOOP + "for _ in range(14): step()")
    pause = run.rank["pause"]
    assert pause["seconds"] >= sum(pause["by_cause"].values()) > 0
    assert {"start of the profiler", "end of the profiler"} <= set(pause["by_cause"])
    said = f"recording stopped the program for {pause['seconds']:.1f} s"
    assert said in run.err


LONG_TEXTS = (
    LOOP
    + """
for _ in range(30):
    step()
    with torch.profiler.record_function("x" * 3_000_000):
        pass
"""
)


def test_the_size_of_a_trace_is_limited_by_its_text_not_by_its_events(
    tmp_path: Path,
) -> None:
    run = collect_program(tmp_path, LONG_TEXTS, (*QUICK, "--max-mb", "5"))
    assert len(run.step_names()) == 1  # of the two that were asked for
    assert any("1 step was traced" in text for text in run.rank["notes"])


MARKED = """
import sys, torch
for _ in range(20):
    with torch.profiler.record_function("traceq: step"):  # an optimizer imports it
        torch.ones(8).sin()
print("torch._inductor" in sys.modules)
"""


def test_recording_does_not_import_the_compiler(tmp_path: Path) -> None:
    run = collect_program(tmp_path, MARKED, (*QUICK, "--steps-by", "mark"))
    assert run.out == "False\n"
    assert run.rank["state"] == "done"


UNEVEN = (
    LOOP
    + """
import time
for number in range(75):
    step()
    # Far apart, so that no delay on a busy machine makes a short step a long one.
    time.sleep(0.5 if number % 6 == 1 else 0.1)
"""
)


def test_where_some_steps_take_longer_a_whole_period_is_traced(tmp_path: Path) -> None:
    run = collect_program(tmp_path, UNEVEN, ("--no-overhead",))
    timed = run.rank["step_time"]
    assert timed["period"] == 6
    assert timed["long_steps"]["share"] == pytest.approx(1 / 6, abs=0.001)
    assert run.rank["trace"]["window"] == "period"
    assert len(run.step_names()) == 6
    assert "every 6 steps the same" in run.err


def test_fewer_steps_than_a_period_are_typical_ones(tmp_path: Path) -> None:
    run = collect_program(tmp_path, UNEVEN, ("--no-overhead", "--active", "4"))
    assert run.rank["trace"]["window"] == "typical"
    assert len(run.step_names()) == 4
    steps = [
        annotation
        for annotation in run.annotations()
        if annotation["name"] in run.step_names()
    ]
    assert all(step["dur"] < 400_000 for step in steps)  # microseconds
    assert "4 steps, all of them typical" in run.err


def test_additions_keep_what_a_manifest_has(tmp_path: Path) -> None:
    rank = {"name": "rank-0", "trace": {"steps": [1]}, "notes": ["a"], "missing": []}
    additions.leave(
        tmp_path, "rank-0", "trace", {"trace": {"bytes": 3}, "notes": ["b"]}
    )
    assert additions.add(rank, tmp_path)
    assert additions.add(rank, tmp_path)  # twice is as once
    assert rank["trace"] == {"steps": [1], "bytes": 3}
    assert rank["notes"] == ["a", "b"]
    additions.remove(tmp_path, "rank-0")
    assert not additions.add(rank, tmp_path)

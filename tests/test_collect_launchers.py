"""Every way to start a program comes back with a trace of whole steps.

Each test is the real launcher with a small loop of real torch, on the CPU. Output and
exit status are the program's own.
"""

from __future__ import annotations

import stat
import sys
import threading
from importlib.util import find_spec
from textwrap import indent
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from collecting import LOOP, WITH_TORCH, Late, Run, collect, collect_program, module

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH

run_facts = module("launcher.run_facts")
forking = Late("agent.forking")

STATUS = 7
TRAINS = LOOP + "for _ in range(20): step()\nprint('trained')\n"
ENDS = f"import sys\nsys.exit({STATUS})\n"


def needs(package: str) -> pytest.MarkDecorator:
    missing = find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


def assert_whole(run: Run, *names: str) -> None:
    """Assert that these processes recorded, and no other: each has whole steps."""
    assert [rank["name"] for rank in run.facts["ranks"]] == list(names), run.err
    for rank in run.facts["ranks"]:
        assert rank["state"] == "done", run.err
        assert rank["steps"]["of"] == "SGD"
        steps = {f"ProfilerStep#{number}" for number in rank["trace"]["steps"]}
        assert len(steps) == 2
        assert steps <= {event.get("name") for event in run.events(rank["name"])}


def assert_as_without_us(run: Run, *, out: str = "trained\n", status: int = 0) -> None:
    assert (run.status, run.out) == (status, out), run.err
    assert run.facts["exit"]["status"] == status


# Commands that start one Python process.


def test_python_with_a_program_on_its_command_line_records(tmp_path: Path) -> None:
    run = collect(tmp_path, [sys.executable, "-c", TRAINS + ENDS])
    assert_as_without_us(run, status=STATUS)
    assert_whole(run, "rank-0")


def test_python_that_reads_its_program_from_stdin_records(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRAINS + ENDS)
    run = collect(tmp_path, ["sh", "-c", f"{sys.executable} - < program.py"])
    assert_as_without_us(run, status=STATUS)
    assert_whole(run, "rank-0")


def test_a_console_script_as_pip_installs_it_records(tmp_path: Path) -> None:
    scripts = pytest.importorskip("pip._vendor.distlib.scripts")
    train = indent(TRAINS, "    ")
    (tmp_path / "trainer.py").write_text(f"def main():\n{train}    return {STATUS}\n")
    maker = scripts.ScriptMaker(None, str(tmp_path))
    maker.executable = sys.executable
    maker.variants = {""}
    maker.make("train-it = trainer:main")
    env = {"PYTHONPATH": str(tmp_path)}
    run = collect(tmp_path, [str(tmp_path / "train-it")], env=env)
    assert_as_without_us(run, status=STATUS)
    assert_whole(run, "rank-0")


def test_a_shell_script_records(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRAINS)
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/sh\nset -e\nexport PYTHONPATH=src:$PYTHONPATH\n"
        f"{sys.executable} program.py | cat\nexit {STATUS}\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    run = collect(tmp_path, ["./train.sh"])
    assert_as_without_us(run, status=STATUS)
    assert_whole(run, "rank-0")


@needs("uv")
def test_uv_run_records(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRAINS + ENDS)
    uv = [sys.executable, "-m", "uv", "run", "--no-project", "--offline", "--quiet"]
    run = collect(tmp_path, [*uv, "--python", sys.executable, "program.py"])
    assert_as_without_us(run, status=STATUS)
    assert_whole(run, "rank-0")


# Launchers of jobs.


@needs("accelerate")
def test_accelerate_launch_records(tmp_path: Path) -> None:
    program = TRAINS.replace(
        "def step():",
        "from accelerate import Accelerator\n"
        "model, optimizer = Accelerator().prepare(model, optimizer)\ndef step():",
    )
    (tmp_path / "program.py").write_text(program)
    launch = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
    run = collect(tmp_path, [*launch, "--cpu", "--num_processes", "1", "program.py"])
    assert_as_without_us(run)
    assert_whole(run, "rank-0")


IN_A_JOB = (
    """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
"""
    + LOOP
    + """
model = torch.nn.parallel.DistributedDataParallel(model)
for _ in range(80): step()
dist.barrier()
os.write(1, b"trained\\n")
dist.destroy_process_group()
"""
)

LIKE_DEEPSPEED = """
import os, socket, subprocess, sys
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
environment |= {"WORLD_SIZE": "2", "LOCAL_SIZE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
ranks = []
for rank in range(2):
    environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    command = [sys.executable, "-u", sys.argv[1], f"--local_rank={rank}"]
    ranks.append(subprocess.Popen(command, env=environment))
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.mark.slow
def test_a_launcher_that_starts_ranks_as_deepspeed_does_records(tmp_path: Path) -> None:
    """A stand-in for deepspeed, which has no wheel and needs torch to be built.

    It starts processes as deepspeed/launcher/launch.py does: `python -u program.py
    --local_rank=N` with RANK, LOCAL_RANK and WORLD_SIZE in a copy of its environment.
    """
    (tmp_path / "program.py").write_text(IN_A_JOB)
    (tmp_path / "launch.py").write_text(LIKE_DEEPSPEED)
    run = collect(tmp_path, [sys.executable, "launch.py", "program.py"])
    assert_as_without_us(run, out="trained\n" * 2)
    assert_whole(run, "rank-0", "rank-1")


@pytest.mark.slow
@needs("deepspeed")
def test_deepspeed_records(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(IN_A_JOB)
    deepspeed = [sys.executable, "-m", "deepspeed.launcher.runner"]
    ranks = ["--num_accelerators", "2", "--master_port", "29731"]
    env = {"DS_ACCELERATOR": "cpu"}
    run = collect(tmp_path, [*deepspeed, *ranks, "program.py"], env=env)
    assert run.status == 0, run.err
    assert run.out.count("trained\n") == 2
    assert_whole(run, "rank-0", "rank-1")


# Processes that the program starts by itself.

STARTED = f"""
import os, sys
import torch
def train(_place):
{indent(LOOP, "    ")}
    for _ in range(20): step()
    os.write(1, b"trained\\n")
"""

SPAWNED = (
    STARTED
    + """
if __name__ == "__main__":
    torch.multiprocessing.spawn(train, nprocs=1)
"""
)


def test_a_child_of_torchs_spawn_records(tmp_path: Path) -> None:
    run = collect_program(tmp_path, SPAWNED)
    assert_as_without_us(run)
    assert_whole(run, "rank-0")


BY_MULTIPROCESSING = (
    STARTED
    + """
import multiprocessing
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    multiprocessing.set_forkserver_preload(["torch"])
    process = multiprocessing.Process(target=train, args=(0,))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""
)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_child_of_multiprocessing_records(tmp_path: Path, method: str) -> None:
    (tmp_path / "program.py").write_text(BY_MULTIPROCESSING)
    run = collect(tmp_path, [sys.executable, "program.py", method])
    assert_as_without_us(run)
    assert_whole(run, "rank-0")


FORKED = (
    LOOP
    + """
import os
if os.fork() == 0:
    for _ in range(20): step()
    os.write(1, b"child trained\\n")
    os._exit(7)
_, status = os.wait()
PARENT
print("parent", os.waitstatus_to_exitcode(status))
"""
)


def test_a_forked_child_records_if_its_parent_makes_no_steps(tmp_path: Path) -> None:
    run = collect_program(tmp_path, FORKED.replace("PARENT", ""))
    assert_as_without_us(run, out="child trained\nparent 7\n")
    assert_whole(run, "rank-0")


def test_a_parent_and_its_forked_child_record_each(tmp_path: Path) -> None:
    run = collect_program(
        tmp_path, FORKED.replace("PARENT", "for _ in range(20): step()")
    )
    assert_as_without_us(run, out="child trained\nparent 7\n")
    assert_whole(run, "rank-0", "rank-0-2")


def test_a_child_that_is_forked_between_steps_records_its_own(tmp_path: Path) -> None:
    program = FORKED.replace("if os.fork", "step()\nif os.fork")
    run = collect_program(
        tmp_path, program.replace("PARENT", "for _ in range(20): step()")
    )
    assert_as_without_us(run, out="child trained\nparent 7\n")
    assert_whole(run, "rank-0", "rank-0-2")


def test_a_child_of_a_forked_child_records(tmp_path: Path) -> None:
    program = FORKED.replace(
        "if os.fork", "if os.fork():\n    os.wait()\n    sys.exit()\nif os.fork"
    )
    run = collect_program(tmp_path, "import sys\n" + program.replace("PARENT", ""))
    assert_as_without_us(run, out="child trained\nparent 7\n")
    assert_whole(run, "rank-0")


def test_what_a_short_forked_child_recorded_is_written(tmp_path: Path) -> None:
    """A process of multiprocessing ends without atexit."""
    program = BY_MULTIPROCESSING.replace("range(20)", "range(5)")
    (tmp_path / "program.py").write_text(program)
    run = collect(tmp_path, [sys.executable, "program.py", "fork"])
    assert run.rank["state"] == "ended early"
    assert run.rank["steps"]["seen"] == 5


FORWARD_IN_A_FORK = """
import os, sys, time
import torch
model = torch.nn.Linear(512, 512)
def recorded():
    try:
        with open(sys.argv[1]) as file:
            return '"done"' in file.read()
    except OSError:
        return False
time.sleep(0.2)  # a thread looks for steps meanwhile
if os.fork() == 0:
    until = time.monotonic() + 60
    while time.monotonic() < until and not recorded():
        for _ in range(20):
            model(torch.randn(512, 512))
    os._exit(0)
os.wait()
"""


def test_calls_of_a_module_count_in_a_forked_child(tmp_path: Path) -> None:
    """The thread that looks for the outermost module does not survive a fork."""
    (tmp_path / "program.py").write_text(FORWARD_IN_A_FORK)
    manifest = str(tmp_path / "out" / "run" / "rank-0.json")
    run = collect(tmp_path, [sys.executable, "program.py", manifest])
    assert run.status == 0, run.err
    assert run.rank["state"] == "done"
    assert run.rank["steps"]["of"] == "Linear"


def test_a_lock_that_was_held_at_a_fork_is_free_in_the_child() -> None:
    holder = SimpleNamespace(lock=threading.RLock(), stop=threading.Event(), other=1)
    thread = threading.Thread(target=holder.lock.acquire)
    thread.start()
    thread.join()
    before = holder.stop
    forking.renew_locks(holder)
    assert holder.lock.acquire(blocking=False)
    assert holder.stop is not before
    assert holder.other == 1


@pytest.mark.parametrize(
    ("by", "has_steps", "traced", "child"),
    [
        ("auto", False, False, "auto"),
        ("auto", True, False, "optimizer"),  # a helper calls modules, too
        ("mark", True, False, "mark"),
        ("forward", False, False, "forward"),
        ("forward", True, False, None),
        ("auto", True, True, None),  # with a profiler that is no more
        ("time", False, False, None),
    ],
)
def test_what_counts_as_a_step_of_a_forked_child(
    by: str, child: str | None, *, has_steps: bool, traced: bool
) -> None:
    settings = {"status_folder": "x", "options": {"steps_by": by, "warmup": 2}}
    result = forking.settings_of_child(
        settings, parent_has_steps=has_steps, parent_is_traced=traced
    )
    assert (result and result["options"]["steps_by"]) == child


def test_a_program_that_records_itself_leaves_its_forked_children_alone() -> None:
    result = forking.settings_of_child(
        {"options": {"steps_by": "auto"}},
        parent_has_steps=False,
        parent_is_traced=False,
    )
    assert result is None


def test_a_forked_child_without_steps_or_gpu_is_a_helper() -> None:
    assert forking.is_helper({"forked": True})
    assert not forking.is_helper({})


@needs("accelerate")
@pytest.mark.slow
def test_ranks_that_a_notebook_forks_record(tmp_path: Path) -> None:
    """accelerate.notebook_launcher forks its ranks; on the CPU debug_launcher does."""
    train = indent(LOOP, "    ")
    run = collect_program(
        tmp_path,
        "import os\nfrom accelerate import Accelerator, debug_launcher\n"
        f"def train():\n    accelerator = Accelerator(cpu=True)\n{train}"
        "    model, optimizer = accelerator.prepare(model, optimizer)\n"
        "    for _ in range(80): step()\n    accelerator.wait_for_everyone()\n"
        "    os.write(1, b'trained\\n')\ndebug_launcher(train, num_processes=2)\n",
    )
    assert_as_without_us(run, out=run.out)
    assert run.out.count("trained\n") == 2
    assert_whole(run, "rank-0", "rank-1")


# Programs that replace themselves.

RESTARTS = """
import os, sys
if "LD_LIBRARY_PATH_SET" not in os.environ:
    BEFORE
    os.environ["LD_LIBRARY_PATH_SET"] = "1"
    os.EXEC
"""
EXECS = {
    "execv": "execv(sys.executable, [sys.executable, *sys.argv])",
    "execve": "execve(sys.executable, [sys.executable, *sys.argv], os.environ)",
    "execlp": "execlp(sys.executable, sys.executable, *sys.argv)",
}


def restarting(before: str, how: str) -> str:
    return RESTARTS.replace("BEFORE", before).replace("EXEC", EXECS[how])


@pytest.mark.parametrize("how", EXECS)
def test_a_program_that_restarts_itself_records(tmp_path: Path, how: str) -> None:
    run = collect_program(tmp_path, restarting("import torch", how) + TRAINS + ENDS)
    assert_as_without_us(run, status=STATUS)
    assert_whole(run, "rank-0")


def test_steps_before_a_restart_leave_nothing_behind(tmp_path: Path) -> None:
    program = LOOP + restarting("step()", "execv") + TRAINS
    run = collect_program(tmp_path, program)
    assert_as_without_us(run)
    assert_whole(run, "rank-0")
    assert not any(name.startswith("rank-0-2") for name in run.files)


def test_what_was_recorded_before_a_restart_is_kept(tmp_path: Path) -> None:
    before = "for _ in range(7): step()"  # the second step of the trace
    run = collect_program(tmp_path, LOOP + restarting(before, "execv") + TRAINS)
    assert_as_without_us(run)
    first, second = run.facts["ranks"]
    assert first["state"] == "ended early"
    assert first["step_time"]["steps"] == 3
    assert "replaced" in first["missing"][0]["why"]
    assert second["state"] == "done"


def test_a_restart_that_fails_changes_nothing(tmp_path: Path) -> None:
    program = (
        LOOP
        + "import os\nstep()\ntry:\n    os.execv('/no/such/program', ['a'])\n"
        + "except FileNotFoundError:\n    print('caught')\n"
    )
    run = collect_program(tmp_path, program + TRAINS)
    assert_as_without_us(run, out="caught\ntrained\n")
    assert_whole(run, "rank-0")


def test_a_restart_without_the_environment_is_named(tmp_path: Path) -> None:
    how = "execve(sys.executable, [sys.executable, *sys.argv], dict(SET='1'))"
    program = RESTARTS.replace("LD_LIBRARY_PATH_SET", "SET")
    program = program.replace("BEFORE", "import torch").replace("EXEC", how)
    run = collect_program(tmp_path, program + "print('ran')")
    assert (run.status, run.out) == (2, "ran\n")
    assert "replaced itself" in run.err
    assert "without PYTHONPATH" in run.err


# Several programs in one process, as in a notebook.


@needs("IPython")
def test_a_program_that_ipython_runs_records(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRAINS)
    ipython = [sys.executable, "-m", "IPython", "--no-banner", "-c"]
    env = {"IPYTHONDIR": str(tmp_path / "ipython")}
    run = collect(tmp_path, [*ipython, "%run program.py"], env=env)
    assert_as_without_us(run)
    assert_whole(run, "rank-0")


@needs("IPython")
def test_the_second_program_of_a_process_is_recorded_if_the_first_was_too_short(
    tmp_path: Path,
) -> None:
    (tmp_path / "short.py").write_text(LOOP + "step()\nprint('short')\n")
    (tmp_path / "program.py").write_text(TRAINS.replace("range(20)", "range(60)"))
    ipython = [sys.executable, "-m", "IPython", "--no-banner", "-c"]
    env = {"IPYTHONDIR": str(tmp_path / "ipython")}
    command = [*ipython, "%run short.py\n%run program.py"]
    run = collect(tmp_path, command, env=env)
    assert_as_without_us(run, out="short\ntrained\n")
    assert_whole(run, "rank-0")
    names = {source["name"].rpartition("/")[2] for source in run.rank["sources"]}
    assert "program.py" in names


# What cannot work is said in one sentence.


def test_a_cleared_environment_is_named(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print('ran')")
    run = collect(tmp_path, ["env", "-i", sys.executable, "program.py"])
    assert (run.status, run.out) == (2, "ran\n")
    assert "nothing was recorded: env -i clears the environment" in run.err


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("#!/bin/sh\nPYTHONPATH=src python train.py", True),
        ('#!/bin/bash\nexport PYTHONPATH="a b"\npython train.py', True),
        ('#!/bin/sh\nexport PYTHONPATH="src:$PYTHONPATH"', False),
        ("#!/bin/sh\nexport PYTHONPATH=src:${PYTHONPATH:-}", False),
        ("#!/bin/sh\nMY_PYTHONPATH=src python train.py", False),
        ("#!/usr/bin/python3\nPYTHONPATH=1", False),
    ],
)
def test_a_shell_script_that_sets_pythonpath_is_named(
    tmp_path: Path, script: str, *, named: bool
) -> None:
    (tmp_path / "train").write_text(script)
    why = run_facts.why_not_loaded([str(tmp_path / "train")])
    assert why == (SETS_PATH.replace("WHO", "train") if named else None)


SETS_PATH = (
    "WHO sets PYTHONPATH, which loads the recorder; let it add to what is there, as in"
    " PYTHONPATH=src:$PYTHONPATH"
)


@pytest.mark.parametrize(
    ("command", "beginning"),
    [
        (["sudo", "python", "train.py"], "sudo clears"),
        (["env", "--ignore-environment", "python"], "env --ignore-environment clears"),
        (["env", "PYTHONPATH=src", "python", "train.py"], "the command sets"),
        (["bash", "-c", "cd src; PYTHONPATH=. python train.py"], "the command sets"),
        (["env", "python3.12", "-I", "train.py"], "python3.12 -I ignores"),
        (["env", "A=b", "python", "train.py"], ""),
        (["python", "train.py", "docker", "PYTHONPATH=x"], ""),
        (["torchrun", "train.py", "sudo"], ""),
    ],
)
def test_what_keeps_the_recorder_out_of_a_command(
    command: list[str], beginning: str
) -> None:
    why = run_facts.why_not_loaded(command)
    assert why is None if not beginning else str(why).startswith(beginning)


def test_a_console_script_of_an_isolated_python_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("#!/opt/python3 -I\nprint('ran')")
    script.chmod(0o755)
    why = str(run_facts.why_not_loaded([str(script)]))
    assert why.startswith("python3 -I ignores PYTHONPATH")

"""Real programs, with real torch on the CPU, run under collect/."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from collecting import (
    COLLECT,
    LOOP,
    QUICK,
    Run,
    collect,
    collect_program,
    environment,
    words,
)

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

SCRIPT = """
import sys
print("torch" in sys.modules, file=sys.stderr)
import argparse, warnings
import agent, launcher, shared
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--token")
options = parser.parse_args()
LOOP
warnings.warn("look here")
for _ in range(options.steps):
    step()
print("MODULES", agent.MINE, launcher.MINE, shared.MINE)
print("OURS ON THE PATH", [path for path in sys.path if path.startswith("COLLECT")])
print("STEPS", options.steps)
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A script with argparse that lives beside modules called as ours."""
    folder = tmp_path_factory.mktemp("plain")
    for name in ("agent", "launcher", "shared"):
        (folder / f"{name}.py").write_text("MINE = True\n")
    (folder / "train.py").write_text(
        SCRIPT.replace("LOOP", LOOP).replace("COLLECT", str(COLLECT))
    )
    command = [sys.executable, "train.py", "--steps", "40", "--token", "hush"]
    return collect(folder, command, (*QUICK, "--label", "seq_len=512"))


def test_a_loop_is_recorded_and_keeps_its_status(plain: Run) -> None:
    assert plain.status == 0
    assert plain.rank["state"] == "done"
    assert plain.facts["exit"]["status"] == 0


def test_the_folder_holds_what_the_manifest_names(plain: Run) -> None:
    names = {"run.json", "stderr.log", "rank-0.json", "rank-0.log"}
    assert plain.files == {*names, "rank-0.trace.json.gz"}


def test_the_trace_holds_the_steps_asked_for_and_they_are_whole(plain: Run) -> None:
    names = [one["name"] for one in plain.annotations()]
    one_step = ["Optimizer.zero_grad#SGD.zero_grad", "Optimizer.step#SGD.step"]
    first, second = plain.step_names()
    assert names == [first, *one_step, second, *one_step]


def test_no_annotation_of_the_optimizer_is_cut_by_a_step(plain: Run) -> None:
    notes = plain.annotations()
    steps = [one for one in notes if one["name"].startswith("ProfilerStep")]
    inner = [one for one in notes if one["name"].startswith("Optimizer.step")]
    ends = [one["ts"] + one["dur"] for one in steps]
    for step, end, optimizer in zip(steps, ends, inner, strict=True):
        assert step["ts"] <= optimizer["ts"]
        assert optimizer["ts"] + optimizer["dur"] <= end
        assert "finished" not in optimizer["args"]


def test_the_trace_has_shapes_stacks_and_modules(plain: Run) -> None:
    events = plain.events()
    assert any("Input Dims" in one.get("args", {}) for one in events)
    names = {one["name"] for one in events if one.get("cat") == "python_function"}
    assert "nn.Module: Sequential_0" in names
    assert any(name.startswith("train.py(") for name in names)


def test_steps_are_those_of_the_optimizer(plain: Run) -> None:
    steps = plain.rank["steps"]
    assert (steps["by"], steps["of"]) == ("optimizer", "SGD")
    assert steps["seen"] == 2 + 3 + 1 + 2


def test_the_true_step_time_has_its_spread(plain: Run) -> None:
    found = plain.rank["step_time"]
    assert found["steps"] == 3
    assert found["clock"] == "host"
    order = [
        found[key] for key in ("min_ms", "p10_ms", "median_ms", "p90_ms", "max_ms")
    ]
    assert order == sorted(order)
    assert found["min_ms"] > 0
    assert found["ms"] == pytest.approx(found["seconds"] * 1000 / 3, abs=0.1)


def test_without_cuda_it_says_why_there_is_no_memory_history(plain: Run) -> None:
    assert plain.rank["device"] == "cpu"
    assert "does not use CUDA" in plain.why_missing("memory")
    assert "does not use CUDA" in plain.err


def test_arguments_and_stdout_pass_through(plain: Run) -> None:
    lines = plain.out.splitlines()
    assert lines == ["MODULES True True True", "OURS ON THE PATH []", "STEPS 40"]


def test_torch_is_not_imported_before_the_program_does(plain: Run) -> None:
    assert (plain.folder / "stderr.log").read_text().splitlines()[0] == "False"


def test_stderr_is_shown_and_kept(plain: Run) -> None:
    kept = (plain.folder / "stderr.log").read_text()
    assert "UserWarning: look here" in kept
    assert "UserWarning: look here" in plain.err
    assert "traceq:" not in kept


def test_warnings_are_kept_with_their_rank(plain: Run) -> None:
    assert "UserWarning: look here" in (plain.folder / "rank-0.log").read_text()
    assert plain.rank["log"] == {
        "file": "rank-0.log",
        "warnings": 1,
        "truncated": False,
    }


def test_labels_and_the_command_without_its_secret_are_kept(plain: Run) -> None:
    assert plain.facts["labels"] == {"seq_len": "512"}
    assert plain.facts["command"][-4:] == ["--steps", "40", "--token", "[redacted]"]
    assert "hush" not in (plain.folder / "run.json").read_text()


def test_the_end_says_where_and_what_next(plain: Run) -> None:
    last = plain.err.splitlines()[-2:]
    assert last[0].startswith(f"traceq: recorded to {plain.folder} (")
    assert last[1] == f"traceq:   traceq lint {plain.folder}"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A package run with -m, beside its own sitecustomize, that exits with 3."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "sitecustomize.py").write_text("import builtins\nbuiltins.MINE = 1\n")
    (folder / "trainer").mkdir()
    (folder / "trainer" / "__init__.py").touch()
    (folder / "trainer" / "__main__.py").write_text(
        LOOP + "import sitecustomize, sys\nfor _ in range(20): step()\n"
        "print(__package__, MINE, sitecustomize.__file__)\nsys.exit(3)"
    )
    command = [sys.executable, "-m", "trainer"]
    return collect(folder, command, env={"PYTHONPATH": str(folder)})


def test_a_package_is_run_as_one(package: Run) -> None:
    assert package.out.split()[0] == "trainer"
    assert package.rank["state"] == "done"


def test_the_programs_own_sitecustomize_runs(package: Run) -> None:
    place = package.folder.parents[1] / "sitecustomize.py"
    assert package.out.split()[1:] == ["1", str(place)]


def test_an_exit_status_passes_through(package: Run) -> None:
    assert package.status == 3
    assert package.facts["exit"]["status"] == 3


RANKS = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
LOOP
model = torch.nn.parallel.DistributedDataParallel(model)
while True:
    step()
print("left")
"""


def test_every_rank_of_torchrun_records_and_its_launcher_does_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "ranks.py").write_text(RANKS.replace("LOOP", LOOP))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node=2", "ranks.py"]
    run = collect(tmp_path, command, (*QUICK, "--then-exit"))
    assert run.status == 0, run.err
    assert "left" not in run.out
    ranks = run.facts["ranks"]
    assert [(one["rank"], one["world_size"]) for one in ranks] == [(0, 2), (1, 2)]
    assert [one["state"] for one in ranks] == ["done", "done"]
    assert {"rank-0.trace.json.gz", "rank-1.trace.json.gz"} <= run.files
    assert not any(name.startswith("rank-0-") for name in run.files)


WORKERS = """
import sys
LOOP
class Twice(torch.nn.Module):
    def forward(self, x):
        return x * 2
class Data(torch.utils.data.Dataset):
    twice = Twice()
    def __len__(self):
        return 64
    def __getitem__(self, index):
        for _ in range(100):
            self.twice(torch.ones(8))
        return torch.ones(8)
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(
        Data(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1]
    )
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_do_not_record(tmp_path: Path, method: str) -> None:
    (tmp_path / "workers.py").write_text(WORKERS.replace("LOOP", LOOP))
    run = collect(tmp_path, [sys.executable, "workers.py", method])
    assert run.status == 0, run.err
    assert run.rank["state"] == "done"
    assert run.rank["steps"]["by"] == "optimizer"


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


@pytest.mark.parametrize("flag", ["-I", "-E", "-S", "-sE"])
def test_an_isolated_python_cannot_be_recorded(tmp_path: Path, flag: str) -> None:
    run = collect(tmp_path, [sys.executable, flag, "-c", "print('ran')"])
    assert (run.status, run.out) == (2, "ran\n")
    assert f"{flag} ignores PYTHONPATH" in run.err
    assert run.facts["ranks"] == []


def test_a_program_without_torch_is_told_so(tmp_path: Path) -> None:
    run = collect(tmp_path, [sys.executable, "-c", "print('ran')"])
    assert (run.status, run.out) == (2, "ran\n")
    assert "nothing was recorded: the program never imported torch" in run.err


def test_a_failure_is_not_hidden_by_ours(tmp_path: Path) -> None:
    run = collect(tmp_path, [sys.executable, "-c", "raise SystemExit(5)"])
    assert run.status == 5


INFERENCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 64)
    def forward(self, x):
        for _ in range(20):
            x = self.inner(x)
        return x
model = Model()
with torch.inference_mode():
    for _ in range(3000):
        model(torch.randn(16, 64))
print(len(model._forward_hooks))
"""


def test_without_an_optimizer_the_outermost_module_makes_the_steps(
    tmp_path: Path,
) -> None:
    run = collect_program(tmp_path, INFERENCE)
    assert run.status == 0
    steps = run.rank["steps"]
    assert (steps["by"], steps["of"]) == ("forward", "Model")
    names = [one["name"] for one in run.annotations()]
    assert names == run.step_names()
    assert len(names) == 2
    calls = [one for one in run.events() if one["name"] == "aten::linear"]
    assert len(calls) == 2 * 20
    assert run.out == "0\n"  # no hook is left


def test_a_program_that_ends_in_its_warm_up_is_told_what_it_lacked(
    tmp_path: Path,
) -> None:
    run = collect_program(tmp_path, LOOP + "for i in range(4): step()", ())
    assert run.status == 2
    assert run.rank["state"] == "ended early"
    assert "ended after 4 steps, before its warm-up of 10" in run.err


MARKED = """
import torch
a = torch.randn(8, 8)
for _ in range(40):
    a = torch.tanh(a)
    with torch.profiler.record_function("traceq: step"):
        a = torch.sin(a)
"""


def test_the_program_may_mark_its_steps(tmp_path: Path) -> None:
    run = collect_program(tmp_path, MARKED, (*QUICK, "--steps-by", "mark"))
    assert run.rank["steps"]["by"] == "mark"
    names = [one["name"] for one in run.annotations()]
    first, second = run.step_names()
    assert names == [first, "traceq: step", second, "traceq: step"]


FOREVER = """
import torch
a = torch.randn(8, 8)
while True:
    a = torch.sin(a)
"""


def test_a_program_without_steps_is_recorded_by_time(tmp_path: Path) -> None:
    options = ("--steps-by", "time", "--warmup", "0", "--seconds", "0.3", "--then-exit")
    run = collect_program(tmp_path, FOREVER, options)
    assert run.status == 0
    assert "seconds, not steps" in run.why_missing("step_time")
    assert any(one["name"] == "aten::sin" for one in run.events())


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


OWN_PROFILER = """
LOOP
from torch.profiler import ProfilerActivity, profile, schedule
BEFORE
with profile(activities=[ProfilerActivity.CPU], schedule=SCHEDULE) as profiler:
    for _ in range(12):
        step()
        profiler.step()
print(len(profiler.events()) > 0)
AFTER
"""


def own_profiler(before: int, schedule: str, after: int) -> str:
    program = OWN_PROFILER.replace("LOOP", LOOP).replace("SCHEDULE", schedule)
    loop = "for _ in range({}): step()"
    program = program.replace("BEFORE", loop.format(before))
    return program.replace("AFTER", loop.format(after))


def test_a_program_that_profiles_itself_goes_first(tmp_path: Path) -> None:
    run = collect_program(tmp_path, own_profiler(0, "None", 12))
    assert (run.status, run.out) == (0, "True\n")
    assert run.rank["state"] == "done"
    assert run.rank["timeline"][1]["step"] >= 12  # it was timed after that


def test_a_program_that_begins_to_profile_itself_meanwhile_goes_first(
    tmp_path: Path,
) -> None:
    run = collect_program(
        tmp_path, own_profiler(4, "schedule(wait=3, warmup=1, active=2)", 0)
    )
    assert (run.status, run.out) == (0, "True\n")
    assert "started its own profiler" in run.why_missing("trace")
    assert run.rank["step_time"] is not None


def test_under_nsight_only_the_step_time_is_measured(tmp_path: Path) -> None:
    env = {"NSYS_PROFILING_SESSION_ID": "7"}
    program = LOOP + "for i in range(20): step()"
    run = collect_program(tmp_path, program, env=env)
    assert "Nsight Systems is attached" in run.why_missing("trace")
    assert run.rank["step_time"]["steps"] == 3


COMPILES = """
LOOP
def compile_and_step(i):
    function = eval(f"lambda x: x * {i}")  # a code object of its own
    torch.compile(function, backend="eager")(torch.ones(2))
    step()
for i in range(STEPS):
    (compile_and_step if i in COMPILED else lambda _: step())(i)
"""


def compiles(steps: int, compiled: str) -> str:
    program = COMPILES.replace("LOOP", LOOP).replace("STEPS", str(steps))
    return program.replace("COMPILED", compiled)


@pytest.fixture(scope="module")
def compiling(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A program that compiles in its first 9 steps, and in one of those traced."""
    folder = tmp_path_factory.mktemp("compiling")
    return collect_program(folder, compiles(40, "(*range(9), 16)"))


def test_the_warm_up_lasts_while_the_program_compiles(compiling: Run) -> None:
    assert compiling.rank["warmup"] == {"steps": 12, "still_compiling": False}


def test_a_compilation_in_the_traced_steps_costs_the_stacks(compiling: Run) -> None:
    assert "compiled" in compiling.why_missing("stacks")
    assert not compiling.rank["trace"]["stacks"]
    events = compiling.events()
    assert not any(one.get("cat") == "python_function" for one in events)


def test_steps_traced_again_are_whole_ones(compiling: Run) -> None:
    names = [one["name"] for one in compiling.annotations()]
    assert [name for name in names if "Profiler" in name] == compiling.step_names()
    assert len(compiling.step_names()) == 2


def test_a_program_that_compiles_in_every_step_is_recorded_without_stacks(
    tmp_path: Path,
) -> None:
    run = collect_program(tmp_path, compiles(70, "range(70)"))
    assert run.rank["warmup"] == {"steps": 52, "still_compiling": True}
    assert "in every step" in run.why_missing("stacks")
    assert run.rank["trace"]["compiled_during_trace"]


COMPILED_MODEL = """
import torch, torch._dynamo.utils as utils
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
    def forward(self, x):
        for _ in range(20):
            x = self.inner(x).relu()
        return x
model = torch.compile(Model(), backend="eager", fullgraph=True)
BODY
print(dict(utils.counters["frames"]), dict(utils.counters["stats"]))
"""

TRAINING = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""

CALLS = """
with torch.no_grad():
    for _ in range(3000):
        model(torch.randn(4, 8))
"""


@pytest.mark.parametrize(
    ("body", "by", "of"),
    [(TRAINING, "optimizer", "SGD"), (CALLS, "forward", "Model")],
    ids=["training", "inference"],
)
def test_what_is_compiled_is_the_same_with_and_without_us(
    tmp_path: Path, body: str, by: str, of: str
) -> None:
    run = collect_program(tmp_path, COMPILED_MODEL.replace("BODY", body))
    alone = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.rank["state"] == "done"
    assert (run.rank["steps"]["by"], run.rank["steps"]["of"]) == (by, of)
    assert run.out == alone.stdout
    assert run.err.count("Warning") == alone.stderr.count("Warning")


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

"""Programs whose steps are not those of an optimizer, and programs with a profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collecting import LOOP, QUICK, WITH_TORCH, collect_program

from traceq import load

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH

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
    hooked = False
    for _ in range(3000):
        model(torch.randn(16, 64))
        if hooked and not model._forward_hooks:
            break
        hooked = bool(model._forward_hooks)
print(len(model._forward_hooks))
"""


def test_without_an_optimizer_the_outermost_module_makes_the_steps(
    tmp_path: Path,
) -> None:
    run = collect_program(tmp_path, INFERENCE)
    assert run.status == 0
    steps = run.rank["steps"]
    assert (steps["by"], steps["of"]) == ("forward", "Model")
    names = [annotation["name"] for annotation in run.annotations()]
    assert names == run.step_names()
    assert len(names) == 2
    calls = [event for event in run.events() if event["name"] == "aten::linear"]
    assert len(calls) == 2 * 20
    assert run.out == "0\n"  # no hook is left


COMPILED = """
import torch
double = torch.compile(lambda x: x.sin() + x.cos())
with torch.no_grad():
    for _ in range(400):
        double(torch.ones(64))
"""


def test_calls_of_a_compiled_function_are_steps(tmp_path: Path) -> None:
    run = collect_program(tmp_path, COMPILED)
    assert run.rank["state"] == "done"
    assert run.rank["steps"]["by"] == "forward"
    assert run.rank["steps"]["of"] == "compiled code"
    assert len(run.step_names()) == 2


ENCODER_AND_DECODER = """
import time, torch
class Encoder(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.2)  # long enough to be seen many times
        return super().forward(x)
class Decoder(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.001)
        return super().forward(x)
encoder, decoder = Encoder(8, 8), Decoder(8, 8)
with torch.inference_mode():
    for _ in range(4):
        x = encoder(torch.randn(4, 8))
        for _ in range(150):
            x = decoder(x)
"""


def test_the_steps_of_a_decode_loop_are_those_of_the_decoder(tmp_path: Path) -> None:
    run = collect_program(tmp_path, ENCODER_AND_DECODER)
    assert run.rank["steps"]["of"] == "Decoder"
    assert len(run.step_names()) == 2


FUNCTIONS = """
import time, torch
began = time.monotonic()
weight = torch.randn(64, 64)
while time.monotonic() - began < 300:
    x = torch.tanh(torch.randn(64, 64) @ weight)
"""


def test_of_a_program_without_any_step_some_seconds_are_recorded(
    tmp_path: Path,
) -> None:
    options = ("--no-overhead", "--seconds", "0.5", "--then-exit")
    run = collect_program(tmp_path, FUNCTIONS, options)
    assert run.status == 0
    assert run.rank["steps"]["by"] == "time"
    assert run.rank["trace"]["window"] == "time"
    assert any(event["name"] == "aten::tanh" for event in run.events())
    assert "traced a few seconds, as no steps were seen" in run.err


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
    names = [annotation["name"] for annotation in run.annotations()]
    first, second = run.step_names()
    assert names == [first, "traceq: step", second, "traceq: step"]


FOREVER = """
import torch
a = torch.randn(8, 8)
while True:
    a = torch.sin(a)
"""


def test_a_program_without_steps_is_recorded_by_time(tmp_path: Path) -> None:
    options = (
        *("--steps-by", "time", "--warmup", "0", "--seconds", "0.3", "--then-exit"),
        "--no-overhead",
    )
    run = collect_program(tmp_path, FOREVER, options)
    assert run.status == 0
    assert "seconds, not steps" in run.why_missing("step_time")
    assert any(event["name"] == "aten::sin" for event in run.events())


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


def test_a_program_that_profiles_itself_to_its_end_is_told_so(tmp_path: Path) -> None:
    run = collect_program(tmp_path, own_profiler(0, "None", 0), ("--warmup", "4"))
    assert run.rank["state"] == "ended early"
    assert run.why_missing("trace") == (
        "the program ended after 12 steps, while its own profiler was running"
    )


def test_steps_that_the_program_marks_itself_are_not_counted_beside_ours(
    tmp_path: Path,
) -> None:
    idle = own_profiler(0, "schedule(wait=50, warmup=1, active=1)", 0)
    run = collect_program(tmp_path, idle.replace("print(", "#"))
    names = [
        annotation["name"]
        for annotation in run.annotations()
        if "step#" in annotation["name"].lower()
    ]
    assert run.step_names() == ["traceq: step#1", "traceq: step#2"]
    assert [name for name in names if name.startswith("traceq")] == run.step_names()
    assert any(name.startswith("ProfilerStep#") for name in names)
    trace = load(run.folder / "rank-0.trace.json.gz", cache=False)
    assert trace.steps["step"].to_list() == [1, 2]


def test_under_nsight_only_the_step_time_is_measured(tmp_path: Path) -> None:
    env = {"NSYS_PROFILING_SESSION_ID": "7"}
    program = LOOP + "for i in range(20): step()"
    run = collect_program(tmp_path, program, env=env)
    assert "Nsight Systems is attached" in run.why_missing("trace")
    assert run.rank["step_time"]["steps"] == 3


VALIDATES_FIRST = (
    LOOP
    + """
import time
class Model(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.002)
        return super().forward(x)
model = Model(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.no_grad():
    for _ in range(200):
        model(torch.randn(4, 8))
for _ in range(STEPS):
    step()
"""
)


def test_a_validation_before_the_training_is_replaced_by_the_training(
    tmp_path: Path,
) -> None:
    run = collect_program(tmp_path, VALIDATES_FIRST.replace("STEPS", "40"))
    assert run.rank["steps"]["by"] == "optimizer"
    assert run.rank["state"] == "done"
    names = [annotation["name"] for annotation in run.annotations()]
    assert "Optimizer.step#SGD.step" in names


def test_a_validation_stays_if_too_few_training_steps_follow(tmp_path: Path) -> None:
    run = collect_program(tmp_path, VALIDATES_FIRST.replace("STEPS", "4"))
    assert run.rank["steps"]["by"] == "forward"
    assert run.rank["state"] == "done"
    assert len(run.step_names()) == 2
    assert run.rank["trace"]["bytes"] > 0


def test_an_optimizer_that_never_steps_does_not_hide_an_inference(
    tmp_path: Path,
) -> None:
    run = collect_program(tmp_path, VALIDATES_FIRST.replace("STEPS", "0"))
    assert run.rank["steps"]["of"] == "Model"
    assert run.rank["state"] == "done"

"""Programs that use CUDA: their GPU work is in the trace, or said to be missing.

Without a GPU torch.cuda is made to look as if it were used; nothing runs on it then, so
such a trace has no GPU work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from collecting import LOOP, QUICK, WITH_TORCH, Late, Run, collect_program

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH

torch = Late("torch")

OPTIONS = (*QUICK, "--no-memory")

LOOKS_LIKE_CUDA = """
import os, time, torch
class Event:
    def __init__(self, **_):
        self.at = 0.0
    def record(self):
        self.at = time.perf_counter()
    def elapsed_time(self, other):
        return 1000 * (other.at - self.at)
torch.cuda.Event = Event
torch.cuda.is_initialized = lambda: True
torch.cuda.is_current_stream_capturing = lambda: False
torch.cuda.synchronize = lambda *_: None
torch.cuda.current_device = torch.cuda.device_count = lambda: 0
class Stream:
    calls = 0
    def query(self):
        Stream.calls += 1
torch.cuda.current_stream = lambda *_: Stream()
"""

PROFILES_ITSELF = """
with torch.profiler.profile():
    step()
"""

STEPS = """
values = []
for _ in range(40):
    step()
    values.append(os.environ.get("TEARDOWN_CUPTI"))
print(len(set(values)), values[-1])
"""


@pytest.fixture(scope="module")
def without_gpu_work(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("without")
    return collect_program(folder, LOOKS_LIKE_CUDA + LOOP + STEPS, OPTIONS)


@pytest.fixture(scope="module")
def profiled_before(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("before")
    program = LOOKS_LIKE_CUDA + LOOP + PROFILES_ITSELF + STEPS
    return collect_program(folder, program, OPTIONS)


def test_a_trace_of_cuda_without_gpu_work_is_not_done(without_gpu_work: Run) -> None:
    assert without_gpu_work.rank["trace"] is not None
    assert without_gpu_work.rank["state"] == "incomplete"


def test_a_trace_of_cuda_without_gpu_work_is_tried_again_and_then_an_error(
    without_gpu_work: Run,
) -> None:
    attempts = without_gpu_work.rank["trace"]["attempts"]
    assert [attempt["why"] for attempt in attempts] == [
        "the profiler recorded no GPU work"
    ] * 2
    assert [attempt["stacks"] for attempt in attempts] == [True, True]
    assert without_gpu_work.rank["trace"]["stacks"] is False  # less detail, at last
    assert without_gpu_work.status == 2
    assert "the trace has no GPU work" in without_gpu_work.err


CALLS_AROUND_PROFILES = """
for _ in range(40):
    step()
ours = Stream.calls
with torch.profiler.profile():
    step()
print(ours >= 2, Stream.calls - ours)
"""


def test_a_cuda_call_is_made_before_and_after_each_profile(tmp_path: Path) -> None:
    program = LOOKS_LIKE_CUDA + LOOP + CALLS_AROUND_PROFILES
    run = collect_program(tmp_path, program, OPTIONS)
    assert run.out == "True 2\n"  # of the program's own profile, long after ours


def test_the_missing_gpu_work_is_reported_with_its_cause(
    without_gpu_work: Run, profiled_before: Run
) -> None:
    begins = "no GPU work: the profiler recorded none, though the program uses CUDA"
    assert f"traceq: {begins}; another tool may hold CUPTI" in without_gpu_work.err
    assert f"traceq: {begins}; it profiled itself before" in profiled_before.err


def test_cupti_detaches_after_the_first_profile_of_a_process(
    without_gpu_work: Run,
) -> None:
    # It stays set: a profile that finds it gone would record no GPU work.
    assert without_gpu_work.out == "2 1\n"


def test_cupti_is_left_alone_if_the_program_profiled_itself_before(
    profiled_before: Run,
) -> None:
    assert profiled_before.out == "1 None\n"


ON_GPU = """
import torch
from torch.profiler import ProfilerActivity, profile
model = torch.nn.Linear(256, 256, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    model(torch.randn(64, 256, device="cuda")).sum().backward()
    optimizer.step()
def own_profile():
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as own:
        step()
        torch.cuda.synchronize()
    on_gpu = [one for one in own.events() if "CUDA" in str(one.device_type)]
    print(len(on_gpu) > 0)
"""


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("after", [0, 2])
def test_profiles_of_the_program_and_ours_all_have_gpu_work(
    tmp_path: Path, before: int, after: int
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU to record")
    own = "for _ in range({}): own_profile()\n"
    steps = "for _ in range(20): step()\n"
    program = ON_GPU + own.format(before) + steps + own.format(after)
    run = collect_program(tmp_path, program, OPTIONS)
    assert run.out == "True\n" * (before + after)
    assert run.rank["state"] == "done"
    assert any(event.get("cat") == "kernel" for event in run.events())

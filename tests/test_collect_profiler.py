"""Our own use of torch's profiler, in this process, with real torch."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from collecting import WITH_TORCH, Late

if TYPE_CHECKING:
    import pytest

pytestmark = WITH_TORCH

torch = Late("torch")
profiler = Late("agent.profiler")
other_profilers = Late("agent.other_profilers")


def make_trace(active: int = 2) -> Any:  # noqa: ANN401 - of collect/, by path
    return profiler.Trace(cuda=False, active=active, stacks=False, memory=False)


def record(trace: Any) -> None:  # noqa: ANN401 - of collect/, by path
    trace.start()
    for _ in range(3):
        torch.ones(2).sum()
        trace.step()
    trace.stop()


def test_no_warning_of_torch_is_caused_by_our_profiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # torch 2.10 to 2.12 warn whenever a profiler that does not accumulate is set up.
    prepare = torch.profiler.profile.prepare_trace

    def prepare_and_warn(this: Any) -> None:  # noqa: ANN401 - torch's
        prepare(this)
        if not this.acc_events:
            warnings.warn(
                "Profiler clears events at the end of each cycle", stacklevel=2
            )

    monkeypatch.setattr(torch.profiler.profile, "prepare_trace", prepare_and_warn)
    trace = make_trace()
    record(trace)
    assert trace.steps == [1, 2]


def test_a_profiler_of_the_program_marks_steps_until_it_stops() -> None:
    never = torch.profiler.schedule(wait=99, warmup=1, active=1)
    with torch.profiler.profile(schedule=never):
        assert other_profilers.marks_steps()
        assert make_trace().step_name == "traceq: step"
    assert not other_profilers.marks_steps()
    assert make_trace().step_name == "ProfilerStep"


def test_our_own_profiler_is_not_taken_for_one_of_the_program() -> None:
    trace = make_trace()
    trace.start()
    assert not other_profilers.marks_steps()
    trace.stop()


def test_no_python_object_is_made_of_each_event() -> None:
    trace = make_trace()
    record(trace)
    assert trace.profiler.profiler._function_events is None  # noqa: SLF001


def test_the_profile_function_of_the_program_is_there_again_afterwards() -> None:
    calls: list[str] = []

    def note(_frame: object, event: str, _argument: object) -> None:
        calls.append(event)

    trace = profiler.Trace(cuda=False, active=2, stacks=True, memory=False)
    sys.setprofile(note)
    try:
        record(trace)
        after = sys.getprofile()
    finally:
        sys.setprofile(None)

    assert after is note
    assert calls

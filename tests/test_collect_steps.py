"""Step boundaries and step times: the agent's parts, in process, with real torch."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from collecting import WITH_TORCH, Late, module

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH

torch = Late("torch")
steps = Late("agent.steps")
repeated_calls = Late("agent.repeated_calls")
step_timer = Late("agent.step_timer")


class Count:
    """Counts how often it is called."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


@pytest.fixture
def count() -> Count:
    return Count()


def make_optimizer() -> Any:  # noqa: ANN401 - torch's
    layer = torch.nn.Linear(2, 2)
    layer(torch.ones(2)).sum().backward()
    return torch.optim.SGD(layer.parameters(), lr=0.1)


@pytest.fixture
def source(count: Count) -> Any:  # noqa: ANN401 - of collect/, by path
    source = steps.OptimizerSteps(count)
    source.install()
    yield source
    source.remove()


def test_one_optimizer_of_two_makes_the_steps(count: Count, source: Any) -> None:  # noqa: ANN401
    first, second = make_optimizer(), make_optimizer()
    for _ in range(5):
        first.step()
        second.step()
    assert count.times == 5
    assert source.of == "SGD"


@pytest.mark.usefixtures("source")
def test_an_optimizer_that_stands_still_is_replaced(count: Count) -> None:
    first, second = make_optimizer(), make_optimizer()
    first.step()
    for _ in range(steps.OptimizerSteps.STALE + 4):
        second.step()
    assert count.times == 1 + 5


@pytest.mark.usefixtures("source")
def test_an_optimizer_that_is_gone_is_replaced_at_once(count: Count) -> None:
    make_optimizer().step()
    second = make_optimizer()
    second.step()
    assert count.times == 2


@pytest.mark.usefixtures("source")
def test_a_step_that_a_grad_scaler_leaves_out_is_none(count: Count) -> None:
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(layer(torch.ones(2)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert count.times == 2


def test_no_step_is_counted_when_done(count: Count, source: Any) -> None:  # noqa: ANN401
    optimizer = make_optimizer()
    optimizer.step()
    source.remove()
    optimizer.step()
    assert count.times == 1


def test_a_recording_that_ends_in_a_step_leaves_the_hooks_of_the_program_alone(
    source: Any,  # noqa: ANN401
) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415

    source.boundary = source.remove
    program = Count()
    handle = register_optimizer_step_post_hook(lambda *_: program())
    optimizer = make_optimizer()
    optimizer.step()
    optimizer.step()
    handle.remove()
    assert program.times == 2


def test_while_traced_a_step_ends_after_the_annotation(source: Any) -> None:  # noqa: ANN401
    order: list[str] = []
    source.boundary = lambda: order.append("boundary")
    optimizer = make_optimizer()
    optimizer.step()
    source.traced(on=True)
    undo = steps.after_annotations(order.append)
    optimizer.step()
    undo()
    source.traced(on=False)
    optimizer.step()
    assert order == ["boundary", "boundary", "Optimizer.step#SGD.step", "boundary"]


def test_annotations_are_as_before_when_no_longer_traced(source: Any) -> None:  # noqa: ANN401
    before = torch.autograd.profiler.record_function.__exit__
    source.traced(on=True)
    source.traced(on=True)
    source.traced(on=False)
    assert torch.autograd.profiler.record_function.__exit__ is before


def make_hooked(count: Count) -> Any:  # noqa: ANN401 - torch's
    model = torch.nn.Linear(2, 2)
    follow(model, count)
    return model


def follow(model: Any, count: Count) -> Any:  # noqa: ANN401 - torch's
    """Count all calls of a module, as if a thread had seen it called before."""
    calls = repeated_calls.RepeatedCalls(count)
    calls.follow(model)
    ((_, candidate),) = calls._modules.values()  # noqa: SLF001
    calls.chosen = candidate
    return calls


def test_a_copy_of_a_module_does_not_contain_our_hook(count: Count) -> None:
    twin = copy.deepcopy(make_hooked(count))
    twin(torch.ones(2))
    assert count.times == 0


def test_a_pickled_module_is_the_same_with_and_without_our_hook() -> None:
    model = torch.nn.Linear(2, 2)
    before = pickle.dumps(model)
    calls = follow(model, Count())
    during = pickle.dumps(model)
    calls.remove()
    assert [during, pickle.dumps(model)] == [before, before]


def test_a_whole_module_with_our_hook_is_loaded_as_weights_only(
    tmp_path: Path, count: Count
) -> None:
    torch.save(make_hooked(count), tmp_path / "model.pt")
    with torch.serialization.safe_globals([torch.nn.Linear]):
        torch.load(tmp_path / "model.pt", weights_only=True)(torch.ones(2))
    assert count.times == 0


def test_a_module_compiled_in_place_is_counted_outside_of_what_is_compiled(
    count: Count,
) -> None:
    model = torch.nn.Linear(2, 2)
    model.compile(backend="eager")
    calls = follow(model, count)
    for _ in range(3):
        model(torch.ones(2))
    calls.remove()
    model(torch.ones(2))
    assert count.times == 3
    assert not model._forward_hooks  # noqa: SLF001


def make_waiting(go_on: threading.Event, inside: threading.Event) -> Any:  # noqa: ANN401
    class Inner(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:  # noqa: ANN401
            inside.set()
            go_on.wait(10)
            return x

    return torch.nn.Sequential(Inner())


def test_the_outermost_module_of_a_running_thread_is_found() -> None:
    go_on, inside = threading.Event(), threading.Event()
    model = make_waiting(go_on, inside)
    thread = threading.Thread(target=model, args=(torch.ones(1),))
    thread.start()
    inside.wait(10)
    result = repeated_calls.outermost_modules()
    go_on.set()
    thread.join()
    assert result == [model]
    assert repeated_calls.outermost_modules() == []


def test_looking_for_modules_keeps_no_local_variable_of_the_program_alive() -> None:
    inside, go_on = threading.Event(), threading.Event()
    locals_of_program = []

    def program() -> None:
        large = torch.ones(1)
        locals_of_program.append(weakref.ref(large))
        inside.set()
        go_on.wait(10)

    thread = threading.Thread(target=program)
    gc.disable()
    try:
        thread.start()
        inside.wait(10)
        repeated_calls.outermost_modules()
        go_on.set()
        thread.join()
        assert locals_of_program[0]() is None
    finally:
        gc.enable()


def called(calls: Any, model: Any, times: int) -> None:  # noqa: ANN401 - of collect/
    calls.follow(model)
    for _ in range(times):
        model(torch.ones(2))


def test_the_module_that_is_called_most_makes_the_steps(count: Count) -> None:
    encoder, decoder = torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2))
    calls = repeated_calls.RepeatedCalls(count)
    called(calls, encoder, 2)
    called(calls, decoder, 10)
    assert calls.of == "Sequential"
    assert count.times == 10 - 2  # those after which it was chosen
    calls.remove()


def test_a_module_that_is_called_no_longer_is_replaced(count: Count) -> None:
    prefill, decode = torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2))
    calls = repeated_calls.RepeatedCalls(count)
    called(calls, prefill, 4)
    called(calls, decode, repeated_calls.STALE - 1)
    assert calls.of == "Linear"
    called(calls, decode, 5)
    assert calls.of == "Sequential"
    calls.remove()


def test_modules_that_take_turns_do_not_replace_each_other(count: Count) -> None:
    first, second = torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2))
    calls = repeated_calls.RepeatedCalls(count)
    for _ in range(2 * repeated_calls.STALE):
        called(calls, first, 1)
        called(calls, second, 1)
    assert calls.of == "Linear"
    assert count.times == 2 * repeated_calls.STALE - 2
    calls.remove()


def test_a_module_without_weights_makes_no_steps(count: Count) -> None:
    calls = repeated_calls.RepeatedCalls(count)
    called(calls, torch.nn.ReLU(), 10)
    assert calls.chosen is None
    calls.remove()


def test_a_module_that_nothing_can_be_asked_of_still_runs(count: Count) -> None:
    class Strange(torch.nn.Linear):  # type: ignore[misc,name-defined]
        def parameters(self, recurse: bool = True) -> Any:  # noqa: ANN401, ARG002, FBT001, FBT002
            msg = "mine"
            raise RuntimeError(msg)

    calls = repeated_calls.RepeatedCalls(count)
    called(calls, Strange(2, 2), 5)
    assert calls.chosen is None
    calls.remove()


class Graph:
    """A stand-in for a CUDA graph, which cannot be made here."""


def test_a_graph_that_no_module_replays_makes_the_steps(count: Count) -> None:
    calls = repeated_calls.RepeatedCalls(count)
    graph = Graph()
    for _ in range(5):
        calls._replayed(lambda _: None, graph)  # noqa: SLF001 - as CUDAGraph.replay
    assert (calls.of, count.times) == ("CUDA graph", 3)


def test_a_graph_that_a_module_replays_counts_for_the_module(count: Count) -> None:
    calls = repeated_calls.RepeatedCalls(count)
    graph = Graph()

    class Graphed(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x: Any) -> Any:  # noqa: ANN401
            for _ in range(30):
                calls._replayed(lambda _: None, graph)  # noqa: SLF001
            return x

    model = Graphed()
    for _ in range(6):
        model(torch.ones(2))
    # The first call was not seen from its beginning, two more until it was chosen.
    assert (calls.of, count.times) == ("Graphed", 6 - 1 - 2)
    calls.remove()


def test_an_optimizer_that_a_graph_has_captured_makes_no_steps(count: Count) -> None:
    source = steps.AutoSteps(count, lambda: True, lambda: True)
    source._optimizer_stepped()  # noqa: SLF001 - three times, before the capture
    for _ in range(source.REPLAYS + 10):
        source._forward_ended()  # noqa: SLF001 - the graph is replayed
    assert source.by == "forward"
    assert count.times == 1 + 11


def test_an_optimizer_that_was_made_is_known_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Base(torch.optim.Optimizer):  # type: ignore[misc,name-defined]
        pass

    class Mine(Base):
        def step(self, closure: Any = None) -> Any:  # noqa: ANN401
            return closure

    monkeypatch.setattr(module("agent.steps"), "Optimizer", Base)
    assert not steps.optimizer_exists()
    Mine(torch.nn.Linear(2, 2).parameters(), {})
    assert steps.optimizer_exists()


def test_the_spread_of_step_times() -> None:
    result = step_timer.spread([4.0, 1.0, 2.0, 3.0, 100.0])
    assert result == {
        "median_ms": 3.0,
        "min_ms": 1.0,
        "p10_ms": 1.4,
        "p90_ms": 61.6,
        "max_ms": 100.0,
    }


def test_a_timer_counts_what_lies_between_its_laps() -> None:
    timer = step_timer.StepTimer(on_cuda=False)
    for _ in range(3):
        time.sleep(0.02)
        timer.lap()
    result = timer.result()
    assert result["steps"] == 3
    assert result["min_ms"] >= 20
    assert result["seconds"] >= 0.06
    assert step_timer.StepTimer(on_cuda=False).result() is None


class TimedGpu:
    """A clock, and the events of a GPU that does at once what it is asked to."""

    def __init__(self) -> None:
        self.ms = 0.0

    def perf_counter(self) -> float:
        return self.ms / 1000

    def synchronize(self) -> None:
        pass

    def Event(self, **_: object) -> TimedGpu:  # noqa: N802 - as torch calls it
        return TimedEvent(self)


class TimedEvent(TimedGpu):
    def __init__(self, clock: TimedGpu) -> None:
        super().__init__()
        self.clock = clock

    def record(self) -> None:
        self.ms = self.clock.ms

    def elapsed_time(self, later: TimedEvent) -> float:
        return later.ms - self.ms


def test_what_a_program_does_after_its_last_step_is_not_of_the_step_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = TimedGpu()
    monkeypatch.setattr(module("agent.step_timer"), "cuda", gpu)
    monkeypatch.setattr(module("agent.step_timer"), "time", gpu)
    timer = step_timer.StepTimer(on_cuda=True)
    for _ in range(4):
        gpu.ms += 10
        timer.lap()
    gpu.ms += 1000  # it writes a checkpoint, and ends

    timed = timer.result()
    assert (timed["ms"], timed["steps"]) == (pytest.approx(10), 4)


def test_parameters_are_known_when_the_optimizer_is_gone() -> None:
    source = steps.OptimizerSteps(lambda: None)
    source.install()
    try:
        optimizer = torch.optim.SGD(torch.nn.Linear(4, 4).parameters(), lr=0.1)
        optimizer.step()
        assert source.parameters() == 20
        del optimizer
        gc.collect()
        assert source.parameters() == 20
    finally:
        source.remove()

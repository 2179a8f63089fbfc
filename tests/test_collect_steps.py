"""What a step is, and how long: the agent's parts in this process, with real torch."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from typing import Any

import pytest
from collecting import WITH_TORCH, Late, module

pytestmark = WITH_TORCH

torch = Late("torch")
steps = Late("agent.steps")
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


def test_no_hook_is_left_when_done(count: Count, source: Any) -> None:  # noqa: ANN401
    optimizer = make_optimizer()
    optimizer.step()
    source.remove()
    optimizer.step()
    assert count.times == 1
    assert source._handle is None  # noqa: SLF001 - it would be called for ever


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
    source = steps.ForwardSteps(count)
    source._follow(model)  # noqa: SLF001 - found by a thread otherwise
    return model


def test_a_module_with_our_hook_can_be_copied(count: Count) -> None:
    twin = copy.deepcopy(make_hooked(count))
    twin(torch.ones(2))
    assert count.times == 1


def test_a_module_with_our_hook_can_be_saved_and_knows_us_no_more(
    count: Count,
) -> None:
    data = pickle.dumps(make_hooked(count))
    assert b"traceq" not in data
    pickle.loads(data)(torch.ones(2))  # noqa: S301 - made two lines above
    assert count.times == 0


def test_a_module_compiled_in_place_is_counted_outside_of_what_is_compiled(
    count: Count,
) -> None:
    model = torch.nn.Linear(2, 2)
    model.compile(backend="eager")
    source = steps.ForwardSteps(count)
    source._follow(model)  # noqa: SLF001 - found by a thread otherwise
    for _ in range(3):
        model(torch.ones(2))
    source.remove()
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
    found = steps.outermost_modules()
    go_on.set()
    thread.join()
    assert found == [model]
    assert steps.outermost_modules() == []


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
    found = step_timer.spread([4.0, 1.0, 2.0, 3.0, 100.0])
    assert found == {
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
    found = timer.result()
    assert found["steps"] == 3
    assert found["min_ms"] >= 20
    assert found["seconds"] >= 0.06
    assert step_timer.StepTimer(on_cuda=False).result() is None

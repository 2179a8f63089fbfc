"""Every rule on traces of which parts are lost: it runs, or says why it is skipped."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from linting import bundled_rules, outcome
from recordings import FIXTURE_TRACES

from traceq import load
from traceq.errors import TraceqError
from traceq.linter import Bad
from traceq.model.recording import Recording
from traceq.testing import draw
from traceq.testing.examples import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

Event = dict[str, Any]
Events = list[Event]

GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
# Between them they have findings of most families, with stacks and without.
VARIED = ("recompile", "twins/moe_loop", "twins/norm_mismatch")


def is_step(event: Event) -> bool:
    return str(event.get("name")).startswith("ProfilerStep#")


def is_gpu(event: Event) -> bool:
    return event.get("cat") in GPU


def without(told: Callable[[Event], bool]) -> Callable[[Events], Events]:
    return lambda events: [event for event in events if not told(event)]


def kernels_lost(which: Callable[[int], bool]) -> Callable[[Events], Events]:
    """Return what leaves out the GPU's work that begins within some of the steps."""

    def lose(events: Events) -> Events:
        steps = sorted((one["ts"], one["dur"]) for one in events if is_step(one))
        spans = [
            (ts, ts + dur) for number, (ts, dur) in enumerate(steps) if which(number)
        ]
        return [
            event
            for event in events
            if not (is_gpu(event) and any(ts <= event["ts"] < end for ts, end in spans))
        ]

    return lose


def one_of(*categories: str) -> Callable[[Events], Events]:
    """Return what leaves one event of these categories, and what has no time."""

    def leave(events: Events) -> Events:
        timeless = [event for event in events if "ts" not in event]
        return [*timeless, *[one for one in events if one.get("cat") in categories][:1]]

    return leave


LITTLE: dict[str, Callable[[Events], Events]] = {
    "no kernels": without(is_gpu),
    "no ops": without(lambda event: event.get("cat") == "cpu_op"),
    "no steps": without(is_step),
    "one op": one_of("cpu_op"),
    "one kernel": one_of(*GPU),
    "one step": one_of("user_annotation"),
    "one frame": one_of("python_function"),
    "one call": one_of("cuda_runtime", "cuda_driver"),
    "kernels lost in the first step": kernels_lost(lambda number: number == 0),
    "kernels lost but in the first step": kernels_lost(lambda number: number > 0),
    "kernels lost in every second step": kernels_lost(lambda number: number % 2 == 1),
    "kernels lost in all steps": kernels_lost(lambda _: True),
    "kernels of no length": lambda events: [
        event | {"dur": 0} if is_gpu(event) else event for event in events
    ],
}


def each_loss(name: str, among: Iterable[str]) -> pytest.MarkDecorator:
    """Return all losses for each of some things; of one thing, one is not slow."""
    return pytest.mark.parametrize(
        (name, "lost"),
        [
            pytest.param(
                one,
                lost,
                marks=[pytest.mark.slow] if (turn - number) % len(LITTLE) else [],
            )
            for number, one in enumerate(among)
            for turn, lost in enumerate(LITTLE)
        ],
    )


def crashed(document: dict[str, Any], lost: str, folder: Path, *codes: str) -> object:
    """Return the rules that crash on what is left of a trace."""
    events = LITTLE[lost](document["traceEvents"])
    path = folder / "little.json"
    path.write_text(json.dumps(document | {"traceEvents": events}), encoding="utf-8")
    try:
        trace = load(path, cache=False)
    except TraceqError:
        return ()
    return outcome(Recording("little", trace), *codes).crashed


@pytest.mark.real
@each_loss("code", bundled_rules())
def test_a_rule_runs_on_what_is_left_of_its_examples(
    code: str, lost: str, tmp_path: Path
) -> None:
    drawn = [
        example
        for example in bundled_rules()[code].examples
        if isinstance(example, Bad) and example.drawing
    ]

    for example in drawn:
        document = draw(example.drawing, example.args, DEVICE)
        assert not crashed(document, lost, tmp_path, code)


@pytest.mark.real
@each_loss("name", VARIED)
def test_all_rules_run_on_what_is_left_of_a_real_trace(
    name: str, lost: str, tmp_path: Path
) -> None:
    document = orjson.loads(gzip.decompress(FIXTURE_TRACES[name].read_bytes()))

    assert not crashed(document, lost, tmp_path)


def test_a_bound_step_without_kernels_has_no_median_of_them(tmp_path: Path) -> None:
    call = "cuda_runtime"
    steps = [
        {"cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": 1000 * n}
        for n in range(1, 6)
    ]
    others = [
        {"cat": "cpu_op", "name": "aten::mm", "ts": 1000 * n + 10 + 20 * at, "dur": 15}
        for n in range(1, 6)
        for at in range(40)
    ]
    kernel = {"cat": "kernel", "name": "gemm", "ts": 10, "dur": 5, "pid": 0, "tid": 7}
    kernel["args"] = {"stream": 7, "device": 0, "correlation": 1}
    launch = {"cat": call, "name": "cudaLaunchKernel", "ts": 2, "dur": 3}
    launch["args"] = {"correlation": 1}
    events = [
        {"ph": "X", "pid": 1, "tid": 1, "dur": 990, **event}
        for event in [*steps, *others, launch, kernel]
    ]
    path = tmp_path / "lost.json"
    path.write_text(json.dumps({"deviceProperties": [DEVICE], "traceEvents": events}))

    found = outcome(Recording("lost", load(path, cache=False)), "LCH002")

    assert not found.crashed

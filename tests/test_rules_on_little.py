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
        steps = sorted(
            (event["ts"], event["dur"]) for event in events if is_step(event)
        )
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
        return [
            *timeless,
            *[event for event in events if event.get("cat") in categories][:1],
        ]

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


# Of each thing one loss is not slow, another one for the next thing.
_TURNS = [
    pytest.param(False, id="one"),
    pytest.param(True, id="all", marks=pytest.mark.slow),
]


def losses(number: int, *, every: bool) -> Iterable[str]:
    """Return the other losses of a thing, or the one that is not slow."""
    usual = [*LITTLE][number % len(LITTLE)]
    return [lost for lost in LITTLE if lost != usual] if every else [usual]


def left(document: dict[str, Any], lost: str) -> bytes:
    """Return what is left of a trace."""
    return orjson.dumps(
        document | {"traceEvents": LITTLE[lost](document["traceEvents"])}
    )


def crashed(content: bytes, folder: Path, *codes: str) -> object:
    """Return the rules that crash on what is left of a trace."""
    path = folder / "little.json"
    path.write_bytes(content)
    try:
        trace = load(path, cache=False)
    except TraceqError:
        return ()
    return outcome(Recording("little", trace), *codes).crashed


@pytest.mark.real
@pytest.mark.parametrize("every", _TURNS)
@pytest.mark.parametrize("code", bundled_rules())
def test_a_rule_runs_on_what_is_left_of_its_examples(
    code: str,
    every: bool,  # noqa: FBT001 - a case
    tmp_path: Path,
) -> None:
    drawn = [
        draw(example.drawing, example.args, DEVICE)
        for example in bundled_rules()[code].examples
        if isinstance(example, Bad) and example.drawing
    ]
    number = [*bundled_rules()].index(code)
    # Losses of what is not there leave the same.
    contents = {
        left(document, lost): lost
        for document in drawn
        for lost in losses(number, every=every)
    }

    for content, lost in contents.items():
        assert not crashed(content, tmp_path, code), lost


@pytest.mark.real
@pytest.mark.parametrize("every", _TURNS)
@pytest.mark.parametrize("name", VARIED)
def test_all_rules_run_on_what_is_left_of_a_real_trace(
    name: str,
    every: bool,  # noqa: FBT001 - a case
    tmp_path: Path,
) -> None:
    document = orjson.loads(gzip.decompress(FIXTURE_TRACES[name].read_bytes()))

    for lost in losses(VARIED.index(name), every=every):
        assert not crashed(left(document, lost), tmp_path), lost


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

    report = outcome(Recording("lost", load(path, cache=False)), "LCH002")

    assert not report.crashed

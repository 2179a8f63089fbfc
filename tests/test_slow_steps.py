"""Rare slow steps: which are kept, and what lint names as the cause of each."""

from __future__ import annotations

import json
import random
import threading
from itertools import chain, repeat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from collecting import WITH_TORCH, Late, collect_program
from command import traceq
from msgspec import structs

from traceq.analysis.time.slow_steps import LATE_RANK, slow_step_rows, slow_steps
from traceq.formats.run import read_run
from traceq.formats.slow_steps import read_slow_steps
from traceq.report.lint.slow_steps import sentences

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from collecting import Run

    from traceq.model.slow_steps import SlowRun

pytestmark = WITH_TORCH

slow = Late("agent.slow_steps")
manifest = Late("shared.manifest")

STEPS = 2000
# Each kind of pause in 1 of 200 steps; "own" is a sleep of the program.
PLANTED = {
    f"{kind}": (first, first + 1000)
    for kind, first in zip(
        ("gc", "data", "sleep", "recompile", "checkpoint"),
        (150, 350, 550, 750, 950),
        strict=True,
    )
}
CAUSES = {
    "gc": "Python's garbage collector",
    "data": "DataLoader",
    "sleep": "waiting in the program",
    "recompile": "recompilation",
    "checkpoint": "checkpointing",
}
PROGRAM = f"""
import gc, io, json, time
import torch
from torch.utils.data import DataLoader, Dataset

PLANTED = json.loads('''{json.dumps(PLANTED)}''')
AT = {{step: kind for kind, steps in PLANTED.items() for step in steps}}

class Data(Dataset):
    def __len__(self):
        return {STEPS}
    def __getitem__(self, step):
        if AT.get(step) == "data":
            time.sleep(0.25)
        return torch.ones(8)

@torch.compile(backend="eager", dynamic=False)
def scaled(x):
    return x * 2

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
big = torch.zeros(30_000_000)
sizes = iter(range(9, 20))
scaled(torch.ones(4))
for step, x in enumerate(DataLoader(Data(), batch_size=1)):
    kind = AT.get(step)
    if kind == "gc":
        for _ in range(200_000):
            cycle = []
            cycle.append(cycle)
        gc.collect()
    elif kind == "sleep":
        time.sleep(0.25)
    elif kind == "recompile":
        scaled(torch.ones(next(sizes)))
        time.sleep(0.05)
    elif kind == "checkpoint":
        torch.save(big, io.BytesIO())
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class Queue:
    """Time without a core, as it is set."""

    def __init__(self) -> None:
        self.total = 0.0

    def seconds(self) -> float:
        return self.total

    def close(self) -> None:
        """Do nothing: there is no file."""


def kept_of(
    laps: Iterable[float], factor: float = 1.5, queued: Iterable[float] = ()
) -> list[int]:
    """Return which of some step times are kept, by a clock that shows just these."""
    now, queue = [0.0], Queue()
    watch = slow.SlowSteps(factor, lambda: now[0])
    watch._thread, watch._queue = threading.get_ident(), queue  # noqa: SLF001
    watch.boundary()
    result = []
    for number, (lap, waited) in enumerate(zip(laps, chain(queued, repeat(0.0)))):  # noqa: B905
        now[0] += lap
        queue.total += waited
        if watch.boundary(number):
            result.append(number)
    return result


def test_nothing_is_kept_of_two_thousand_steady_steps() -> None:
    noise = random.Random(0)  # noqa: S311 - jitter that is the same each time
    assert kept_of(0.01 * noise.uniform(0.9, 1.2) for _ in range(2000)) == []


def test_a_step_twice_the_median_is_kept() -> None:
    laps = [0.01] * 300
    laps[200] = 0.02
    assert kept_of(laps) == [200]


def test_a_pause_is_kept_among_steps_that_wait_for_a_core() -> None:
    draw = random.Random(0)  # noqa: S311 - the same each time
    queued = [draw.choice((0.0, 0.0, 0.1, 0.3)) for _ in range(300)]
    laps = [0.01 + waited for waited in queued]
    queued[200], laps[200] = 0.0, 0.16

    assert 200 in kept_of(laps, queued=queued)


def test_a_step_that_waits_for_a_core_is_kept() -> None:
    laps, queued = [0.01] * 300, [0.0] * 300
    laps[200], queued[200] = 0.2, 0.19

    assert kept_of(laps, queued=queued) == [200]


def test_steps_of_the_program_take_the_place_of_those_of_others() -> None:
    watch = slow.SlowSteps(1.5)
    entry = {"ms": 100.0, "median_ms": 10.0, "queued_ms": 90.0}
    for _ in range(slow.MOST):
        watch._keep(dict(entry))  # noqa: SLF001
    watch._keep({**entry, "queued_ms": 0.0})  # noqa: SLF001
    watch._keep(dict(entry))  # noqa: SLF001

    assert len(watch.kept) == slow.MOST
    assert watch.kept[-1]["queued_ms"] == 0.0


def test_a_pause_of_the_program_keeps_its_place_though_it_waited_for_a_core() -> None:
    watch = slow.SlowSteps(1.5)
    others = {"ms": 100.0, "median_ms": 10.0, "queued_ms": 90.0}
    for _ in range(slow.MOST):
        watch._keep(dict(others))  # noqa: SLF001
    pause = {**others, "ms": 300.0, "queued_ms": 200.0}
    watch._keep(pause)  # noqa: SLF001

    assert watch.kept[-1] == pause


def test_a_step_below_the_factor_is_not() -> None:
    laps = [0.01] * 300
    laps[200] = 0.02
    assert kept_of(laps, factor=3.0) == []


def test_steps_that_vary_as_much_as_that_are_not_slow() -> None:
    assert kept_of([0.01, 0.01, 0.01, 0.025] * 200) == []


def test_a_slower_phase_of_a_run_becomes_the_usual_one() -> None:
    retained = kept_of([0.01] * 100 + [0.03] * 400)
    assert retained
    assert max(retained) < 200


def test_the_first_steps_are_not_kept() -> None:
    assert kept_of([1.0, 0.5, 0.2] + [0.01] * 200) == []


def test_a_step_that_recording_took_a_part_of_does_not_count() -> None:
    now = [0.0]
    watch = slow.SlowSteps(1.5, lambda: now[0])
    for _ in range(100):
        now[0] += 0.01
        watch.boundary()
    now[0] += 1.0
    assert not watch.boundary(ours=True)
    assert watch.count == 0


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("slow")
    options = ("--no-overhead", "--timed", "5", "--active", "1", "--keep-slow", "3x")
    return collect_program(folder, PROGRAM, options)


def test_planted_pauses_are_kept_and_named(watched: Run) -> None:
    (rank,) = read_run(watched.folder).ranks
    assert rank.slow is not None
    rows = slow_step_rows({0: rank.slow})
    by_step = dict(rows.select("step", "cause").iter_rows())
    # The boundary that ends step n is the one after it.
    named = [
        CAUSES[kind] in {by_step.get(step + shift) for shift in (0, 1)}
        for kind, steps in PLANTED.items()
        for step in steps
    ]
    assert sum(named) >= 9


def test_a_sleep_has_the_line_of_the_program(watched: Run) -> None:
    (rank,) = read_run(watched.folder).ranks
    assert rank.slow is not None
    rows = slow_step_rows({0: rank.slow}).to_dicts()
    lines = {row["line"] for row in rows if row["cause"] == CAUSES["sleep"]}
    expected = PROGRAM.splitlines().index("        time.sleep(0.25)") + 1
    assert expected in lines


def test_all_steps_but_those_that_were_recorded_are_watched(watched: Run) -> None:
    assert watched.rank["slow_steps"]["steps"] > STEPS - 100


def test_the_rest_of_the_recording_is_there(watched: Run) -> None:
    assert watched.rank["trace"]
    assert watched.rank["state"] == "done"


LINE = {"file": "train.py", "line": 3, "function": "main", "samples": 2}


def step(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever a step has
    return {"step": 7, "ms": 100.0, "median_ms": 10.0, "cpu_ms": 100.0, **changes}


def run_of(folder: Path, *retained: dict[str, Any]) -> SlowRun:
    file = folder / f"{len(list(folder.iterdir()))}.json"
    whole = {"factor": 1.5, "steps": 200, "seconds": 2.0, "median_ms": 10.0}
    manifest.write(file, {**whole, "slow": len(retained), "kept": list(retained)})
    slow_run = read_slow_steps(file)
    assert slow_run is not None
    return slow_run


@pytest.mark.parametrize(
    ("entry", "cause"),
    [
        (step(alloc_retries=1, cuda_mallocs=2), "allocator retries"),
        (step(alloc_retries=0, cuda_mallocs=2), "cudaMalloc"),
        (step(clock_mhz=1200, highest_clock_mhz=1980), "lower GPU clock"),
        (step(marks=["evaluation"]), "evaluation"),
        (step(marks=["first batch"], by_ms={"data": 80}), "first batch of an epoch"),
        (step(by_ms={"data": 10}), "unknown"),
        (
            step(cpu_ms=9.0, queued_ms=80.0, by_ms={"data": 80}),
            "other processes on the CPU",
        ),
        (step(cpu_ms=9.0, queued_ms=1.0, by_ms={"data": 80}), "DataLoader"),
        (
            step(cpu_ms=9.0, watched_ms=80.0, others_queued_ms=70.0, lines=[LINE]),
            "other processes on the CPU",
        ),
        (
            step(cpu_ms=9.0, watched_ms=80.0, others_queued_ms=5.0, lines=[LINE]),
            "waiting in the program",
        ),
    ],
)
def test_the_evidence_of_a_step_decides_the_cause(
    tmp_path: Path, entry: dict[str, Any], cause: str
) -> None:
    assert slow_step_rows({0: run_of(tmp_path, entry)})["cause"].to_list() == [cause]


def test_a_rank_without_a_cause_waits_for_the_one_that_has_one(tmp_path: Path) -> None:
    runs = {
        0: run_of(tmp_path, step()),
        1: run_of(tmp_path, step(by_ms={"gc": 80})),
    }
    causes = slow_step_rows(runs).sort("rank")["cause"].to_list()
    assert causes == [LATE_RANK, "Python's garbage collector"]


def test_the_cost_is_the_time_above_the_median_over_all_steps(tmp_path: Path) -> None:
    result = slow_steps({0: run_of(tmp_path, step(by_ms={"gc": 80}))})
    assert result is not None
    (cause,) = result.causes
    assert (cause.count, cause.every) == (1, 200)
    assert cause.per_step_ns == 90_000_000 // 200


def outcome_of(run: SlowRun) -> Any:  # noqa: ANN401 - what the sentences read
    return SimpleNamespace(slow_steps=slow_steps({0: run}))


def test_of_more_slow_steps_than_are_kept_the_frequency_is_a_least_one(
    tmp_path: Path,
) -> None:
    run = structs.replace(run_of(tmp_path, *[step(by_ms={"gc": 80})] * 2), slow=50)
    head, cause = sentences(outcome_of(run))

    assert "50 of 200 steps" in head
    assert "2 of them were kept" in head
    assert "at least 1 in 100 steps" in cause


def test_causes_are_on_the_first_screen(watched: Run) -> None:
    screen = traceq("lint", watched.folder, "--no-cache", width=100).out

    assert sum(f"  {cause}" in screen for cause in CAUSES.values()) >= 4


@pytest.mark.parametrize("text", ["", "[]", "{", '{"factor": "x", "steps": 5}'])
def test_a_damaged_file_is_no_watched_run(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rank-0.slow.json"
    file.write_text(text)
    assert read_slow_steps(file) is None

"""A run, and the next one, pass the check against a fixture of the first.

A run that does more does not.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from math import inf, nan
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl
import pytest
from collecting import WITH_TORCH, collect
from command import traceq
from on_gpu import run_on_gpu
from recordings import WHOLE_TRACES, by_trace

from traceq.check.budgets import (
    Budget,
    LayerBudget,
    breaches,
    budgets_for,
    read_budgets,
)
from traceq.check.cpu import cpu_budgets, cpu_part, read_cpu_part, write_cpu_part
from traceq.check.cpu_changes import cpu_differences
from traceq.check.numbers import Backends, Layer, Numbers, numbers
from traceq.check.spread import Spread, tidy
from traceq.formats.fixture_origin import origin_step_ns
from traceq.inputs.load_trace import load
from traceq.model.recording import Recording
from traceq.model.run import StepTime

if TYPE_CHECKING:
    from pathlib import Path

    from command import Answer

pytestmark = pytest.mark.real

CALL_US = 10
LSTM = ("nn.Module: LM_0", "nn.Module: LSTM_0")
HEAD = ("nn.Module: LM_0", "nn.Module: Linear_0")


@pytest.fixture(autouse=True)
def _not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def drawn(
    counts: list[int],
    head: int = 4,
    *,
    syncs: int = 0,
    **other: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """Return a trace whose steps have this many kernels in an LSTM, and some more."""
    events: list[dict[str, Any]] = []
    start = 0
    for number, count in enumerate(counts):
        calls = [LSTM] * count + [HEAD] * head
        length = (len(calls) + 1) * CALL_US
        events.append(_host("user_annotation", f"ProfilerStep#{number}", start, length))
        for at, modules in enumerate(calls):
            events += _call(modules, len(events), start + 1 + at * CALL_US, other)
        for _ in range(syncs):
            at = start + 1 + len(calls) * CALL_US
            events.append(_host("cuda_runtime", "cudaDeviceSynchronize", at, 3))
        start += length + 1
    device = {"id": 0, "name": "NVIDIA H200", "numSms": 132}
    known = {"schemaVersion": 1, "deviceProperties": [device], "with_stack": 1}
    return known | {"traceEvents": events}


def _call(
    modules: tuple[str, ...], number: int, at: float, other: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return an op in some modules, and the kernel that it launches."""
    file = other.get("file", "/home/alice/work/train.py")
    frames = [f"{file}(3): main", *modules]
    nested = [
        _host("python_function", name, at + 0.1 * depth, 8 - 0.2 * depth)
        for depth, name in enumerate(frames)
    ]
    library = other.get("library", lambda _: "cublas_gemm")(number)
    return [
        *nested,
        _host("cpu_op", "aten::mm", at + 1, 5),
        _host("cuda_runtime", "cudaLaunchKernel", at + 2, 2, correlation=number),
        {
            **_host("kernel", library, at + 5, 2, correlation=number),
            "pid": 0,
            "tid": 7,
        },
    ]


def _host(
    category: str, name: str, ts: float, dur: float, **args: int
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
        "args": args | ({"device": 0, "stream": 7} if category == "kernel" else {}),
    }


def written(folder: Path, name: str, trace: dict[str, Any]) -> Path:
    file = folder / f"{name}.json"
    file.write_text(json.dumps(trace), encoding="utf-8")
    return file


def fixture_of(path: Path, folder: Path) -> Path:
    """Make a fixture of a run in the documented way; return it once it is green.

    With the name of its program it is held to what it shows: there is no more to write.
    """
    shrunk = traceq("shrink", path, "-o", folder, "--program", "a test")
    assert shrunk.status == 0, shrunk.err
    checked = traceq("check", "--no-cache", folder)
    assert checked.status == 0, checked.out
    return folder


def against(folder: Path, new: Path) -> Answer:
    return traceq("check", "--no-cache", folder, "--against", new, width=200)


# Steps that differ.

UNEVEN = [50, 36, 36]


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the fixture of a run of which the longest step is not kept."""
    folder = tmp_path_factory.mktemp("uneven")
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("CI", raising=False)
        return fixture_of(written(folder, "run", drawn(UNEVEN)), folder / "fixture")


@pytest.mark.slow
def test_a_run_passes_against_the_fixture_of_its_other_steps(
    uneven: Path, tmp_path: Path
) -> None:
    answer = against(uneven, written(tmp_path, "run", drawn(UNEVEN)))

    assert "2 of 3 steps" in (uneven / "origin.toml").read_text(encoding="utf-8")
    assert answer.status == 0, answer.out


@pytest.mark.slow
def test_the_next_run_may_begin_at_another_of_the_steps(
    uneven: Path, tmp_path: Path
) -> None:
    answer = against(uneven, written(tmp_path, "next", drawn([36, 50, 50])))

    assert answer.status == 0, answer.out


def test_limits_hold_all_steps_of_the_run_and_a_little_more(uneven: Path) -> None:
    budgets = read_budgets(uneven / "traceq.toml")

    assert budgets.limits["launches"] == Budget(44.667, 0.0, 33, 61)
    assert budgets.layers["LM/LSTM"].kernels == Budget(40.667, 0.0, 29, 57)


def test_a_number_that_is_the_same_in_all_steps_has_no_limits(uneven: Path) -> None:
    budgets = read_budgets(uneven / "traceq.toml")

    assert budgets.limits["syncs"] == Budget(0)
    assert budgets.layers["LM/Linear"].kernels == Budget(4)


@pytest.mark.parametrize(
    ("worse", "words"),
    [
        ({"counts": UNEVEN, "syncs": 1}, "syncs 1, the budget is 0"),
        ({"counts": UNEVEN, "head": 5}, "LM/Linear: 5 kernels, the budget is 4"),
        ({"counts": [80, 60, 60]}, "LM/LSTM: 66.667 kernels, the budget is 29 to 57"),
    ],
    ids=["a sync a step", "a kernel more in a layer", "more kernels than in any step"],
)
def test_a_run_that_does_more_fails(
    worse: dict[str, Any], words: str, uneven: Path, tmp_path: Path
) -> None:
    answer = against(uneven, written(tmp_path, "worse", drawn(**worse)))

    assert answer.status == 1
    assert words in answer.out


@pytest.mark.parametrize("averaged", [[True] * 3, [False, True, False]])
def test_limits_hold_all_steps_whichever_are_averaged(
    averaged: list[bool], tmp_path: Path
) -> None:
    trace = load(written(tmp_path, "run", drawn(UNEVEN)), cache=False)
    steps = trace.steps.with_columns(averaged=pl.Series(averaged))
    counts = [count for count, taken in zip(UNEVEN, averaged, strict=True) if taken]
    mean = tidy(sum(counts) / len(counts))

    run = numbers(Recording("run", replace(trace, steps=steps)))

    assert run.values["launches"] == tidy(mean + 4)
    assert run.spreads["launches"] == Spread(3, 40, 54)
    assert run.layers["LM/LSTM"].kernels == mean
    assert run.layers["LM/LSTM"].spread == Spread(3, 36, 50)


def test_an_update_keeps_the_limits_of_the_run(uneven: Path) -> None:
    before = (uneven / "traceq.toml").read_bytes()

    assert traceq("check", "--no-cache", uneven, "--update").status == 0
    assert (uneven / "traceq.toml").read_bytes() == before


@pytest.mark.slow
def test_shrinking_a_fixture_again_keeps_what_is_known_of_the_run(
    uneven: Path, tmp_path: Path
) -> None:
    traceq("shrink", uneven, "-o", tmp_path / "again")
    origin = tmp_path / "again" / "origin.toml"

    assert origin.read_bytes() == (uneven / "origin.toml").read_bytes()
    assert "LM/LSTM" in origin.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_step_time_stands_before_the_tables_of_an_origin(
    uneven: Path, tmp_path: Path
) -> None:
    traceq("shrink", uneven, "-o", tmp_path / "again", "--step-ms", "7.5")
    origin = (tmp_path / "again" / "origin.toml").read_text(encoding="utf-8")

    assert origin.index("true_step_ms = 7.5") < origin.index("[run]")


@pytest.mark.parametrize("step_ms", [nan, inf, -1.0, 0, True, "7.5", None])
def test_a_step_time_that_is_no_time_is_unknown(step_ms: object) -> None:
    assert origin_step_ns({"true_step_ms": step_ms}) is None


@pytest.mark.slow
def test_a_run_in_an_origin_that_is_not_ours_is_an_error(
    uneven: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "wrong"
    traceq("shrink", uneven, "-o", folder)
    origin = folder / "origin.toml"
    text = re.sub(r"mean = [\d.]+", 'mean = "x"', origin.read_text(encoding="utf-8"))
    origin.write_text(text, encoding="utf-8")

    answer = traceq("check", "--no-cache", folder)

    assert answer.status == 1
    assert "[run] is not what traceq shrink writes" in " ".join(answer.out.split())


@pytest.mark.slow
def test_alike_steps_leave_no_count_to_say_of_the_run(tmp_path: Path) -> None:
    run = written(tmp_path, "run", drawn([8, 8, 8]))
    folder = fixture_of(run, tmp_path / "fixture")

    assert "launches" not in (folder / "origin.toml").read_text(encoding="utf-8")
    assert read_budgets(folder / "traceq.toml").limits["launches"] == Budget(12)


@pytest.mark.slow
def test_a_run_of_one_step_passes_against_its_fixture(tmp_path: Path) -> None:
    run = written(tmp_path, "run", drawn([8]))

    assert against(fixture_of(run, tmp_path / "fixture"), run).status == 0


def test_limits_widen_less_the_more_steps_there_are() -> None:
    assert Spread(3, 10, 20).limits() == (5, 25)
    assert Spread(11, 10, 20).limits() == (9, 21)


def test_a_layer_that_some_steps_lack_may_be_missing() -> None:
    some = Layer(2, Backends(("aten",)), Spread(3, 0, 6))
    budgets = budgets_for(Numbers({}, {"LM/Aux": some}))

    assert not list(breaches(budgets, Numbers({})))


def test_a_layer_that_all_steps_have_may_not_be_missing() -> None:
    budgets = budgets_for(Numbers({}, {"LM/Head": Layer(2, Backends(("aten",)))}))

    (breach,) = breaches(budgets, Numbers({}))
    assert breach.worse


@pytest.mark.parametrize(
    ("used", "worse"), [(("a",), None), (("a", "b"), None), (("a", "c"), True)]
)
def test_a_backend_of_some_steps_may_come_and_go(
    used: tuple[str, ...],
    worse: bool | None,  # noqa: FBT001 - a case
) -> None:
    wanted = LayerBudget(Budget(1), Backends(("a",), ("b",)))
    budgets = replace(budgets_for(Numbers({})), layers={"L": wanted})
    result = breaches(budgets, Numbers({}, {"L": Layer(1, Backends(used))}))

    assert [breach.worse for breach in result] == ([] if worse is None else [worse])


def test_limits_are_read_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "traceq.toml"
    file.write_text(
        "[budgets]\nlaunches = { value = 5, min = 4, max = 7 }\n"
        '[budgets.backends]\ngemm = { backends = ["a"], sometimes = ["b"] }\n'
    )

    budgets = read_budgets(file)

    assert budgets.limits["launches"].limits == (4, 7)
    assert budgets.backends["gemm"] == Backends(("a",), ("b",))


# Times.


def test_the_noise_of_a_mean_is_less_the_more_steps_were_timed() -> None:
    few, many = (StepTime(100, 100, 50, 150, n, usual_range_ns=60) for n in (5, 20))

    assert few.noise_ns == pytest.approx(2 * many.noise_ns)


# What could not be shrunk, or was another finding in the run than in its fixture.


def slow(value: str) -> Any:  # noqa: ANN401 - a type of pytest that it does not export
    """Return a parameter whose test `make slow` runs: it is like that of another."""
    return pytest.param(value, marks=pytest.mark.slow)


LAYER = "torch_geometric.nn.conv.gat_conv_GATConv_propagate_jr3zw5uk.py"


@pytest.mark.parametrize(
    "file",
    [
        slow(f"/var/t/{LAYER}"),
        slow("/opt/server/sglang/python/sglang/srt/run.py"),
        "/home/alice/secret/pkg/train.py",
    ],
    ids=["written by torch_geometric", "in a folder named as a library", "absolute"],
)
@pytest.mark.slow
def test_a_run_passes_wherever_its_files_are(file: str, tmp_path: Path) -> None:
    run = written(tmp_path, "run", drawn([8, 8, 8], syncs=1, file=file))
    folder = fixture_of(run, tmp_path / "fixture")
    answer = against(folder, run)

    assert answer.status == 0, answer.out
    assert "gone" not in answer.out


@pytest.mark.parametrize(
    "name",
    [
        slow("step[DECODE bs={n}]"),
        slow("execute_{n}_context_0(sq0sk0)_generation_32(sq32sk{n})"),
        slow("decode[bs=4 tok={n}]"),
        slow("[pl][profile]run_training_batch"),
        "alice's secret iteration {n}",
    ],
)
@pytest.mark.slow
def test_steps_are_known_by_regions_in_the_fixture_too(
    name: str, tmp_path: Path
) -> None:
    trace = drawn([8, 8, 8], syncs=1)
    for event in trace["traceEvents"]:
        if match := re.fullmatch(r"ProfilerStep#(\d+)", event["name"]):
            event["name"] = name.replace("{n}", str(int(match[1]) + 30))
    run = written(tmp_path, "run", trace)
    folder = tmp_path / "fixture"
    shrunk = traceq("shrink", run, "-o", folder)

    assert shrunk.status == 0, shrunk.err
    assert load(folder / "trace.json.gz", cache=False).steps.height == 2
    assert b"alice" not in (folder / "trace.json.gz").read_bytes()


@pytest.mark.parametrize("path", by_trace(WHOLE_TRACES, {"copies_fixed"}))
def test_every_trace_passes_against_its_own_fixture(path: Path, tmp_path: Path) -> None:
    answer = against(fixture_of(path, tmp_path / "fixture"), path)

    assert answer.status == 0, answer.out


# Programs, recorded twice.

PROGRAM = """
import random, torch
from torch import nn
torch.set_num_threads(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(8, 8), nn.Linear(8, 8)
    def forward(self, x, times):
        for _ in range(times):
            x = self.cell(x, x)
        return self.out(x)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(60):
    for _ in range({accumulated}):
        model(torch.randn({rows}, 8), {times}).sum().backward(){more}
    optimizer.step()
    optimizer.zero_grad()
"""
PROGRAMS = {
    "chunks of different length": {"times": "(9, 9, 5)[i % 3]"},
    "steps that alternate": {"times": "1 + 3 * (i % 2)"},
    "gradient accumulation": {"accumulated": "3"},
    "random shapes": {"rows": "random.randint(2, 30)"},
}
PLAIN = {"accumulated": "1", "rows": "4", "times": "3", "more": ""}


def recorded(folder: Path, name: str, **parts: str) -> Path:
    """Record a program; return its run folder."""
    file = folder / "train.py"
    text = PROGRAM
    for key, part in (PLAIN | parts).items():
        text = text.replace(f"{{{key}}}", part)
    file.write_text(text)
    within = folder / name
    within.mkdir()
    options = ("--no-overhead", "--warmup", "2", "--timed", "6", "--then-exit")
    run = collect(within, [sys.executable, str(file)], options)
    assert run.status == 0, run.err
    return run.folder.rename(folder / f"{name}-run")


def times_aside(answer: Answer) -> list[str]:
    """Return what fails a check, without what a busy machine changes."""
    failing = [line for line in answer.lines if re.match(r"  [a-z]", line)]
    return [name for name in failing if not re.search(r"step-ms|gpu-ms|HST00", name)]


@pytest.fixture(scope="module", params=PROGRAMS)
def twice(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, dict[str, str]]:
    """Record a program twice."""
    parts = PROGRAMS[request.param]
    folder = tmp_path_factory.mktemp("twice")
    first, second = (recorded(folder, name, **parts) for name in ("first", "second"))
    return first, second, parts


class TestPrograms:
    """Programs whose steps differ are recorded twice, and changed."""

    pytestmark: ClassVar = [*WITH_TORCH, pytest.mark.slow]

    def test_both_recordings_pass_against_the_fixture_of_the_first(
        self, twice: tuple[Path, Path, dict[str, str]], tmp_path: Path
    ) -> None:
        first, second = (run_on_gpu(path, tmp_path / path.name) for path in twice[:2])
        folder = fixture_of(first, tmp_path / "fixture")

        assert against(folder, first).status == 0
        assert not times_aside(against(folder, second))

    def test_both_recordings_pass_without_a_gpu(
        self, twice: tuple[Path, Path, dict[str, str]], tmp_path: Path
    ) -> None:
        first, second = (cpu_part(load(path, cache=False)) for path in twice[:2])
        file = tmp_path / "cpu.json"
        file.write_bytes(write_cpu_part(first))
        known, limits = read_cpu_part(file), cpu_budgets(first, None)

        for part in (first, second):
            failing = [x for x in cpu_differences(known, limits, part) if x.fails]
            assert not failing

    def test_a_value_that_is_read_in_each_step_fails(
        self, twice: tuple[Path, Path, dict[str, str]], tmp_path: Path
    ) -> None:
        first, _, parts = twice
        more = "\n        float(model.out.bias[0])"
        worse = recorded(tmp_path, "worse", **(parts | {"more": more}))
        folder = fixture_of(run_on_gpu(first, tmp_path / "first"), tmp_path / "fixture")

        answer = against(folder, run_on_gpu(worse, tmp_path / "drawn"))

        assert answer.status == 1
        assert any("syncs" in name for name in times_aside(answer))

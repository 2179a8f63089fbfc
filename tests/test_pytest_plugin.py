"""The pytest plugin: what a step costs, held against a budget in a test."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from collecting import WITH_TORCH, environment
from conftest import ROOT

from traceq.common import toml
from traceq.errors import ConfigError, UsageError
from traceq.testing.step import Checked, OverBudgetError, budgets_of, held

PLUGIN = "traceq.pytest_plugin"
TESTS = """
import pytest
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).sum()
    loss.backward()
    optimizer.step()
    return loss


def reading():
    return train().item()


@torch.compile(backend="eager")
def doubled(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def compiled():
    return doubled(torch.ones(4))


def large():
    return torch.zeros(1 << 20) + 1


def test_kept(traceq):
    budget = {"syncs": 0, "copies": 0, "casts": 0, "recompiles": 0, "peak_mib": 100}
    found = traceq.check(train, budget=budget)
    assert found.on == "cpu"
    assert found.numbers["syncs"] == 0
    assert found.numbers["ops"] > 4
    assert found.lint().report.outcomes[0].steps == 3


def test_sync(traceq):
    traceq.check(reading, budget={"syncs": 0})


def test_ops(traceq):
    traceq.check(train, budget={"ops": {"value": 4, "tolerance": 0.5}})


def test_peak(traceq):
    found = traceq.check(large, budget={"peak_mib": 9})
    assert 8 << 20 <= found.numbers["peak-bytes"] < (8 << 20) + 10_000
    traceq.check(large, budget={"peak_mib": 7})


def test_break_1(traceq):
    traceq.check(compiled, budget={"graph_breaks": 1, "recompiles": 0})


def test_break_2(traceq):
    traceq.check(compiled, budget={"graph_breaks": 0, "recompiles": 0})


def test_recompiled(traceq):
    sizes = iter(range(2, 1000))
    traceq.check(lambda: doubled(torch.ones(next(sizes))), budget={"recompiles": 0})


def test_launches(traceq):
    traceq.check(train, budget={"launches": 200, "syncs": 0})


def test_launches_with_cpu(traceq):
    traceq.check(train, budget={"launches": 200, "cpu": {"ops": 100}})


def test_cpu_table(traceq):
    traceq.check(train, budget={"syncs": 5, "cpu": {"ops": 1}})


def test_name(traceq):
    traceq.check(reading, budget="train")


def test_no_such_name(traceq):
    traceq.check(train, budget="serve")


def test_unknown(traceq):
    traceq.check(train, budget={"sync": 0})


def test_nothing(traceq):
    traceq.check(train, budget={})


def test_error(traceq):
    def broken():
        raise KeyError("mine")

    traceq.check(broken, budget={"syncs": 0})


def test_profiled(traceq):
    with torch.profiler.profile():
        traceq.check(train, budget={"syncs": 0})
"""
PROJECT = """
[tool.pytest.ini_options]
[tool.traceq.budget.train]
syncs = 0
"""


def in_project(test: Any) -> Any:  # noqa: ANN401 - a test
    """Mark a test that starts pytest in a project, with torch."""
    for mark in (*WITH_TORCH, pytest.mark.slow):
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of each test in a project of its own: its failure, or nothing."""
    project = tmp_path_factory.mktemp("project")
    (project / "test_step.py").write_text(TESTS)
    (project / "pyproject.toml").write_text(PROJECT)
    report = project / "report.xml"
    words = ["-q", "-p", "no:cacheprovider", f"--junit-xml={report}"]
    plugin = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": PLUGIN}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=project,
        env=environment(plugin),
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.is_file(), done.stderr
    return {
        case.get("name", ""): "".join(item.get("message", "") for item in case)
        for case in ET.parse(report).iter("testcase")  # noqa: S314 - our own
    }


def line(code: str) -> str:
    """Return where a line of the tests is."""
    return f"test_step.py:{TESTS.splitlines().index(code) + 1}"


@in_project
@pytest.mark.parametrize(
    "name", ["test_kept", "test_break_1", "test_launches_with_cpu"]
)
def test_a_step_within_its_budget_passes(name: str, outcomes: dict[str, str]) -> None:
    assert not outcomes[name]


@in_project
@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("test_sync", ("syncs 1, the budget is 0", "1 aten::item a step", "SYN001")),
        ("test_sync", (line("    return train().item()"), "keep values on the device")),
        ("test_ops", ("the budget is 4 ± 50%", "aten::sum a step", "LCH001")),
        ("test_peak", ("peak-bytes 8,3", "the budget is 7,340,032 (7.00 MiB)")),
        ("test_break_2", ("graph-breaks 1", line("    torch._dynamo.graph_break()"))),
        ("test_recompiled", ("recompiles", "size mismatch", "JIT002")),
        ("test_cpu_table", ("ops", "the budget is 1")),
        ("test_name", ("syncs 1, the budget is 0",)),
    ],
)
def test_a_step_over_its_budget_fails_with_what_where_and_what_instead(
    name: str, texts: tuple[str, ...], outcomes: dict[str, str]
) -> None:
    result = outcomes[name]

    assert "the step is over its budget (3 steps on the CPU)" in result
    assert {text: text in result for text in texts} == dict.fromkeys(texts, True)


@in_project
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("test_launches", "launches can be counted on a GPU only, and this step"),
        ("test_no_such_name", "there is no budget 'serve'"),
        ("test_unknown", "did you mean 'syncs'?"),
        ("test_nothing", "budget limits nothing"),
        ("test_error", "mine"),
        ("test_profiled", "torch's profiler is running already"),
    ],
)
def test_what_cannot_be_held_is_never_green(
    name: str, sentence: str, outcomes: dict[str, str]
) -> None:
    assert sentence in outcomes[name]
    assert "over its budget" not in outcomes[name]


RECORDED = ROOT / "fixtures" / "lines" / "optimizer_loop_sync"


def held_on_gpu(budget: dict[str, Any]) -> Checked:
    """Hold a step that was recorded on a GPU against a budget."""
    return held(RECORDED, budgets_of(budget, ROOT), 2, lambda: 0)


def test_on_a_gpu_findings_say_where_it_is_and_what_to_write() -> None:
    with pytest.raises(OverBudgetError) as caught:
        held_on_gpu({"syncs": 0, "launches": 10})

    text = str(caught.value)
    assert "(2 steps on a GPU)" in text
    assert "the budget is 0" in text
    assert "the budget is 10" in text
    assert "SYN001" in text
    assert "fix: " in text
    assert "at optimizer_loop_sync.py:30 step" in text


def test_on_a_gpu_what_is_within_its_budget_passes() -> None:
    budget = {"syncs": 1000, "launches": 100_000, "ops": 100_000, "cpu": {"ops": 0}}

    checked = held_on_gpu(budget)

    assert checked.on == "gpu"
    assert checked.numbers["launches"] > 100
    assert held_on_gpu({"peak_mib": 1 << 20}).numbers["peak-bytes"] > 0


def test_on_a_gpu_a_budget_for_cpus_alone_is_never_green() -> None:
    with pytest.raises(UsageError, match="without a GPU only"):
        held_on_gpu({"cpu": {"ops": 0}})


def test_what_was_not_recorded_is_never_green() -> None:
    with pytest.raises(OverBudgetError, match="slowdown was not recorded"):
        held_on_gpu({"slowdown": 1})


def test_pytest_finds_the_plugin() -> None:
    project = toml.read(ROOT / "pyproject.toml", ConfigError)

    assert project["project"]["entry-points"]["pytest11"] == {"traceq": PLUGIN}
    assert import_module(PLUGIN).traceq


@pytest.mark.slow
def test_pytest_starts_without_polars_and_torch() -> None:
    code = (
        f"import sys, pytest, {PLUGIN};"
        " print({'polars', 'torch', 'orjson', 'rich'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "set()"

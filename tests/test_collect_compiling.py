"""Programs that use torch.compile."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from collecting import LOOP, WITH_TORCH, Run, collect_program, environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH

COMPILES = """
LOOP
def compile_and_step(i):
    function = eval(f"lambda x: x * {i}")  # a code object of its own
    torch.compile(function, backend="eager")(torch.ones(2))
    step()
for i in range(STEPS):
    (compile_and_step if i in COMPILED else lambda _: step())(i)
"""


def compiles(steps: int, compiled: str) -> str:
    program = COMPILES.replace("LOOP", LOOP).replace("STEPS", str(steps))
    return program.replace("COMPILED", compiled)


@pytest.fixture(scope="module")
def compiling(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A program that compiles in its first 9 steps, and in one of those traced."""
    folder = tmp_path_factory.mktemp("compiling")
    return collect_program(folder, compiles(40, "(*range(9), 16)"))


def test_the_warm_up_lasts_while_the_program_compiles(compiling: Run) -> None:
    assert compiling.rank["warmup"] == {"steps": 12, "still_compiling": False}


def test_a_compilation_in_the_traced_steps_costs_the_stacks(compiling: Run) -> None:
    assert "compiled" in compiling.why_missing("stacks")
    assert not compiling.rank["trace"]["stacks"]
    events = compiling.events()
    assert not any(event.get("cat") == "python_function" for event in events)


def test_steps_traced_again_are_whole_ones(compiling: Run) -> None:
    names = [annotation["name"] for annotation in compiling.annotations()]
    assert [name for name in names if "Profiler" in name] == compiling.step_names()
    assert len(compiling.step_names()) == 2


def test_a_program_that_compiles_in_every_step_is_recorded_without_stacks(
    tmp_path: Path,
) -> None:
    run = collect_program(tmp_path, compiles(70, "range(70)"))
    assert run.rank["warmup"] == {"steps": 52, "still_compiling": True}
    assert "in every step" in run.why_missing("stacks")
    assert run.rank["trace"]["compiled_during_trace"]


COMPILED_MODEL = """
import torch, torch._dynamo.utils as utils
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
    def forward(self, x):
        for _ in range(20):
            x = self.inner(x).relu()
        return x
model = torch.compile(Model(), backend="eager", fullgraph=True)
BODY
print(dict(utils.counters["frames"]), dict(utils.counters["stats"]))
"""

TRAINING = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""

CALLS = """
with torch.no_grad():
    for _ in range(3000):
        model(torch.randn(4, 8))
"""


@pytest.mark.parametrize(
    ("body", "by", "of"),
    [(TRAINING, "optimizer", "SGD"), (CALLS, "forward", "Model")],
    ids=["training", "inference"],
)
def test_what_is_compiled_is_the_same_with_and_without_us(
    tmp_path: Path, body: str, by: str, of: str
) -> None:
    run = collect_program(tmp_path, COMPILED_MODEL.replace("BODY", body))
    alone = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.rank["state"] == "done"
    assert (run.rank["steps"]["by"], run.rank["steps"]["of"]) == (by, of)
    assert run.out == alone.stdout
    assert run.err.count("Warning") == alone.stderr.count("Warning")


LIMIT = (
    LOOP
    + """
@torch.compile(backend="eager")
def by(x, of):
    return x * len(of["n"])
for i in range(30):
    by(torch.ones(2), {"n": "x" * min(i, 12)})
    step()
"""
)


def test_recompilations_up_to_the_limit_are_kept(tmp_path: Path) -> None:
    run = collect_program(tmp_path, LIMIT)

    assert "recompile_limit" in run.err
    assert len(run.rank["compiled"]["recompiles"]) == 7


LOGGED = (
    LOOP
    + """
@torch.compile(backend="eager")
def by(x, n):
    torch._dynamo.graph_break()
    return x * n
for i in range(12):
    by(torch.ones(2), min(i, 1))
    step()
"""
)


def test_what_the_user_logs_is_shown_as_before_and_the_rest_only_kept(
    tmp_path: Path,
) -> None:
    run = collect_program(tmp_path, LOGGED, env={"TORCH_LOGS": "recompiles"})
    log = (run.folder / "stderr.log").read_text()

    assert run.err.count("Recompiling function") == log.count("Recompiling function")
    assert "Recompiling function" in log
    assert "Graph break in user code" in log
    assert "Graph break" not in run.err

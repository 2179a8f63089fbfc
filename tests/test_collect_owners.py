"""Owners of code in a run folder, with real torch: collect's packages decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from collecting import WITH_TORCH, Run, collect_program

import traceq
from traceq.formats.run import read_run
from traceq.linter import Rule
from traceq.model.finding import Place, Severity
from traceq.model.lint_report import RecordingReport, Report
from traceq.report.repository_paths import with_sources

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH

# Called as a library that traceq knows, but it lies in the program's repository.
OWN = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""
# Nobody knows this one, but it is installed.
INSTALLED = """
import torch

class Head(torch.nn.Module):
    def forward(self, x):
        return torch.sigmoid(x)
"""
PROGRAM = """
import sys
sys.path[:0] = ["src", "env/site-packages"]
import torch, timm, nobodys
net, head, weight = timm.Net(), nobodys.Head(), torch.ones(8, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)

def train():
    head(net(torch.randn(4, 8) * weight)).sum().backward()
    optimizer.step()

for _ in range(40):
    train()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("owners")
    (folder / ".git").mkdir()
    packages = {"src/timm": OWN, "env/site-packages/nobodys": INSTALLED}
    for name, text in packages.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(text)
    return collect_program(folder, PROGRAM)


def place(run: Run, op: str) -> tuple[str | None, ...]:
    ops = traceq.load(run.folder, cache=False).ops.filter(
        pl.col("name") == op, pl.col("phase") != "backward"
    )
    return ops.select(pl.col("file", "function", "via").cast(pl.String)).row(0)


def test_a_package_in_the_repository_is_own_whatever_it_is_called(
    recorded: Run,
) -> None:
    assert {"timm", "program"} <= {*recorded.rank["packages"]["own"]}
    assert place(recorded, "aten::relu") == ("timm/__init__.py", "forward", None)


def test_a_package_that_is_installed_is_a_library_whoever_wrote_it(
    recorded: Run,
) -> None:
    assert {"torch", "nobodys"} <= {*recorded.rank["packages"]["installed"]}
    result = place(recorded, "aten::sigmoid")
    assert result == ("program.py", "train", "forward (nobodys/__init__.py:5)")


def test_the_lines_of_a_place_come_from_the_copy_in_the_run_folder(
    recorded: Run,
) -> None:
    rank = read_run(recorded.folder).ranks[0]
    name = next(file for file in rank.sources if file.startswith("timm"))
    rule = type("Odd", (Rule,), {"code": "ABC001", "__doc__": "Odd."})()
    place = Place(name, 6, "forward", line_is="call")
    findings = (rule.finding("odd", subject="x", place=place),)
    outcome = RecordingReport("run", None, None, 1, 1, findings, (), 0, (), (), (), 1)

    report = with_sources(Report((outcome,), Severity.warning), {"run": rank.sources})

    frame = report.outcomes[0].findings[0].frame
    assert frame is not None
    assert frame.lines[frame.marked - frame.first].strip() == "return torch.relu(x)"


def test_names_of_packages_are_recorded_and_no_path(
    recorded: Run, tmp_path: Path
) -> None:
    names = [name for names in recorded.rank["packages"].values() for name in names]

    assert names
    assert not [name for name in names if "/" in name or str(tmp_path) in name]

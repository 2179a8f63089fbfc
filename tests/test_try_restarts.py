"""Remedies that need a restart: the program runs with and without them in turns."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from collecting import COLLECT, WITH_TORCH, environment
from test_schemas import errors

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [*WITH_TORCH, pytest.mark.slow]

# A batch takes 60 ms in the process itself, and is there in time with a worker.
PROGRAM = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, number):
        time.sleep(0.03)
        return torch.ones(4)

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for batch in DataLoader(Slow(), batch_size=2):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    time.sleep(0.065)
"""


def tried(folder: Path, *options: str) -> dict[str, Any]:
    (folder / "program.py").write_text(PROGRAM)
    words = ["--out", "out", "--name", "run", "--only", "dataloader", *options]
    command = [*words, "--", sys.executable, "program.py"]
    subprocess.run(
        [sys.executable, str(COLLECT), "try", *command],
        cwd=folder,
        env={**environment(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=1000,
    )
    document: dict[str, Any] = json.loads((folder / "out/run/try.json").read_text())
    return document


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return tried(tmp_path_factory.mktemp("loader"), "--minutes", "15")


def test_workers_are_measured_by_restarts(trial: dict[str, Any]) -> None:
    (remedy,) = trial["remedies"]

    assert remedy["outcome"] == "faster"
    assert remedy["n"] == 3
    assert remedy["ms"] == pytest.approx(-60, abs=25)


def test_a_control_is_restarted_as_often(trial: dict[str, Any]) -> None:
    assert trial["restart_control"]["n"] == 3


def test_the_trial_fits_its_schema(trial: dict[str, Any]) -> None:
    assert errors("try", trial) == []


def test_the_effect_of_a_restart_is_recorded(trial: dict[str, Any]) -> None:
    (remedy,) = trial["remedies"]

    assert remedy["proof"]["applied"]


def test_too_little_time_for_restarts_is_reported(tmp_path: Path) -> None:
    (remedy,) = tried(tmp_path, "--minutes", "0.8")["remedies"]

    assert remedy["outcome"] == "inconclusive"
    assert "runs of" in remedy["why"]

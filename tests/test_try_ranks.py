"""Jobs of several ranks under `collect try`: all switch at the same step."""

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

# Rank 1 is slower; its fused optimizer saves it 20 ms. Each rank notes when it is on.
PROGRAM = """
import os, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
data = torch.randn(16, 4)
log = open(f"steps-{rank}.txt", "w", buffering=1)
for number in range(10**6):
    optimizer.zero_grad()
    fused = bool(optimizer.param_groups[0]["fused"])
    print(number, int(fused), file=log)
    (model(data) ** 2).mean().backward()
    time.sleep(0.002 if rank == 0 or fused else 0.022)
    optimizer.step()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    (folder / "program.py").write_text(PROGRAM)
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program += ["--nproc-per-node=2"]
    options = ["--out", "out", "--name", "run", "--minutes", "2"]
    options += ["--only", "fused_optimizer", "--no-record"]
    subprocess.run(
        [sys.executable, str(COLLECT), "try", *options, "--", *program, "program.py"],
        cwd=folder,
        env={**environment(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return folder


def facts(job: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((job / "out/run/try.json").read_text())
    return document


def steps_with_remedy(job: Path, rank: int) -> list[str]:
    lines = (job / f"steps-{rank}.txt").read_text().splitlines()
    return [line.split()[0] for line in lines if line.endswith(" 1")]


def test_all_ranks_switch_at_the_same_steps(job: Path) -> None:
    first, second = (steps_with_remedy(job, rank) for rank in (0, 1))

    assert first
    assert first == second


def test_the_saving_of_the_slowest_rank_is_measured(job: Path) -> None:
    (remedy,) = facts(job)["remedies"]

    assert remedy["outcome"] == "faster"
    assert remedy["ms"] == pytest.approx(-20, abs=8)


def test_the_trial_of_a_job_fits_its_schema(job: Path) -> None:
    assert errors("try", facts(job)) == []


def test_each_block_has_the_times_of_all_ranks(job: Path) -> None:
    blocks = facts(job)["blocks"]

    assert blocks
    assert all(list(block["ranks"]) == ["1"] for block in blocks)
    assert all(block["median_ms"] >= block["ranks"]["1"] for block in blocks)

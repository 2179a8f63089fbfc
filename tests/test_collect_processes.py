"""Every process of a program: ranks record, workers do not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from collecting import LOOP, QUICK, WITH_TORCH, collect

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH

RANKS = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
LOOP
model = torch.nn.parallel.DistributedDataParallel(model)
while True:
    step()
print("left")
"""


def test_every_rank_of_torchrun_records_and_its_launcher_does_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "ranks.py").write_text(RANKS.replace("LOOP", LOOP))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node=2", "ranks.py"]
    run = collect(tmp_path, command, (*QUICK, "--then-exit"))
    assert run.status == 0, run.err
    assert "left" not in run.out
    ranks = run.facts["ranks"]
    assert [(rank["rank"], rank["world_size"]) for rank in ranks] == [(0, 2), (1, 2)]
    assert [rank["state"] for rank in ranks] == ["done", "done"]
    assert {"rank-0.trace.json.gz", "rank-1.trace.json.gz"} <= run.files
    assert not any(name.startswith("rank-0-") for name in run.files)


WORKERS = """
import sys
LOOP
class Twice(torch.nn.Module):
    def forward(self, x):
        return x * 2
class Data(torch.utils.data.Dataset):
    twice = Twice()
    def __len__(self):
        return 64
    def __getitem__(self, index):
        for _ in range(100):
            self.twice(torch.ones(8))
        return torch.ones(8)
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(
        Data(), batch_size=4, num_workers=1, multiprocessing_context=sys.argv[1]
    )
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_do_not_record(tmp_path: Path, method: str) -> None:
    (tmp_path / "workers.py").write_text(WORKERS.replace("LOOP", LOOP))
    run = collect(tmp_path, [sys.executable, "workers.py", method])
    assert run.status == 0, run.err
    assert run.rank["state"] == "done"
    assert run.rank["steps"]["by"] == "optimizer"

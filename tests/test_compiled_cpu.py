"""Lines of a program compiled for the CPU, recorded with real torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from collecting import WITH_TORCH, collect_program

import traceq

if TYPE_CHECKING:
    from traceq.model.trace import Trace

pytestmark = WITH_TORCH

_PROGRAM = """
import torch
from torch import nn
import torch.nn.functional as F

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x):
        h = F.gelu(self.up(x))
        return x + self.down(h)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
compiled = torch.compile(net)
for i in range(16):
    compiled(torch.randn(8, 16)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_UP, _DOWN, _LOSS = 13, 14, 24


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    run = collect_program(tmp_path_factory.mktemp("cpu"), _PROGRAM)
    return traceq.load(run.folder, cache=False)


def test_operators_have_the_lines_and_modules_of_the_program(trace: Trace) -> None:
    products = trace.ops.filter(
        pl.col("name").cast(pl.String).is_in(["aten::addmm", "aten::mm"]),
        pl.col("step") == trace.steps["step"][0],
    )
    columns = ("phase", "module", "function", "call_line")
    result = products.select(pl.col(columns).cast(pl.String)).rows()

    assert set(result) == {
        (phase, f"Net_0/Block_{block}/Linear_{2 * block + at}", "forward", str(line))
        for phase in ("forward", "backward")
        for block in (0, 1)
        for at, line in enumerate((_UP, _DOWN))
    }


def test_kernels_that_leave_no_event_are_known_by_the_ops_between(
    trace: Trace,
) -> None:
    fused = trace.fused.filter(
        pl.col("kernel").cast(pl.String).str.contains("^cpp_fused_(gelu|add)"),
        ~pl.col("kernel").cast(pl.String).str.contains("backward"),
    )
    table = fused.select(pl.col("computes", "module").cast(pl.String), "call_line")

    assert trace.fused["op"].null_count() == trace.fused.height > 0
    assert table.rows() == [
        ("gelu", "Net_0/Block_0", _UP),
        ("add", "Net_0/Block_0", _DOWN),
        ("gelu", "Net_0/Block_1", _UP),
        ("add", "Net_0/Block_1", _DOWN),
        ("square", "Net_0", _LOSS),
        ("mean", "Net_0", _LOSS),
    ]

"""Programs that traceq collect records on the CPU, as lint reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collecting import WITH_TORCH, collect_program
from command import traceq as command

from traceq import load

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH

SGD_BY_HAND = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
weights = list(model.parameters())
x, y = torch.randn(256, 64), torch.randn(256, 1)

for step in range(200_000):
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for weight in weights:
            weight -= 0.01 * weight.grad
            weight.grad = None
    if loss.item() < 0:  # ITEM
        break
"""
WINDOW = ("--steps-by", "time", "--warmup", "1", "--active", "1", "--then-exit")


def test_a_loop_that_nobody_counts_is_found_in_a_window_of_time(tmp_path: Path) -> None:
    run = collect_program(tmp_path, SGD_BY_HAND, (*WINDOW, "--no-overhead"))

    trace = load(run.folder, cache=False)

    assert trace.facts.steps_from == "what repeats"
    assert trace.steps.height > 10
    items = trace.ops.filter(trace.ops["name"] == "aten::item").drop_nulls("step")
    assert items.group_by("step").len()["len"].unique().to_list() == [1]
    line = SGD_BY_HAND.splitlines().index("    if loss.item() < 0:  # ITEM") + 1
    shown = " ".join(command("lint", run.folder).out.split())
    assert f"program.py:{line} <module>" in shown

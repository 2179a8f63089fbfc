"""MEM011: activations that the backward computes again, in programs under torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from collecting import WITH_TORCH
from linting import outcome
from on_gpu import on_gpu
from styles import ran

import traceq
from traceq.model.recording import Recording

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.linter import Finding

pytestmark = WITH_TORCH

GIB = 1 << 30
LAYERS = 3

PROGRAM = """
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x):
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x, call):
        for layer in self.layers:
            x = call(layer, x)
        return x.square().mean()


def plain(layer, x):
    return layer(x)


def reentrant(layer, x):
    return checkpoint(layer, x, use_reentrant=True)


def hooked(layer, x):
    return checkpoint(layer, x, use_reentrant=False)


net, x = Net(), torch.randn(32, 64, requires_grad=True)


def twice():
    (slope,) = torch.autograd.grad(net(x, plain), x, create_graph=True)
    slope.square().mean().backward()


for name, step in {
    "plain": lambda: net(x, plain).backward(),
    "reentrant": lambda: net(x, reentrant).backward(),
    "hooked": lambda: net(x, hooked).backward(),
    "twice": twice,
}.items():
    record(name, step, stacks=True, memory=True)
    record(name + "_no_stacks", step)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recomputation")
    ran(folder, PROGRAM)
    return folder


def found(folder: Path, name: str, memory: int = 140 * GIB) -> tuple[Finding, ...]:
    """Return the findings in a trace whose memory is that of a GPU of this size."""
    trace: dict[str, Any] = on_gpu(json.loads((folder / f"{name}.json").read_text()))
    for event in trace["traceEvents"]:
        if event["name"] == "[memory]":
            event["args"] |= {"Device Type": 1, "Device Id": 0}
    trace["deviceProperties"][0] |= {"totalGlobalMem": memory}
    file = folder / f"{name}.gpu.json"
    file.write_text(json.dumps(trace))
    loaded = traceq.load(file, cache=False)
    return outcome(Recording(name, loaded), "MEM011").findings


def number(finding: Finding, key: str) -> int:
    """Return a number of a finding's data."""
    value = finding.data[key]
    assert isinstance(value, int)
    return value


@pytest.mark.parametrize("stacks", ["", "_no_stacks"])
@pytest.mark.parametrize("name", ["reentrant", "hooked"])
def test_each_checkpointed_layer_is_a_region(
    recorded: Path, name: str, stacks: str
) -> None:
    (finding,) = found(recorded, name + stacks)

    assert finding.count == LAYERS


@pytest.mark.parametrize("name", ["plain", "twice", "twice_no_stacks"])
def test_gradients_of_gradients_are_no_recomputation(recorded: Path, name: str) -> None:
    assert not found(recorded, name)


@pytest.mark.parametrize("name", ["reentrant", "hooked"])
def test_what_the_regions_allocate_again_would_be_kept(
    recorded: Path, name: str
) -> None:
    (finding,) = found(recorded, name)

    # Of a layer: the norm and both statistics, 32 by 256 twice, 32 by 64.
    tensors = 4 * 32 * (64 + 2 + 256 + 256)
    assert tensors * LAYERS <= number(finding, "saved_bytes") < 1.5 * tensors * LAYERS


def test_the_caller_of_checkpoint_is_named(recorded: Path) -> None:
    (finding,) = found(recorded, "hooked")

    assert finding.place.function == "hooked"


def test_nothing_is_reported_where_memory_has_no_room(recorded: Path) -> None:
    (finding,) = found(recorded, "hooked")
    peak = number(finding, "peak_bytes")

    assert not found(recorded, "hooked", peak + peak // 10)


def test_it_is_minor_where_memory_was_not_recorded(recorded: Path) -> None:
    (finding,) = found(recorded, "hooked_no_stacks")

    assert (finding.severity, finding.data["saved_bytes"]) == ("info", None)

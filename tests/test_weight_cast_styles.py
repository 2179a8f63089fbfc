"""Weights that autocast casts, in programs of all styles, as torch's profiler records.

The table is pattern by style, as in test_styles: a weight of a linear layer, and one
that is multiplied, viewed or not (CPY006). What is no weight is an activation (CPY008).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from collecting import WITH_TORCH
from linting import outcome
from styles import WAYS, loaded, ran

from traceq.linter import View
from traceq.model.recording import Recording

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH

STYLES = (
    *("eager", "hooks", "functional", "checkpointed", "function", "regions"),
    *("inference", "called", "jacobian", "by_sample", "gradients"),
)
KINDS = ("Linear", "ByTranspose", "ByEinsum", "ByMatmul")
# Without a gradient nothing tells a matmul's weight from its input; that function of
# autograd asks for the gradient of its input alone.
_MATMULS = {"ByTranspose", "ByEinsum", "ByMatmul"}
GAPS = {"inference": _MATMULS, "function": _MATMULS}

PROGRAM = """
BATCH, TOKENS, WIDTH = 4, 8, 5


class Linear(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.last = nn.Linear(channels, WIDTH)

    def forward(self, x):
        return self.last(x).float().mean()


class ByTranspose(Linear):
    def forward(self, x):
        return (x @ self.last.weight.t()).float().mean()


class ByEinsum(Linear):
    def forward(self, x):
        return torch.einsum("btc,oc->bto", x, self.last.weight).float().mean()


class ByMatmul(Linear):
    def __init__(self, channels):
        super().__init__(channels)
        self.weight = nn.Parameter(torch.randn(channels, WIDTH))

    def forward(self, x):
        return torch.matmul(x, self.weight).float().mean()


def loss(result):
    return result


def function(model, x):
    Saved.apply(x.requires_grad_(), model).backward()


def of_weights(model):
    return lambda weights, x: torch.func.functional_call(model, weights, (x,))


def called(model, x):
    of_weights(model)(dict(model.named_parameters()), x).backward()


def jacobian(model, x):
    torch.func.jacrev(of_weights(model))(dict(model.named_parameters()), x)


def by_sample(model, x):
    gradient = torch.func.grad(lambda weights, x: of_weights(model)(weights, x[None]))
    torch.func.vmap(gradient, (None, 0))(dict(model.named_parameters()), x)


def gradients(model, x):
    torch.autograd.grad(model(x), [*model.parameters()], allow_unused=True)


def all_of(style):
    for at, kind in enumerate((Linear, ByTranspose, ByEinsum, ByMatmul)):
        model, x = kind(16 + 8 * at), torch.randn(BATCH, TOKENS, 16 + 8 * at)
        with torch.autocast("cpu", torch.bfloat16):
            style(model, x)


for name in STYLES:
    record(name, lambda: all_of(globals()[name]), stacks=True)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    ran(folder, f"{WAYS}\nSTYLES = {STYLES}\n{PROGRAM}")
    return folder


@pytest.mark.parametrize("style", STYLES)
def test_weights_that_autocast_casts_are_found_in_each_style(
    recorded: Path, style: str
) -> None:
    trace = loaded(recorded, style)
    copies = View(trace).copies

    casts = copies.filter(
        pl.col("part") == "weights",
        pl.col("origin").is_null(),
        # That of the input is of as many channels and of more rows.
        pl.col("dims").list.contains(5),
    )
    widths = {max(dims) for dims in casts["dims"]}

    missing = {kind for at, kind in enumerate(KINDS) if 16 + 8 * at not in widths}
    assert missing == GAPS.get(style, set())
    assert outcome(Recording(style, trace), "CPY006").findings


@pytest.mark.parametrize("style", ["eager", "functional", "jacobian", "gradients"])
def test_what_is_no_weight_is_an_activation_in_each_style(
    recorded: Path, style: str
) -> None:
    (finding,) = outcome(Recording(style, loaded(recorded, style)), "CPY008").findings

    assert finding.data["casts"] == len(KINDS)

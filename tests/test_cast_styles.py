"""Casts in programs of all styles, as the real profiler of torch records them.

The table is pattern by style, as in test_styles: logits in float32 for the loss
(LOS001), casts that are undone (CPY002) and norms with a weight of another dtype
(NRM001) or between casts (NRM003), in a model of 16 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from collecting import WITH_TORCH
from linting import outcome
from styles import WAYS, loaded, ran

from traceq.model.recording import Recording

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH

STYLES = (
    *("half", "hooks", "functional", "checkpointed", "function", "regions"),
    "inference",
)
CODES = ("LOS001", "CPY002", "NRM001", "NRM003")

PROGRAM = """
F = nn.functional
BATCH, TOKENS = 2, 8


class Logits(nn.Module):
    def __init__(self, vocabulary, channels):
        super().__init__()
        self.head = nn.Linear(channels, vocabulary, bias=False)
        self.targets = torch.randint(vocabulary, (BATCH * TOKENS,))

    def forward(self, x):
        return F.cross_entropy(self.head(x).float().flatten(0, 1), self.targets)


class ByModule(Logits):
    def forward(self, x):
        return nn.CrossEntropyLoss()(self.head(x).flatten(0, 1).float(), self.targets)


class Shifted(Logits):
    def forward(self, x):
        logits = self.head(x).float()[:, :-1].reshape(-1, self.head.out_features)
        return F.cross_entropy(logits, self.targets[: len(logits)])


class ByLogSoftmax(Logits):
    def forward(self, x):
        logits = self.head(x).flatten(0, 1).float()
        return F.nll_loss(F.log_softmax(logits, -1), self.targets)


class RoundTrip(nn.Module):
    def __init__(self, _, channels):
        super().__init__()
        self.last = nn.Linear(channels, channels)

    def scaled(self, x):
        y = x.float() * 2 + 1
        return self.last(y.to(x.dtype))

    def forward(self, x):
        return self.scaled(x).float().mean()


class ByType(RoundTrip):
    def scaled(self, x):
        return self.last(F.relu(x.to(torch.float32)).type_as(x))


class WideNorm(nn.Module):
    def __init__(self, _, channels):
        super().__init__()
        self.norm = nn.RMSNorm(channels)

    def _apply(self, change, recurse=True):
        return self

    def forward(self, x):
        return self.norm(x).float().mean()


class WideWeight(WideNorm):
    def forward(self, x):
        y = F.rms_norm(x, x.shape[-1:], self.norm.weight, 1e-6)
        return y.float().mean()


class NormInFloat(nn.Module):
    def __init__(self, _, channels):
        super().__init__()
        self.norm, self.last = nn.LayerNorm(channels), nn.Linear(channels, channels)

    def normed(self, x):
        weight, bias = self.norm.weight.float(), self.norm.bias.float()
        return F.layer_norm(x.float(), x.shape[-1:], weight, bias)

    def forward(self, x):
        return self.last(self.normed(x).to(x.dtype)).float().mean()


class InFloat(nn.LayerNorm):
    def _apply(self, change, recurse=True):
        return self

    def forward(self, x):
        return super().forward(x.to(torch.float32))


class NormOfModule(NormInFloat):
    def __init__(self, _, channels):
        super().__init__(_, channels)
        self.norm = InFloat(channels)

    def normed(self, x):
        return self.norm(x)


KINDS = [
    *(Logits, ByModule, Shifted, ByLogSoftmax, RoundTrip, ByType, WideNorm),
    *(WideWeight, NormInFloat, NormOfModule),
]
# Each has sizes of its own, by which it is told from the others.
SIZES = {kind: (10_000 + 8 * at, 16 + 8 * at) for at, kind in enumerate(KINDS)}


def loss(result):
    return result


half = eager


def function(model, x):
    Saved.apply(x, model).backward()


def all_of(style):
    for kind, sizes in SIZES.items():
        model = kind(*sizes).bfloat16()
        x = torch.randn(BATCH, TOKENS, sizes[1]).bfloat16().requires_grad_()
        style(model, x)


for name in "half hooks functional checkpointed function regions inference".split():
    style = globals()[name]
    record(name, lambda: all_of(style), stacks=True)
print(",".join(kind.__name__ for kind in KINDS))
"""


@pytest.fixture(scope="module")
def patterns(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("casts")
    return folder, ran(folder, WAYS + PROGRAM).strip().splitlines()[-1].split(",")


@pytest.mark.parametrize("style", STYLES)
def test_casts_are_found_in_each_style(
    patterns: tuple[Path, list[str]], style: str
) -> None:
    folder, kinds = patterns
    recording = Recording(style, loaded(folder, style))

    widths = {
        cast("list[int]", finding.data["dims"])[-1]
        for code in CODES
        for finding in outcome(recording, code).findings
    }

    sizes = {(10_000 + 8 * at, 16 + 8 * at): kind for at, kind in enumerate(kinds)}
    missing = {kind for both, kind in sizes.items() if not widths & {*both}}
    assert missing == set()

"""Patterns in programs of all styles, as the real profiler of torch records them.

The table is pattern by style: each way to write attention or a norm is run eagerly, in
16 bits, under autocast, with hooks, by torch.func, again in a checkpoint, and in a
function of autograd. Loops are programs of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from collecting import WITH_TORCH
from linting import mentions, outcome, rule_module
from styles import WAYS, loaded, ran

from traceq.analysis.patterns.attention_handwritten import handwritten_attention
from traceq.model.recording import Recording

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = WITH_TORCH

STYLES = (
    *("eager", "half", "autocast", "inference", "hooks", "functional"),
    *("checkpointed", "function", "regions"),
)
# Patterns that no style shows, and why.
GAPS = {
    "SquaresByEinsum": "the mean of squares is a matmul inside of einsum",
    "ByDeviation": "torch.std is not the root that F.layer_norm divides by",
    "Normalized": "without a weight it is a direction and no norm of a layer",
}

PATTERNS = """
# What autocast computes in float32 on a GPU, and not on a CPU.
LIBRARY = torch.library.Library("aten", "IMPL")


def in_float32(name, overload):
    op = getattr(getattr(torch.ops.aten, name), overload)

    def run(x, *args, **options):
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(x.float() if x.is_floating_point() else x, *args, **options)

    dotted = name if overload == "default" else f"{name}.{overload}"
    LIBRARY.impl(dotted, run, "AutocastCPU")


in_float32("exp", "default")
in_float32("pow", "Tensor_Scalar")
in_float32("rsqrt", "default")
in_float32("sum", "dim_IntList")
in_float32("softmax", "int")

BATCH, HEADS = 2, 4
F = nn.functional


class Pattern(nn.Module):
    def __init__(self, tokens, channels):
        super().__init__()
        self.tokens, self.channels = tokens, channels
        self.width = channels // HEADS
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mask", torch.ones(tokens, tokens).tril().bool())


class Attention(Pattern):
    def softmax(self, scores):
        return scores.softmax(-1)

    def masked(self, scores):
        return scores.masked_fill(~self.mask, float("-inf"))

    def heads(self, x):
        return x.view(BATCH, self.tokens, HEADS, self.width).transpose(1, 2)

    def attend(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / self.width**0.5
        return torch.dropout(self.softmax(self.masked(scores)), 0.1, True) @ v

    def forward(self, x):
        q, k, v = self.heads(x), self.heads(x * 2), self.heads(x + 1)
        y = self.attend(q, k, v)
        return y.transpose(1, 2).reshape(BATCH, self.tokens, self.channels)


class ByHand(Attention):
    def softmax(self, scores):
        e = torch.exp(scores - scores.max(-1, keepdim=True).values)
        return e / e.sum(-1, keepdim=True)


class ByEinsum(ByHand):
    def attend(self, q, k, v):
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
        weights = self.softmax(self.masked(scores) * self.width**-0.5)
        return torch.einsum("bhqk,bhkd->bhqd", weights, v)


class Turned(ByHand):
    def attend(self, q, k, v):
        scores = torch.einsum("bhkd,bhqd->bhqk", k, q * self.width**-0.5).float()
        weights = self.softmax(torch.where(self.mask, scores, -1e9)).to(v.dtype)
        return torch.einsum("bhkd,bhqk->bhqd", v, weights)


class Batched(ByHand):
    def attend(self, q, k, v):
        q, k, v = (one.reshape(-1, self.tokens, self.width) for one in (q, k, v))
        bias = torch.zeros(self.tokens, self.tokens, dtype=q.dtype)
        scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=self.width**-0.5)
        y = torch.bmm(self.softmax(self.masked(scores)), v)
        return y.view(BATCH, HEADS, self.tokens, self.width)


class Mapped(ByHand):
    def attend(self, q, k, v):
        def one(q, k, v):
            return self.softmax(self.masked(q @ k.t() * self.width**-0.5)) @ v

        return torch.vmap(torch.vmap(one))(q, k, v)


class Viewed(Attention):
    def attend(self, q, k, v):
        scores = (q @ k.transpose(-2, -1)) * self.width**-0.5
        weights = self.softmax(self.masked(scores.float())).to(v.dtype)
        weights = weights.view(-1, self.tokens, self.tokens)
        v = v.reshape(-1, self.tokens, self.width)
        return (weights @ v).view(BATCH, HEADS, self.tokens, self.width)


class ByLogarithms(Attention):
    def softmax(self, scores):
        return torch.exp(scores - scores.logsumexp(-1, keepdim=True))


class ByLogSoftmax(Attention):
    def softmax(self, scores):
        return scores.log_softmax(-1).exp()


class Rms(Pattern):
    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Upcast(Pattern):
    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-6)
        return y.to(x.dtype) * self.weight


class Divided(Pattern):
    def forward(self, x):
        return x / torch.sqrt(torch.mean(x**2, -1, keepdim=True) + 1e-6) * self.weight


class ByLength(Pattern):
    def forward(self, x):
        norm = torch.norm(x, dim=-1, keepdim=True) * self.channels**-0.5
        return x / norm.clamp(min=1e-8) * self.weight


class ByNormalize(Pattern):
    def forward(self, x):
        return F.normalize(x, dim=-1) * self.channels**0.5 * self.weight


class Normalized(Pattern):
    def forward(self, x):
        return F.normalize(x, dim=-1) * 20


class OfEach(Pattern):
    def forward(self, x):
        def one(x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

        return torch.vmap(torch.vmap(one))(x)


class SquaresByEinsum(Pattern):
    def forward(self, x):
        mean = torch.einsum("btc,btc->bt", x, x)[..., None] / self.channels
        return x * torch.rsqrt(mean + 1e-6) * self.weight


class Centred(Pattern):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias


class ByVariance(Pattern):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) * torch.rsqrt(variance + 1e-5) * self.weight + self.bias


class ByDeviation(Pattern):
    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.weight * (x - mean) / (std + 1e-6) + self.bias


class Images(Pattern):
    def forward(self, x):
        x = x.transpose(1, 2).reshape(BATCH, self.channels, 2, self.tokens // 2)
        x = self.norm(x, self.weight.view(1, -1, 1, 1))
        return x.flatten(2).transpose(1, 2)


class Channels(Images):
    def norm(self, x, g):
        return F.normalize(x, dim=1) * g * self.channels**0.5


class ChannelMeans(Images):
    def norm(self, x, g):
        return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6) * g


class ChannelVariances(Images):
    def norm(self, x, g):
        variance = torch.var(x, dim=1, unbiased=False, keepdim=True)
        return (x - x.mean(1, keepdim=True)) * (variance + 1e-5).rsqrt() * g


KINDS = [
    *(Attention, ByHand, ByEinsum, Turned, Batched, Mapped, Viewed, ByLogarithms),
    *(ByLogSoftmax, Rms, Upcast, Divided, ByLength, ByNormalize, Normalized, OfEach),
    *(SquaresByEinsum, Centred, ByVariance, ByDeviation, Channels, ChannelMeans),
    ChannelVariances,
]


class Layer(nn.Module):
    def __init__(self, kind, tokens, channels):
        super().__init__()
        self.first = nn.Linear(channels, channels)
        self.inner = kind(tokens, channels)
        self.last = nn.Linear(channels, channels)
        self.shape = BATCH, tokens, channels

    def forward(self, x):
        return self.last(self.inner(self.first(x)))


# Each has sizes of its own, by which it is told from the others.
SIZES = {kind: (16 + 2 * at, 64 + 8 * at) for at, kind in enumerate(KINDS)}


def loss(result):
    return result.float().square().mean()


def half(model, x):
    eager(model.bfloat16(), x.bfloat16())


def autocast(model, x):
    with torch.autocast("cpu", torch.bfloat16):
        result = loss(model(x))
    result.backward()


def function(model, x):
    model.last(Saved.apply(model.first(x), model.inner)).mean().backward()


def all_of(style):
    for kind, sizes in SIZES.items():
        model = Layer(kind, *sizes)
        style(model, torch.randn(model.shape))


for style in (
    *(eager, half, autocast, inference, hooks, functional, checkpointed, function),
    regions,
):
    record(style.__name__, lambda: all_of(style))
print(",".join(kind.__name__ for kind in KINDS))
"""


@pytest.fixture(scope="module")
def patterns(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("styles")
    return folder, ran(folder, WAYS + PATTERNS).strip().splitlines()[-1].split(",")


@pytest.mark.parametrize("style", STYLES)
def test_attention_and_norms_are_found_in_each_style(
    patterns: tuple[Path, list[str]], style: str
) -> None:
    folder, kinds = patterns
    trace = loaded(folder, style)
    handwritten_norms = rule_module("norm._handwritten").handwritten_norms

    scores = handwritten_attention(trace, trace.kernels)["scores"]
    norms = handwritten_norms(trace, trace.kernels)
    sizes = {(score[-1] - 16) // 2 for score in scores}
    sizes |= {
        (row["dims"][row["axis"]] - 64) // 8 for row in norms.iter_rows(named=True)
    }

    missing = {kind for at, kind in enumerate(kinds) if at not in sizes}
    assert missing == set(GAPS)


LOOPS = """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(32, 8)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
            for _ in range(8)
        )

    def forward(self, x):
        chosen = self.router(x).argmax(-1)
        x = x[chosen.argsort()]
        y, start = torch.zeros_like(x), 0
        for expert, count in zip(self.experts, chosen.bincount(minlength=8).tolist()):
            end = start + count
            if count:
                y[start:end] = expert(x[start:end])
            start = end
        return y


class Layers(Experts):
    def forward(self, x):
        y = torch.zeros(8, *x.shape)
        for number, layer in enumerate(self.experts):
            x = layer(x[:])
            y[number : number + 1] = x
        return y


def targets(x, k=4):
    t = torch.empty(x.shape[0], x.shape[1] - k, k)
    for i in range(x.shape[1] - k):
        t[:, i] = x[:, i : i + k]
    return t


def near(h, rows):
    return h[rows].mean(0)


def nodes(h, neighbours):
    return torch.stack([near(h, rows) for rows in neighbours])


def rows(h, neighbours):
    return torch.cat([h[rows] for rows in neighbours])


def parts(x, linear):
    return torch.cat([linear(part).relu() for part in x.split(2)])


def fold(tree, linear):
    if isinstance(tree, torch.Tensor):
        return linear(tree).tanh()
    return (fold(tree[0], linear) + fold(tree[1], linear)).tanh()


def tree(depth):
    return (tree(depth - 1), tree(depth - 1)) if depth else torch.randn(1, 16)


experts, layers, linear = Experts(), Layers(), nn.Linear(16, 16)
wide, forest = nn.Linear(32, 32), tree(5)
x, series, h = torch.randn(64, 32), torch.randn(8, 60), torch.randn(50, 16)
neighbours = [torch.randint(50, (3,)) for _ in range(50)]
record("experts", lambda: experts(x).mean().backward(), stacks=True)
record("layers", lambda: layers(x).mean().backward(), stacks=True)
record("targets", lambda: targets(series), stacks=True)


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, neighbours):
        return nodes(h, neighbours)


def reentrant(h):
    return torch.utils.checkpoint.checkpoint(nodes, h, neighbours, use_reentrant=True)


record("function", lambda: Function.apply(h, neighbours), stacks=True)
record("reentrant", lambda: reentrant(linear(h)).mean().backward(), stacks=True)
record("nodes", lambda: nodes(linear(h), neighbours).mean().backward(), stacks=True)
record("rows", lambda: rows(h, neighbours), stacks=True)
record("parts", lambda: parts(x, wide).mean().backward(), stacks=True)
record("fold", lambda: fold(forest, linear).mean().backward(), stacks=True)
"""


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loops")
    ran(folder, LOOPS)
    return folder


@pytest.mark.parametrize(
    ("name", "code", "facts"),
    [
        ("experts", "LCH001", ("8 experts",)),
        ("experts", "CPY004", ("[64,32]", 8)),
        ("targets", "CPY004", ("[8,56,4]", 56)),
        ("nodes", "LCH001", (50, 3)),
        ("rows", "LCH001", (50, 1)),
        ("function", "LCH001", (50,)),
        ("reentrant", "LCH001", (50,)),
        ("parts", "LCH001", (32, 2)),
        # Each call of a recursion has few ops, which wait for those of the calls below:
        # one batched call does not replace them. The host's time for them is reported.
        ("fold", "LCH002", ("waits for the host",)),
    ],
)
def test_a_loop_is_found(
    loops: Path, name: str, code: str, facts: tuple[object, ...]
) -> None:
    (finding,) = outcome(Recording(name, loaded(loops, name)), code).findings

    assert mentions(finding, *facts)


def test_a_recursion_over_a_tree_is_no_loop(loops: Path) -> None:
    recording = Recording("fold", loaded(loops, "fold"))

    assert not outcome(recording, "LCH001").findings


def test_layers_that_keep_their_results_are_no_experts(loops: Path) -> None:
    recording = Recording("layers", loaded(loops, "layers"))

    assert not outcome(recording, "LCH001").findings

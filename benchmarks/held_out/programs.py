"""Sick programs and their repaired twins, each timed plain and then traced.

    TEARDOWN_CUPTI=1 python benchmarks/held_out/programs.py FOLDER

needs a GPU and torch, and writes NAME.trace.json.gz and times.json into a folder.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

D = "cuda"
BF = torch.bfloat16


class Attention(nn.Module):
    def __init__(self, width, heads, length, how):
        super().__init__()
        self.heads, self.how = heads, how
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        if how in ("mask", "hand"):
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            self.register_buffer("mask", mask)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            p.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for p in self.qkv(x).chunk(3, -1)
        )
        if self.how == "causal":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif self.how == "mask":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask.bool())
        else:
            s = q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5
            s = s.masked_fill(~self.mask.bool(), float("-inf"))
            y = s.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads, length, how):
        super().__init__()
        self.attention = Attention(width, heads, length, how)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


class Language(nn.Module):
    def __init__(self, words, width, heads, layers, length, how):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(
            *(Block(width, heads, length, how) for _ in range(layers))
        )
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        return self.head(self.blocks(self.words(tokens)))


def trained(model, x, loss):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()

    return step


def squares(y):
    return y.float().square().mean()


def language(words, how, width=1024, heads=16, layers=4, batch=4, length=1024):
    model = Language(words, width, heads, layers, length, how).to(D, BF)
    tokens = torch.randint(min(words, 30000), (batch, length + 1), device=D)
    return trained(
        model,
        tokens[:, :-1],
        lambda y: F.cross_entropy(y.flatten(0, 1), tokens[:, 1:].flatten()),
    )


def blocks(how, width, heads, layers, batch, length):
    model = nn.Sequential(
        *(Block(width, heads, length, how) for _ in range(layers))
    ).to(D, BF)
    return trained(
        model, torch.randn(batch, length, width, device=D, dtype=BF), squares
    )


class Experts(nn.Module):
    def __init__(self, width, experts, fixed):
        super().__init__()
        self.fixed, self.experts = fixed, experts
        self.router = nn.Linear(width, experts)
        self.wide = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.02)
        self.narrow = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.02)

    def forward(self, x):
        weight, chosen = self.router(x).softmax(-1).max(-1)
        y = self.batched(x, chosen) if self.fixed else self.loop(x, chosen)
        return x + y * weight[:, None]

    def loop(self, x, chosen):
        y = torch.zeros_like(x)
        for expert in range(self.experts):
            (rows,) = torch.where(chosen == expert)
            y = y.index_add(
                0, rows, torch.relu(x[rows] @ self.wide[expert]) @ self.narrow[expert]
            )
        return y

    def batched(self, x, chosen):
        n, e = x.shape[0], self.experts
        capacity = 2 * n // e
        order = chosen.argsort(stable=True)
        expert = chosen[order]
        first = torch.searchsorted(expert, torch.arange(e, device=x.device))
        place = torch.arange(n, device=x.device) - first[expert]
        slot = torch.where(place < capacity, expert * capacity + place, e * capacity)
        slots = x.new_zeros(e * capacity + 1, x.shape[1]).index_copy(0, slot, x[order])
        hidden = torch.relu(torch.bmm(slots[:-1].view(e, capacity, -1), self.wide))
        out = torch.bmm(hidden, self.narrow).flatten(0, 1)
        out = torch.cat([out, out.new_zeros(1, x.shape[1])])
        return torch.zeros_like(x).index_copy(0, order, out[slot])


def experts(fixed, width=768, count=16, layers=3, tokens=2048):
    model = nn.Sequential(*(Experts(width, count, fixed) for _ in range(layers))).to(
        D, BF
    )
    return trained(model, torch.randn(tokens, width, device=D, dtype=BF), squares)


def deep(fixed, width=512, layers=40, batch=64):
    model = nn.Sequential(
        *(p for _ in range(layers) for p in (nn.Linear(width, width), nn.ReLU()))
    ).to(D)
    how = {"fused": True} if fixed else {"foreach": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **how)
    x = torch.randn(batch, width, device=D)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def float32(fixed):
    torch.backends.cuda.matmul.allow_tf32 = fixed
    return deep(True, width=4096, layers=6, batch=4096)


class Checked(nn.Module):
    def __init__(self, width, ask):
        super().__init__()
        self.ask, self.linear = ask, nn.Linear(width, width)

    def forward(self, x):
        y = self.linear(x).relu()
        if self.ask and y.abs().max().item() > 1e6:
            y = y.clamp(max=1e6)
        return y


def checked(ask, width=1024, layers=16, batch=2048):
    model = nn.Sequential(*(Checked(width, ask) for _ in range(layers))).to(D, BF)
    return trained(model, torch.randn(batch, width, device=D, dtype=BF), squares)


class Normed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.RMSNorm(width), nn.Linear(width, width, bias=False)

    def forward(self, x):
        return x + self.linear(self.norm(x))


def normed(fixed, width=1536, layers=6, tokens=6144):
    model = nn.Sequential(*(Normed(width) for _ in range(layers))).to(D)
    context = lambda: torch.autocast(D, dtype=BF)
    if fixed:
        model.to(BF)
        context = contextlib.nullcontext
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(tokens, width, device=D, dtype=BF)

    def step():
        optimizer.zero_grad()
        with context():
            y = model(x)
        y.float().square().mean().backward()
        optimizer.step()

    return step


class Copying(nn.Module):
    def __init__(self, width, fixed):
        super().__init__()
        self.fixed, self.linear = fixed, nn.Linear(width, width)

    def forward(self, x):
        if self.fixed:
            return self.linear(x).relu()
        y = self.linear(x.clone())
        y = y.t().contiguous().t().contiguous()
        return y.float().relu().to(x.dtype).clone()


def copying(fixed, width=1024, layers=8, batch=4096):
    model = nn.Sequential(*(Copying(width, fixed) for _ in range(layers))).to(D, BF)
    return trained(model, torch.randn(batch, width, device=D, dtype=BF), squares)


CASES = [
    (
        "mask_long",
        "mask_long_fixed",
        lambda f: blocks("causal" if f else "mask", 1024, 8, 3, 2, 4096),
    ),
    ("experts", "experts_fixed", experts),
    (
        "mask_and_vocab",
        "mask_and_vocab_fixed",
        lambda f: language(50304 if f else 50257, "causal" if f else "mask"),
    ),
    ("optimizer_deep", "optimizer_deep_fixed", deep),
    ("copying", "copying_fixed", copying),
    ("asked_every_layer", "asked_every_layer_fixed", lambda f: checked(not f)),
    (
        "hand_written",
        "hand_written_fixed",
        lambda f: blocks("causal" if f else "hand", 1024, 16, 4, 4, 1024),
    ),
    ("float32", "float32_fixed", float32),
    (
        "mask_tiny",
        "mask_tiny_fixed",
        lambda f: blocks("causal" if f else "mask", 256, 4, 12, 1, 128),
    ),
    ("norms", "norms_fixed", normed),
    ("vocab_only", "mask_and_vocab_fixed", lambda _: language(50257, "causal")),
]


def measured(path, make, is_fixed):
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    step = make(is_fixed)
    for _ in range(10):
        step()
    rounds = []
    for _ in range(3):
        torch.cuda.synchronize()
        t = time.perf_counter()
        for _ in range(15):
            step()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - t) / 15 * 1000)
    A = torch.profiler.ProfilerActivity
    with torch.profiler.profile(
        activities=[A.CPU, A.CUDA],
        record_shapes=True,
        with_stack=True,
        profile_memory=True,
        schedule=torch.profiler.schedule(wait=0, warmup=2, active=2, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
    ) as prof:
        for _ in range(4):
            step()
            prof.step()
    return rounds


def main(folder):
    torch.backends.cuda.enable_cudnn_sdp(False)
    times = {}
    for sick, fixed, make in CASES:
        for name, is_fixed in ((sick, False), (fixed, True)):
            if name in times:
                continue
            rounds = measured(folder / f"{name}.trace.json.gz", make, is_fixed)
            times[name] = {"ms": sorted(rounds)[1], "twin": None if is_fixed else fixed}
            (folder / "times.json").write_text(json.dumps(times, indent=1))
            print(name, [round(item, 3) for item in rounds], flush=True)
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

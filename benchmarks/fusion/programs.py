"""Programs whose GPU time is mostly memory traffic, eager and compiled.

    python benchmarks/fusion/programs.py NAME FOLDER

needs a GPU, torch, torchvision and transformers. It times alternating blocks of eager
and compiled steps, appends them to pairs.jsonl, and records both.
"""

from __future__ import annotations

import gzip
import json
import math
import shutil
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

D, BF = "cuda", torch.bfloat16
P = {}
RULE = "FUS001"
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True


def program(f):
    P[f.__name__] = f
    return f


def trains(model, loss, amp=False):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(fn):
        opt.zero_grad(set_to_none=True)
        with torch.autocast(D, BF, enabled=amp):
            value = fn()
        value.backward()
        opt.step()

    return step, loss


def infers(call):
    def step(fn):
        with torch.no_grad():
            fn()

    return step, call


# -- Programs that the constants were fitted on.
@program
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    c = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=4,
        attn_implementation="sdpa",
        use_cache=False,
    )
    m = LlamaForCausalLM(c).to(D, BF)
    x = torch.randint(32000, (8, 1024), device=D)
    return m, *trains(m, lambda m: m(input_ids=x, labels=x).loss)


@program
def resnet():
    import torchvision

    m = torchvision.models.resnet50().to(D, memory_format=torch.channels_last)
    x = torch.randn(64, 3, 224, 224, device=D).to(memory_format=torch.channels_last)
    y = torch.randint(1000, (64,), device=D)
    return m, *trains(m, lambda m: F.cross_entropy(m(x), y), amp=True)


@program
def bert():
    from transformers import BertConfig, BertForMaskedLM

    c = BertConfig(
        vocab_size=30528,
        hidden_size=768,
        num_hidden_layers=6,
        num_attention_heads=12,
        attn_implementation="sdpa",
    )
    m = BertForMaskedLM(c).to(D).train()
    x = torch.randint(30528, (32, 256), device=D)
    return m, *trains(m, lambda m: m(input_ids=x, labels=x).loss)


class Scan(nn.Module):
    """Mamba's block as mamba.py writes it: a scan of elementwise lines."""

    def __init__(s, d=512, n=16, r=32):
        super().__init__()
        e = 2 * d
        s.n, s.r = n, r
        s.norm = nn.Parameter(torch.ones(d))
        s.inp, s.out = nn.Linear(d, 2 * e, bias=False), nn.Linear(e, d, bias=False)
        s.conv = nn.Conv1d(e, e, 4, groups=e, padding=3)
        s.x, s.dt = nn.Linear(e, r + 2 * n, bias=False), nn.Linear(r, e)
        s.A = nn.Parameter(torch.log(torch.arange(1, n + 1).float().repeat(e, 1)))
        s.Dp = nn.Parameter(torch.ones(e))

    def forward(s, u):
        h = u * torch.rsqrt(u.pow(2).mean(-1, keepdim=True) + 1e-5) * s.norm
        x, z = s.inp(h).chunk(2, -1)
        L = x.shape[1]
        x = F.silu(s.conv(x.transpose(1, 2))[..., :L].transpose(1, 2))
        A = -torch.exp(s.A.float())
        dt, B, C = s.x(x).split([s.r, s.n, s.n], -1)
        dt = F.softplus(s.dt(dt))
        a = torch.exp(dt.unsqueeze(-1) * A)
        b = dt.unsqueeze(-1) * B.unsqueeze(2) * x.unsqueeze(-1)
        k = 1
        while k < L:  # Hillis-Steele
            a2, b2 = a[:, :-k], b[:, :-k]
            b = torch.cat([b[:, :k], b[:, k:] + a[:, k:] * b2], 1)
            a = torch.cat([a[:, :k], a[:, k:] * a2], 1)
            k *= 2
        y = (b * C.unsqueeze(2)).sum(-1) + s.Dp * x
        return u + s.out(y * F.silu(z))


@program
def mamba():
    m = nn.Sequential(*[Scan() for _ in range(2)]).to(D)
    x = torch.randn(4, 256, 512, device=D)
    return m, *trains(m, lambda m: m(x).pow(2).mean())


# -- Programs that were held out, but for the U-Net.
def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DiTBlock(nn.Module):
    def __init__(s, d=768, h=12):
        super().__init__()
        s.h = h
        s.n1, s.n2 = (
            nn.LayerNorm(d, elementwise_affine=False),
            nn.LayerNorm(d, elementwise_affine=False),
        )
        s.qkv, s.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        s.f1, s.f2, s.ada = (
            nn.Linear(d, 4 * d),
            nn.Linear(4 * d, d),
            nn.Linear(d, 6 * d),
        )

    def forward(s, x, c):
        a, b, g, a2, b2, g2 = s.ada(F.silu(c)).chunk(6, -1)
        B, N, C = x.shape
        q, k, v = (
            s.qkv(modulate(s.n1(x), a, b)).view(B, N, 3, s.h, -1).permute(2, 0, 3, 1, 4)
        )
        o = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C)
        x = x + g.unsqueeze(1) * s.proj(o)
        return x + g2.unsqueeze(1) * s.f2(
            F.gelu(s.f1(modulate(s.n2(x), a2, b2)), approximate="tanh")
        )


class DiT(nn.Module):
    def __init__(s, n=6):
        super().__init__()
        s.b = nn.ModuleList(DiTBlock() for _ in range(n))

    def forward(s, x, c):
        for b in s.b:
            x = b(x, c)
        return x


@program
def dit():
    m = DiT().to(D)
    x, c = torch.randn(32, 256, 768, device=D), torch.randn(32, 768, device=D)
    return m, *trains(m, lambda m: F.mse_loss(m(x, c).float(), x), amp=True)


@program
def dit_infer():
    m = DiT(8).to(D, BF).eval()
    x, c = (
        torch.randn(64, 256, 768, device=D, dtype=BF),
        torch.randn(64, 768, device=D, dtype=BF),
    )
    return m, *infers(lambda m: m(x, c))


@program
def convnext():
    import torchvision

    m = torchvision.models.convnext_tiny().to(D)
    x, y = torch.randn(64, 3, 224, 224, device=D), torch.randint(1000, (64,), device=D)
    return m, *trains(m, lambda m: F.cross_entropy(m(x), y), amp=True)


@program
def efficientnet():
    import torchvision

    m = (
        torchvision.models.efficientnet_b0()
        .to(D, memory_format=torch.channels_last)
        .train()
    )
    x = torch.randn(128, 3, 224, 224, device=D).to(memory_format=torch.channels_last)
    y = torch.randint(1000, (128,), device=D)
    return m, *trains(m, lambda m: F.cross_entropy(m(x), y), amp=True)


class Res(nn.Module):
    def __init__(s, c, t=512):
        super().__init__()
        s.n1, s.n2 = nn.GroupNorm(32, c), nn.GroupNorm(32, c)
        s.c1, s.c2, s.t = (
            nn.Conv2d(c, c, 3, padding=1),
            nn.Conv2d(c, c, 3, padding=1),
            nn.Linear(t, 2 * c),
        )

    def forward(s, x, t):
        h = s.c1(F.silu(s.n1(x)))
        a, b = s.t(F.silu(t))[:, :, None, None].chunk(2, 1)
        h = s.n2(h) * (1 + a) + b
        return x + s.c2(F.silu(h))


class UNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.i = nn.Conv2d(4, 192, 3, padding=1)
        s.d = nn.ModuleList(Res(192) for _ in range(3))
        s.down, s.up = nn.Conv2d(192, 384, 3, 2, 1), nn.Conv2d(384, 192, 1)
        s.m = nn.ModuleList(Res(384) for _ in range(3))
        s.o = nn.Conv2d(192, 4, 3, padding=1)

    def forward(s, x, t):
        x = s.i(x)
        for b in s.d:
            x = b(x, t)
        h = s.down(x)
        for b in s.m:
            h = b(h, t)
        return s.o(x + F.interpolate(s.up(h), scale_factor=2, mode="nearest"))


@program
def unet():
    m = UNet().to(D, memory_format=torch.channels_last)
    x, t = (
        torch.randn(16, 4, 64, 64, device=D).to(memory_format=torch.channels_last),
        torch.randn(16, 512, device=D),
    )
    return m, *trains(m, lambda m: F.mse_loss(m(x, t).float(), x), amp=True)


class T5Like(nn.Module):
    """Gated GELU by hand, RMSNorm by hand, rotary embeddings, dropout."""

    def __init__(s, d=1024, h=16):
        super().__init__()
        s.h = h
        s.w1, s.w2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        s.qkv, s.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        s.a, s.b, s.c = (
            nn.Linear(d, 2816, bias=False),
            nn.Linear(d, 2816, bias=False),
            nn.Linear(2816, d, bias=False),
        )
        s.drop = nn.Dropout(0.1)

    def norm(s, x, w):
        v = x.float().pow(2).mean(-1, keepdim=True)
        return w * (x * torch.rsqrt(v + 1e-6)).to(x.dtype)

    def rope(s, x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(s, x, cos, sin):
        B, N, C = x.shape
        q, k, v = s.qkv(s.norm(x, s.w1)).view(B, N, 3, s.h, -1).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(
            s.rope(q, cos, sin), s.rope(k, cos, sin), v, is_causal=True
        )
        x = x + s.drop(s.o(o.transpose(1, 2).reshape(B, N, C)))
        y = s.norm(x, s.w2)
        g = s.a(y)
        g = (
            0.5
            * g
            * (
                1.0
                + torch.tanh(
                    math.sqrt(2.0 / math.pi) * (g + 0.044715 * torch.pow(g, 3.0))
                )
            )
        )
        return x + s.drop(s.c(g * s.b(y)))


class Rotary(nn.Module):
    def __init__(s, n=4):
        super().__init__()
        s.b = nn.ModuleList(T5Like() for _ in range(n))

    def forward(s, x, cos, sin):
        for b in s.b:
            x = b(x, cos, sin)
        return x


@program
def rotary():
    m = Rotary().to(D, BF).train()
    x = torch.randn(8, 1024, 1024, device=D, dtype=BF)
    cos, sin = (
        torch.randn(1024, 64, device=D, dtype=BF),
        torch.randn(1024, 64, device=D, dtype=BF),
    )
    return m, *trains(m, lambda m: m(x, cos, sin).float().pow(2).mean())


class Vae(nn.Module):
    """A VQ-like autoencoder over sequences with losses by hand."""

    def __init__(s, d=512):
        super().__init__()
        s.e, s.mu, s.lv, s.d = (
            nn.Linear(256, d),
            nn.Linear(d, d),
            nn.Linear(d, d),
            nn.Linear(d, 256),
        )

    def forward(s, x):
        h = F.leaky_relu(s.e(x), 0.2)
        mu, lv = s.mu(h), s.lv(h).clamp(-8, 8)
        z = mu + torch.exp(0.5 * lv) * torch.randn_like(mu)
        p = torch.sigmoid(s.d(z))
        e = 1e-6
        rec = -(x * torch.log(p + e) + (1 - x) * torch.log(1 - p + e)).sum(-1).mean()
        kl = -0.5 * (1 + lv - mu.pow(2) - lv.exp()).sum(-1).mean()
        tv = (p[1:] - p[:-1]).abs().mean()
        return rec + kl + 0.1 * tv


@program
def vae():
    m = Vae().to(D)
    x = torch.rand(65536, 256, device=D)
    return m, *trains(m, lambda m: m(x))


@program
def hifigan():
    from torch.nn.utils.parametrizations import weight_norm as wn

    class R(nn.Module):
        def __init__(s, c, k):
            super().__init__()
            s.a = nn.ModuleList(
                wn(nn.Conv1d(c, c, k, dilation=d, padding=d * (k - 1) // 2))
                for d in (1, 3, 5)
            )
            s.b = nn.ModuleList(
                wn(nn.Conv1d(c, c, k, padding=(k - 1) // 2)) for _ in range(3)
            )

        def forward(s, x):
            for a, b in zip(s.a, s.b, strict=True):
                x = x + b(F.leaky_relu(a(F.leaky_relu(x, 0.1)), 0.1))
            return x

    class G(nn.Module):
        def __init__(s):
            super().__init__()
            s.i = wn(nn.Conv1d(80, 256, 7, padding=3))
            s.u = nn.ModuleList(
                [
                    wn(nn.ConvTranspose1d(256, 128, 16, 8, 4)),
                    wn(nn.ConvTranspose1d(128, 64, 16, 8, 4)),
                ]
            )
            s.r = nn.ModuleList([R(128, 3), R(128, 7), R(64, 3), R(64, 7)])
            s.o = wn(nn.Conv1d(64, 1, 7, padding=3))

        def forward(s, x):
            x = s.i(x)
            for n, u in enumerate(s.u):
                x = u(F.leaky_relu(x, 0.1))
                x = (s.r[2 * n](x) + s.r[2 * n + 1](x)) / 2
            return torch.tanh(s.o(F.leaky_relu(x, 0.1)))

    m = G().to(D)
    x, y = torch.randn(16, 80, 128, device=D), torch.randn(16, 1, 8192, device=D)
    return m, *trains(m, lambda m: (m(x) - y).abs().mean())


@program
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    c = GPT2Config(
        vocab_size=50304,
        n_layer=6,
        n_head=12,
        attn_implementation="sdpa",
        use_cache=False,
    )
    m = GPT2LMHeadModel(c).to(D).train()
    x = torch.randint(50304, (16, 512), device=D)
    return m, *trains(m, lambda m: m(input_ids=x, labels=x).loss, amp=True)


def build(name):
    torch.manual_seed(0)
    model, step, loss = P[name]()
    return model, step, (lambda: loss(model)), loss


def compiled(loss, model):
    # The loss is compiled with the model, as a training step is.
    return torch.compile(lambda: loss(model))


def timed(step, fn, n):
    torch.cuda.synchronize()
    t = time.perf_counter()
    for _ in range(n):
        step(fn)
    torch.cuda.synchronize()
    return (time.perf_counter() - t) / n * 1e3


def record(step, fn, path, stack):
    from torch.profiler import ProfilerActivity as A
    from torch.profiler import profile, schedule

    with profile(
        activities=[A.CPU, A.CUDA],
        record_shapes=True,
        with_stack=stack,
        schedule=schedule(wait=0, warmup=1, active=2, repeat=1),
    ) as p:
        for _ in range(3):
            step(fn)
            p.step()
        torch.cuda.synchronize()
    raw = path + ".json"
    p.export_chrome_trace(raw)
    with Path(raw).open("rb") as a, gzip.open(path + ".json.gz", "wb", 6) as b:
        shutil.copyfileobj(a, b)
    Path(raw).unlink()


def main():
    name, out = sys.argv[1:]
    model, step, eager, loss = build(name)
    for _ in range(3):
        step(eager)
    t = time.perf_counter()
    fn = compiled(loss, model)
    for _ in range(3):
        step(fn)
    torch.cuda.synchronize()
    took = time.perf_counter() - t
    n = max(3, min(40, int(250 / timed(step, eager, 3))))
    blocks = []
    for kind in "ABBAABBA":
        blocks.append((kind, round(timed(step, eager if kind == "A" else fn, n), 4)))
    a = [ms for k, ms in blocks if k == "A"]
    b = [ms for k, ms in blocks if k == "B"]
    with Path(out, "pairs.jsonl").open("a") as f:
        f.write(
            json.dumps(
                {
                    "program": name,
                    "eager_ms": a,
                    "compiled_ms": b,
                    "steps": n,
                    "compile_s": round(took, 1),
                    "torch": torch.__version__,
                    "device": torch.cuda.get_device_name(),
                }
            )
            + "\n"
        )
    print(
        name,
        [round(x, 2) for x in a],
        [round(x, 2) for x in b],
        f"compile {took:.0f} s",
        flush=True,
    )
    record(step, eager, f"{out}/{name}.eager", True)
    record(step, fn, f"{out}/{name}.compiled", False)


if __name__ == "__main__":
    main()

"""Follow the advice of rules that no pair of programs covers, on a GPU.

    python benchmarks/models/advice.py [CODE...]

needs torch and a GPU. For each rule a small piece of work is run as the rule finds it
and as it advises, in turns; what a step takes, or what is held of the memory, is
printed for both. The pages of the rules have these figures ("Measured").
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

D, BF = "cuda", torch.bfloat16
MIB = 1 << 20
TRIED = []


def tried(*codes):
    def keep(build):
        TRIED.append((codes, build))
        return build

    return keep


def timed(before, after, rounds=5, steps=10):
    """Return the ms that a step of each takes, at the median of rounds in turns."""
    times = ([], [])
    for step in (before, after):
        for _ in range(steps):
            step()
    for _ in range(rounds):
        for measured, step in zip(times, (before, after), strict=True):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(steps):
                step()
            torch.cuda.synchronize()
            measured.append((time.perf_counter() - began) * 1000 / steps)
    one, two = map(statistics.median, times)
    return f"{one:.3f} -> {two:.3f} ms"


def peak(step):
    """Return the MiB that a step allocates at its peak, beyond what is there before."""
    step()
    gc.collect()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    return (torch.cuda.max_memory_allocated() - held) / MIB


def peaks(before, after):
    return f"{peak(before):.0f} -> {peak(after):.0f} MiB at the peak"


def stack(layers=12, width=512, dtype=BF):
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers))
    ).to(D, dtype)


@tried("KRN001")
def scan_over_outer_dimension():
    mask = torch.randint(0, 2, (4096, 32), device=D)
    instead = mask.t().contiguous().cumsum(-1).t()
    assert torch.equal(mask.cumsum(0), instead)
    return timed(lambda: mask.cumsum(0), lambda: mask.t().contiguous().cumsum(-1).t())


@tried("CPY007")
def sent_ahead():
    model = stack(layers=6, width=2048)
    host = torch.randn(8192, 2048, dtype=BF).pin_memory()
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    ready = [host.to(D)]

    def before():
        model(host.to(D, non_blocking=True)).sum().backward()

    def after():
        with torch.cuda.stream(side):
            sent = host.to(D, non_blocking=True)
        model(ready.pop()).sum().backward()
        current.wait_stream(side)
        sent.record_stream(current)
        ready.append(sent)

    return timed(before, after)


@tried("KRN002")
def repeated_index():
    table = torch.randn(64, 128, device=D, dtype=BF, requires_grad=True)
    index = torch.randint(64, (65536,), device=D)
    rows = torch.randn(65536, 128, device=D, dtype=BF)
    return timed(
        lambda: table[index].backward(rows),
        lambda: F.embedding(index, table).backward(rows),
    )


@tried("KRN003")
def gather_in_16_bits():
    table = torch.randn(16, 256, device=D, dtype=BF, requires_grad=True)
    index = torch.randint(16, (16384, 1), device=D).expand(-1, 256)
    rows = torch.randn(16384, 256, device=D, dtype=BF)
    return timed(
        lambda: table.gather(0, index).backward(rows),
        lambda: table.float().gather(0, index).to(BF).backward(rows),
    )


@tried("KRN004")
def few_embeddings():
    table = torch.randn(32, 32, device=D, dtype=BF, requires_grad=True)
    index = torch.randint(32, (1 << 20,), device=D)
    rows = torch.randn(1 << 20, 32, device=D, dtype=BF)
    return timed(
        lambda: F.embedding(index, table).backward(rows),
        lambda: (F.one_hot(index, 32).to(BF) @ table).backward(rows),
    )


@tried("KRN005")
def depthwise_in_nchw():
    x = torch.randn(32, 96, 56, 56, device=D, dtype=BF, requires_grad=True)
    layer = nn.Conv2d(96, 96, 7, padding=3, groups=96).to(D, BF)
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    turned = nn.Conv2d(96, 96, 7, padding=3, groups=96).to(D, BF)
    turned = turned.to(memory_format=torch.channels_last)
    return timed(
        lambda: layer(x).backward(torch.ones_like(x)),
        lambda: turned(last).backward(torch.ones_like(last)),
    )


@tried("KRN006")
def tiny_matmuls():
    a, b = (torch.randn(262144, 3, 3, device=D, requires_grad=True) for _ in range(2))
    ones = torch.ones(262144, 3, 3, device=D)
    return timed(
        lambda: torch.bmm(a, b).backward(ones),
        lambda: (a.unsqueeze(-1) * b.unsqueeze(1)).sum(2).backward(ones),
    )


@tried("KRN007")
def softmax_along_the_first():
    x = torch.randn(262144, 8, device=D, requires_grad=True)
    ones = torch.ones(262144, 8, device=D)
    return timed(
        lambda: x.softmax(0).backward(ones),
        lambda: x.t().contiguous().softmax(-1).t().backward(ones),
    )


@tried("KRN009")
def tall_sum():
    x, ones = torch.randn(65536, 256, device=D), torch.ones(1, 65536, device=D)
    return timed(lambda: x.sum(0), lambda: (ones @ x).squeeze(0))


@tried("ATT004")
def repeated_heads():
    q = torch.randn(4, 32, 2048, 128, device=D, dtype=BF, requires_grad=True)
    k, v = (
        torch.randn(4, 8, 2048, 128, device=D, dtype=BF, requires_grad=True)
        for _ in range(2)
    )

    def before():
        many = [item.repeat_interleave(4, dim=1) for item in (k, v)]
        F.scaled_dot_product_attention(q, *many, is_causal=True).sum().backward()

    def after():
        F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        ).sum().backward()

    return timed(before, after)


@tried("SYN002")
def explicit_sync():
    model, x = stack(), torch.randn(64, 512, device=D, dtype=BF)

    def before():
        y = x
        for layer in model:
            y = layer(y)
            torch.cuda.synchronize()

    return timed(before, lambda: model(x))


@tried("HST002")
def garbage_collected():
    model, x = stack(), torch.randn(64, 512, device=D, dtype=BF)
    objects = [{"a": [number]} for number in range(1_500_000)]

    def step():
        more = [[number] for number in range(2_000)]
        model(x).sum()
        gc.collect(1)
        return more

    before = timed(step, step).split()[0]
    gc.freeze()
    after = timed(step, step).split()[0]
    gc.unfreeze()
    del objects
    return f"{before} -> {after} ms"


@tried("MEM001", "MEM005")
def emptied_cache():
    model, x = stack(), torch.randn(4096, 512, device=D, dtype=BF)

    def after():
        model(x).sum().backward()
        model.zero_grad()

    def before():
        after()
        torch.cuda.empty_cache()

    return timed(before, after)


@tried("MEM002")
def pinned_each_time():
    sizes = [(1 << 22) + 4096 * number for number in range(8)]
    batches = [torch.ones(size) for size in sizes]
    buffer = torch.empty(sizes[-1]).pin_memory()
    turn = iter(range(10**9))

    def before():
        batch = batches[next(turn) % 8].pin_memory()
        batch.to(D, non_blocking=True)
        torch.cuda.synchronize()

    def after():
        batch = batches[next(turn) % 8]
        own = buffer[: len(batch)].copy_(batch)
        own.to(D, non_blocking=True)
        torch.cuda.synchronize()

    return timed(before, after)


@tried("MEM003")
def kept_losses():
    model, x = stack(), torch.randn(4096, 512, device=D, dtype=BF)
    grown = []
    for keep in (lambda loss: loss, lambda loss: loss.item()):
        losses = []
        held = torch.cuda.memory_allocated()
        for _ in range(10):
            losses.append(keep(model(x).square().mean()))
        grown.append((torch.cuda.memory_allocated() - held) / 10 / MIB)
        del losses
    return f"grows by {grown[0]:.1f} -> {grown[1]:.1f} MiB a step"


def churned(settings):
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings(settings)
    tensors = []
    for number in range(40):
        a = torch.empty((20 + 3 * number) * MIB, dtype=torch.uint8, device=D)
        tensors.append(torch.empty(4 * MIB, dtype=torch.uint8, device=D))
        del a
    result = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    del tensors
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")
    return result / MIB


@tried("MEM004")
def reserved_and_unused():
    before = churned("expandable_segments:False")
    return f"{before:.0f} -> {churned('expandable_segments:True'):.0f} MiB unused"


@tried("MEM007")
def all_logits():
    x = torch.randn(8192, 768, device=D, dtype=BF, requires_grad=True)
    weight = torch.randn(50304, 768, device=D, dtype=BF, requires_grad=True)
    target = torch.randint(50304, (8192,), device=D)

    def part(rows, wanted):
        return F.cross_entropy((rows @ weight.T).float(), wanted, reduction="sum")

    def before():
        part(x, target).backward()
        x.grad = weight.grad = None

    def after():
        sum(
            checkpoint(part, rows, wanted, use_reentrant=False)
            for rows, wanted in zip(x.split(1024), target.split(1024), strict=True)
        ).backward()
        x.grad = weight.grad = None

    return f"{peaks(before, after)}, {timed(before, after, 3, 3)}"


@tried("MEM008")
def state_of_adam():
    held = []
    for kind in (torch.optim.AdamW, torch.optim.Adafactor):
        model = stack(8, 2048, torch.float32)
        optimizer = kind(model.parameters())
        model(torch.randn(8, 2048, device=D)).sum().backward()
        before = torch.cuda.memory_allocated()
        optimizer.step()
        held.append((torch.cuda.memory_allocated() - before) / MIB)
        del model, optimizer
        gc.collect()
    return f"{held[0]:.0f} -> {held[1]:.1f} MiB of state (Adafactor)"


@tried("MEM009")
def copies_of_weights():
    x = torch.randn(256, 2048, device=D)
    plain, small = stack(8, 2048, torch.float32), stack(8, 2048)

    def before():
        with torch.autocast(D, BF):
            y = plain(x)
        y.float().sum().backward()
        plain.zero_grad()

    def after():
        small(x.to(BF)).float().sum().backward()
        small.zero_grad()

    return f"{peaks(before, after)}, {timed(before, after)}"


class Broken(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.layers, self.broken = stack(), broken

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if self.broken:
                torch._dynamo.graph_break()
        return x


@tried("JIT003")
def broken_graph():
    x = torch.randn(64, 512, device=D, dtype=BF)
    with torch.no_grad():
        before, after = (
            torch.compile(Broken(broken).to(D, BF)) for broken in (True, False)
        )
        return timed(lambda: before(x), lambda: after(x))


@tried("JIT005")
def many_guards():
    x = torch.randn(64, 512, device=D, dtype=BF)
    model = stack(24)
    parts = [torch.compile(layer) for layer in model]
    whole = torch.compile(model)

    def before():
        y = x
        for part in parts:
            y = part(y)

    with torch.no_grad():
        result = timed(before, lambda: whole(x))

        def unguarded():
            with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
                whole(x)

        return f"{result}; without guards {timed(before, unguarded).split()[2]} ms"


@tried("JIT004")
def graph_in_part():
    x = torch.randn(64, 512, device=D, dtype=BF)
    model = stack()

    def work(x, scale):
        return model(x * scale)

    on_host, on_gpu = torch.tensor(2.0), torch.tensor(2.0, device=D, dtype=BF)
    before, after = (
        torch.compile(work, mode="reduce-overhead", dynamic=False) for _ in range(2)
    )
    with torch.no_grad():
        return timed(lambda: before(x, on_host), lambda: after(x, on_gpu))


@tried("JIT002")
def new_sizes():
    results = []
    for marked in (False, True):
        torch._dynamo.reset()
        sizes = None if marked else False
        step = torch.compile(lambda x: F.gelu(x).sum(-1), dynamic=sizes)
        times = []
        for number in range(5):
            x = torch.randn(64, 100 + number, device=D)
            if marked:
                torch._dynamo.mark_dynamic(x, 1)
            began = time.perf_counter()
            step(x)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) * 1000)
        results.append(statistics.median(times[1:]))
    return f"{results[0]:.1f} -> {results[1]:.3f} ms for a new size"


@tried("ATT005")
def triangle_as_a_tensor():
    q, k, v = (
        torch.randn(4, 16, 2048, 64, device=D, dtype=BF, requires_grad=True)
        for _ in range(3)
    )
    out = torch.randn_like(q)
    mask = torch.ones(2048, 2048, device=D, dtype=torch.bool).tril()
    attend = F.scaled_dot_product_attention
    return timed(
        lambda: attend(q, k, v, attn_mask=mask).backward(out),
        lambda: attend(q, k, v, is_causal=True).backward(out),
    )


@tried("GEM004")
def odd_vocabulary():
    x = torch.randn(8192, 768, device=D, dtype=BF, requires_grad=True)
    target = torch.randint(50257, (8192,), device=D)

    def built(rows):
        head = nn.Linear(768, rows, bias=False).to(D, BF)
        loss = torch.compile(lambda x: F.cross_entropy(head(x).float(), target))
        return lambda: loss(x).backward()

    return timed(built(50257), built(50304))


@tried("KRN008")
def one_of_many():
    x = torch.randn(4096, 2000, device=D)
    return timed(
        lambda: x.kthvalue(100).values,
        lambda: x.topk(100, largest=False).values[..., -1],
    )


@tried("HST004")
def collections_of_garbage():
    model, x = stack(20, 256, torch.float32), torch.randn(64, 256, device=D)
    results = []
    for frozen in (False, True):
        seen = [{"at": at, "value": [float(at)]} for at in range(150_000)]
        gc.collect()
        if frozen:
            gc.freeze()
            gc.disable()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(400):
            seen.extend({"at": at, "value": [float(at)]} for at in range(6_000))
            model(x).square().mean().backward()
            if len(seen) > 700_000:
                del seen[150_000:]
        torch.cuda.synchronize()
        results.append((time.perf_counter() - began) * 1000 / 400)
        gc.unfreeze()
        gc.enable()
    return f"{results[0]:.1f} -> {results[1]:.1f} ms"


def a_table():
    """Return a table's tensors, and a step of a small network by batches of it."""
    x, y = torch.randn(50_000, 64), torch.randn(50_000, 1)
    model = nn.Sequential(
        *(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU()),
        *(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 1)),
    ).to(D)
    optimizer = torch.optim.Adam(model.parameters())

    def by(batches):
        ahead = (batch for _ in range(10**9) for batch in batches())

        def step():
            rows, wanted = (item.to(D) for item in next(ahead))
            optimizer.zero_grad()
            F.mse_loss(model(rows), wanted).backward()
            optimizer.step()

        return step

    return x, y, by


@tried("DAT001")
def rows_of_a_table():
    x, y, by = a_table()
    data = TensorDataset(x, y)
    sampler = BatchSampler(RandomSampler(data), 256, drop_last=False)
    rows = DataLoader(data, batch_size=256, shuffle=True)
    whole = DataLoader(data, sampler=sampler, batch_size=None)
    return timed(by(lambda: rows), by(lambda: whole), steps=100)


@tried("DAT001")
def table_on_the_gpu():
    x, y, by = a_table()
    rows = DataLoader(TensorDataset(x, y), batch_size=256, shuffle=True)
    there, wanted = x.to(D), y.to(D)

    def batches():
        for picked in torch.randperm(len(there), device=D).split(256):
            yield there[picked], wanted[picked]

    return timed(by(lambda: rows), by(batches), steps=100)


@tried("HST005")
def drawn_on_the_host():
    model = stack(4)

    def before():
        model(torch.randn(512, 512).to(D, BF)).sum().backward()

    def after():
        model(torch.randn(512, 512, device=D).to(BF)).sum().backward()

    return timed(before, after)


@tried("HST005")
def picked_on_the_host():
    model = nn.Conv2d(3, 64, 16, 16).to(D)
    images = torch.rand(256, 3, 224, 224)
    on_gpu = images.to(D)

    def before():
        model(images[torch.randint(0, 256, (64,))].to(D)).sum().backward()

    def after():
        model(on_gpu[torch.randint(0, 256, (64,)).to(D)]).sum().backward()

    return timed(before, after)


@tried("LCH003")
def loop_of_sgd():
    results = []
    for options in ({"lr": 1e-3}, {"lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-4}):
        parameters = [nn.Parameter(torch.randn(256, device=D)) for _ in range(160)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        loop, foreach, fused = (
            torch.optim.SGD(parameters, **options, **kind).step
            for kind in ({"foreach": False}, {"foreach": True}, {"fused": True})
        )
        results.append(f"{timed(loop, foreach)}, fused {timed(loop, fused).split()[2]}")
    return "; with momentum and decay ".join(results)


_FRAGMENTS = """
import torch
whole = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction((8 << 30) / whole)
held = [torch.empty(6 << 20, dtype=torch.uint8, device="cuda") for _ in range(1200)]
held = held[::3]
try:
    torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
    print("fits")
except torch.OutOfMemoryError:
    print("fails")
"""


@tried("MEM010")
def fragments_under_a_limit():
    results = []
    for setting in ("False", "True"):
        settings = {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{setting}"}
        ran = subprocess.run(
            [sys.executable, "-c", _FRAGMENTS],
            env=os.environ | settings,
            capture_output=True,
            text=True,
            check=True,
        )
        results.append(ran.stdout.strip())
    return f"3 GiB {results[0]}, with expandable segments {results[1]}"


def main():
    for codes, build in TRIED:
        if not sys.argv[1:] or {*codes} & {*sys.argv[1:]}:
            try:
                result = build()
            except Exception as error:  # noqa: BLE001 - the others go on
                result = f"failed: {error!r:.200}"
            print(f"{' '.join(codes)} {build.__name__}: {result}", flush=True)
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

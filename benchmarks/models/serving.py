"""Record serving programs and their repaired twins, and time both without profiler.

    python benchmarks/models/serving.py OUT [--cpu]

needs torch, a GPU and, for the last part, transformers. Traces are in OUT; times and
the true phases of each iteration are in OUT/times.json. serving.json beside this
file has the times of 2026-11-16. Which rules they are for:

"SRV001" decode_eager → decode_graph, generate_dynamic → generate_static_compiled
"SRV002" host_gap → host_gap_overlapped
"SRV003" sync_item_graph → decode_graph
"SRV004" graph_32_for_20 → graph_24_for_20, graph_256_for_140 → graph_144_for_140
"SRV005" prefill_whole → prefill_chunked
"SRV006" capture_inside → decode_graph
"SRV007" cache_cat → cache_static
"SRV008" cache_padded → cache_bucketed
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import statistics
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

OUT = Path(sys.argv[1])
CPU = "--cpu" in sys.argv
DEV = "cpu" if CPU else "cuda"
DT = torch.float32 if CPU else torch.bfloat16
BEGUN = time.time()
BUDGET_S = 215
RESULT: dict[str, dict] = {}
NEW = 12  # tokens that a recording generates


def sync():
    if not CPU:
        torch.cuda.synchronize()


# --- the model -----------------------------------------------------------------------
@dataclass
class Config:
    hidden: int = 64 if CPU else 2048
    layers: int = 2 if CPU else 6
    heads: int = 4 if CPU else 16
    kv_heads: int = 4 if CPU else 16
    inter: int = 128 if CPU else 5632
    vocab: int = 256 if CPU else 32000

    @property
    def dim(self):
        return self.hidden // self.heads


CFG = Config()


class RMSNorm(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.qkv = nn.Linear(c.hidden, (c.heads + 2 * c.kv_heads) * c.dim, bias=False)
        self.out = nn.Linear(c.heads * c.dim, c.hidden, bias=False)

    def forward(self, x, rope, attend):
        c = self.c
        b, s, _ = x.shape
        q, k, v = self.qkv(x).split(
            [c.heads * c.dim, c.kv_heads * c.dim, c.kv_heads * c.dim], -1
        )
        q = rotate(q.view(b, s, c.heads, c.dim), rope).transpose(1, 2)
        k = rotate(k.view(b, s, c.kv_heads, c.dim), rope).transpose(1, 2)
        v = v.view(b, s, c.kv_heads, c.dim).transpose(1, 2)
        y = attend(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, s, -1))


def rotate(x, rope):
    cos, sin = rope
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_up = nn.Linear(c.hidden, 2 * c.inter, bias=False)
        self.down = nn.Linear(c.inter, c.hidden, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention_norm = RMSNorm(c.hidden)
        self.attention = Attention(c)
        self.mlp_norm = RMSNorm(c.hidden)
        self.mlp = MLP(c)

    def forward(self, x, rope, attend):
        x = x + self.attention(self.attention_norm(x), rope, attend)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(c.vocab, c.hidden)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.hidden)
        self.lm_head = nn.Linear(c.hidden, c.vocab, bias=False)
        inv = 10000.0 ** (-torch.arange(0, c.dim, 2) / c.dim)
        self.register_buffer("inv", inv, persistent=False)

    def forward(self, tokens, positions, cache, last=True):
        """Tokens [B, S], positions [B, S]."""
        angle = positions[..., None].float() * self.inv.float()
        angle = torch.cat((angle, angle), -1)[:, :, None]
        rope = angle.cos().to(DT), angle.sin().to(DT)
        x = self.embed(tokens)
        for layer, block in enumerate(self.blocks):
            x = block(x, rope, lambda q, k, v, n=layer: cache.attend(n, q, k, v))
        x = self.norm(x)
        return self.lm_head(x[:, -1:] if last else x)


def sdpa(q, k, v, **more):
    return F.scaled_dot_product_attention(q, k, v, **more)


# --- caches --------------------------------------------------------------------------
class StaticCache:
    """Room for ``length`` tokens; decode attends over all of it behind a mask."""

    def __init__(self, batch, length):
        c = CFG
        shape = (c.layers, batch, c.kv_heads, length, c.dim)
        self.k = torch.zeros(shape, device=DEV, dtype=DT)
        self.v = torch.zeros(shape, device=DEV, dtype=DT)
        self.positions = torch.arange(length, device=DEV)
        self.at = None
        self.mask = None

    def begin(self, position):
        """Position [1]: where the one new token of each request goes."""
        self.at = position
        self.mask = (self.positions <= position).view(1, 1, 1, -1)

    def attend(self, n, q, k, v):
        if q.shape[2] > 1:
            self.k[n, :, :, : q.shape[2]] = k
            self.v[n, :, :, : q.shape[2]] = v
            return sdpa(q, k, v, is_causal=True)
        self.k[n].index_copy_(2, self.at, k)
        self.v[n].index_copy_(2, self.at, v)
        return sdpa(q, self.k[n], self.v[n], attn_mask=self.mask)

    def reset(self):
        pass


class CatCache:
    """Keys and values that grow by one cat a token and layer."""

    def __init__(self, *_):
        self.reset()

    def begin(self, position):
        pass

    def attend(self, n, q, k, v):
        if n < len(self.k):
            self.k[n] = k = torch.cat((self.k[n], k), 2)
            self.v[n] = v = torch.cat((self.v[n], v), 2)
        else:
            self.k.append(k)
            self.v.append(v)
        return sdpa(q, k, v, is_causal=q.shape[2] > 1)

    def reset(self):
        self.k, self.v = [], []


# --- the loop ------------------------------------------------------------------------
class Generation:
    """Greedy generation for a batch of equal prompts."""

    def __init__(self, model, batch, prompt, cache, graph=False, graph_batch=None):
        self.model, self.batch, self.prompt, self.cache = model, batch, prompt, cache
        self.width = graph_batch or batch
        self.tokens = torch.zeros(self.width, 1, device=DEV, dtype=torch.long)
        self.position = torch.zeros(1, device=DEV, dtype=torch.long)
        self.prompts = torch.randint(0, CFG.vocab, (self.width, prompt), device=DEV)
        self.at = torch.arange(prompt, device=DEV)[None]
        self.graph = None
        self.use_graph = graph and not CPU

    def step(self):
        self.cache.begin(self.position)
        logits = self.model(self.tokens, self.position.view(1, 1), self.cache)
        self.tokens.copy_(logits[:, -1].argmax(-1, keepdim=True))
        self.position.add_(1)

    def capture(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def prefill(self):
        self.cache.reset()
        logits = self.model(self.prompts, self.at, self.cache)
        self.tokens.copy_(logits[:, -1].argmax(-1, keepdim=True))
        self.position.fill_(self.prompt)

    def decode(self):
        if not self.use_graph:
            return self.step()
        if self.graph is None:
            self.capture()
            self.position.fill_(self.prompt)
        return self.graph.replay()

    def truth(self, new, prefill=True):
        rows = []
        if prefill:
            rows.append(
                [
                    "prefill",
                    self.batch,
                    self.batch * self.prompt,
                    self.batch * self.prompt,
                ]
            )
        for n in range(new):
            rows.append(
                ["decode", self.batch, self.batch, self.batch * (self.prompt + n + 1)]
            )
        return rows


def mark(style, row):
    if not style:
        return contextlib.nullcontext()
    phase, requests, tokens, _ = row
    if style == "vllm":
        c, t, g, u = (0, 0, requests, tokens)
        if phase == "prefill":
            c, t, g, u = requests, tokens, 0, 0
        return record_function(f"execute_context_{c}({t})_generation_{g}({u})")
    if style == "sglang":
        if phase == "prefill":
            return record_function(f"step[EXTEND bs={requests} toks={tokens}]")
        return record_function(f"step[DECODE bs={requests}]")
    return record_function(f"{phase}[bs={requests} tok={tokens}]")


def schedule(waiting):
    """What a scheduler does in Python."""
    chosen = []
    for n in range(400):
        chosen.append((n * 7919) % 101)
    return sorted(chosen)[: len(waiting)]


def detokenize(ids, texts):
    """What a detokenizer does in Python."""
    for _ in range(40):
        for n, one in enumerate(ids):
            texts[n] = (texts[n] + chr(97 + one % 26))[-64:]
    return texts


def check_stop(ids, eos):
    return all(item == eos for item in ids)


def generate(g, new=NEW, style="", after=None, prefill=True):
    """The loop; ``after`` is what the host does with each token."""
    rows = g.truth(new, prefill)
    if prefill:
        with mark(style, rows[0]):
            g.prefill()
    else:
        g.position.fill_(g.prompt)
    for row in rows[-new:]:
        with mark(style, row):
            g.decode()
        if after and after(g):
            break


def after_item(g):
    return bool((g.tokens[: g.batch] == -1).all().item())


def after_engine(g):
    ids = g.tokens[: g.batch, 0].tolist()
    texts = detokenize(ids, [""] * len(ids))
    schedule(texts)
    return check_stop(ids, -1)


class Overlapped:
    """The host's work on the token before, while the GPU makes this one."""

    def __init__(self, g):
        self.host = [torch.empty(g.width, dtype=torch.long) for _ in range(2)]
        if not CPU:
            self.host = [item.pin_memory() for item in self.host]
        self.events = [torch.cuda.Event() for _ in range(2)] if not CPU else []
        self.n = 0

    def __call__(self, g):
        own = self.n % 2
        self.host[own].copy_(g.tokens[:, 0], non_blocking=True)
        if not CPU:
            self.events[own].record()
        if self.n:
            if not CPU:
                self.events[1 - own].synchronize()
            ids = self.host[1 - own][: g.batch].tolist()
            texts = detokenize(ids, [""] * len(ids))
            schedule(texts)
        self.n += 1
        return False


# --- recording -----------------------------------------------------------------------
def timed(run, repeats=7):
    times = []
    for _ in range(repeats):
        sync()
        begun = time.perf_counter()
        run()
        sync()
        times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times), times


def record(name, run, stacks=False):
    acts = [ProfilerActivity.CPU] + ([] if CPU else [ProfilerActivity.CUDA])
    sync()
    with profile(activities=acts, record_shapes=True, with_stack=stacks) as prof:
        run()
        sync()
    plain = OUT / f"{name}.trace.json"
    packed = OUT / f"{name}.trace.json.gz"
    prof.export_chrome_trace(str(plain))
    packed.write_bytes(gzip.compress(plain.read_bytes(), 6))
    plain.unlink()
    return packed.stat().st_size


def case(name, run, iterations, truth=None, stacks=False, warm=3, reps=7, **more):
    """Warm, time without profiler, record, note."""
    if time.time() - BEGUN > BUDGET_S:
        print("no time left for", name, flush=True)
        return
    try:
        for _ in range(warm):
            run()
        median, times = timed(run, reps)
        size = record(name, run, stacks)
        again, _ = timed(run, 3)
        RESULT[name] = {
            "ms": median,
            "ms_after": again,
            "ms_per_iteration": median / iterations,
            "all_ms": times,
            "iterations": iterations,
            "truth": truth,
            "gz_bytes": size,
            **more,
        }
        print(
            f"{name}: {median:.3f} ms, {size} B, {time.time() - BEGUN:.0f} s",
            flush=True,
        )
    except Exception as error:  # noqa: BLE001
        RESULT[name] = {"error": repr(error)}
        traceback.print_exc()
    (OUT / "times.json").write_text(json.dumps(RESULT, indent=1))
    gc.collect()


def looped(name, g, new=NEW, style="", after=None, prefill=True, **more):
    """A generation as a case, with the time of its prefill apart."""
    make = after if isinstance(after, type) else None

    def run():
        generate(g, new, style, make(g) if make else after, prefill)

    rows = g.truth(new, prefill)
    extra = {}
    if prefill:
        for _ in range(2):
            g.prefill()
        extra["prefill_ms"], _ = timed(g.prefill, 5)
    case(name, run, len(rows), rows, **extra, **more)
    if prefill and name in RESULT and "ms" in RESULT[name]:
        one = RESULT[name]
        one["decode_ms"] = (one["ms"] - one["prefill_ms"]) / new


# --- a small engine with continuous batching -----------------------------------------
class Engine:
    """``batch`` requests decode; one prompt of ``long`` tokens comes in between."""

    def __init__(self, model, batch, context, long, chunk, length):
        self.model, self.batch, self.long, self.chunk = model, batch, long, chunk
        self.context, self.length = context, length
        c = CFG
        shape = (c.layers, batch + 1, c.kv_heads, length, c.dim)
        self.k = torch.zeros(shape, device=DEV, dtype=DT)
        self.v = torch.zeros(shape, device=DEV, dtype=DT)
        self.prompt = torch.randint(0, c.vocab, (long,), device=DEV)
        self.range = torch.arange(length, device=DEV)
        self.rows = torch.arange(batch, device=DEV)
        self.ms = []

    def run(self, before=4, after=4, style="vllm", timing=False):
        tokens = torch.zeros(self.batch, device=DEV, dtype=torch.long)
        position = torch.full((self.batch,), self.context, device=DEV)
        done, n, left = 0, 0, after
        truth, self.ms = [], []
        while left:
            begun = time.perf_counter()
            take = 0
            if n >= before and done < self.long:
                take = min(self.chunk, self.long - done)
            elif n >= before:
                left -= 1
            name = (
                f"execute_context_{1 if take else 0}({take})"
                f"_generation_{self.batch}({self.batch})"
            )
            if style == "sglang":
                name = (
                    f"step[MIXED bs={self.batch + 1} toks={self.batch + take}]"
                    if take
                    else f"step[DECODE bs={self.batch}]"
                )
            with record_function(name) if style else contextlib.nullcontext():
                tokens = self.forward(tokens, position, done, take)
            tokens.tolist()
            position = position + 1
            truth.append(
                [
                    "mixed" if take else "decode",
                    self.batch + (1 if take else 0),
                    self.batch + take,
                    self.batch * (self.context + n + 1) + (done + take if take else 0),
                ]
            )
            done += take
            n += 1
            if timing:
                self.ms.append((time.perf_counter() - begun) * 1e3)
        return truth

    def forward(self, tokens, position, done, take):
        self.position, self.done, self.take = position, done, take
        if take:
            ids = torch.cat((tokens, self.prompt[done : done + take]))[None]
            at = torch.cat((position, self.range[done : done + take]))[None]
            self.causal = (
                self.range[None, : done + take] <= self.range[done : done + take, None]
            )
        else:
            ids, at = tokens[None], position[None]
        self.mask = (self.range[None] <= position[:, None])[:, None, None]
        logits = self.model(ids, at, self, last=False)
        return logits[0, : self.batch].argmax(-1)

    def attend(self, n, q, k, v):
        b, done, take = self.batch, self.done, self.take
        # Each decoding request is a row of one token.
        qd, kd, vd = (item[:, :, :b].transpose(0, 2) for item in (q, k, v))
        self.k[n][self.rows, :, self.position] = kd[:, :, 0]
        self.v[n][self.rows, :, self.position] = vd[:, :, 0]
        y = sdpa(qd, self.k[n, :b], self.v[n, :b], attn_mask=self.mask).transpose(0, 2)
        if not take:
            return y
        self.k[n, b, :, done : done + take] = k[0, :, b:]
        self.v[n, b, :, done : done + take] = v[0, :, b:]
        if done == 0:
            p = sdpa(q[:, :, b:], k[:, :, b:], v[:, :, b:], is_causal=True)
        else:
            p = sdpa(
                q[:, :, b:],
                self.k[n, b : b + 1, :, : done + take],
                self.v[n, b : b + 1, :, : done + take],
                attn_mask=self.causal[None, None],
            )
        return torch.cat((y, p), 2)


def engine(name, e, style="vllm", **more):
    truth = e.run(style=style)
    e.run(style=style)
    e.run(style=style, timing=True)
    ms = list(e.ms)
    case(
        name,
        lambda: e.run(style=style),
        len(truth),
        truth,
        ms_of_each=ms,
        **more,
    )


# --- transformers --------------------------------------------------------------------
def hf_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    c = CFG
    config = LlamaConfig(
        hidden_size=c.hidden,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        intermediate_size=c.inter,
        vocab_size=c.vocab,
        max_position_embeddings=4096,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device(DEV):
        return LlamaForCausalLM(config).to(DT).eval()


def hf_cases(new=8):
    model = hf_model()
    small, large = (4, 32) if CPU else (8, 256)
    ids = torch.randint(1, CFG.vocab, (small, large), device=DEV)
    ones = torch.ones_like(ids)
    truth = [["prefill", small, small * large, small * large]] + [
        ["decode", small, small, small * (large + n + 1)] for n in range(new - 1)
    ]

    def run(**more):
        model.generate(
            input_ids=ids,
            attention_mask=ones,
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            **more,
        )

    case("generate_dynamic", run, new, truth)
    case("generate_dynamic_stacks", run, new, truth, stacks=True, reps=3)

    def one():
        model.generate(
            input_ids=ids[:1],
            attention_mask=ones[:1],
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=True,
        )

    truth_one = [["prefill", 1, large, large]] + [
        ["decode", 1, 1, large + n + 1] for n in range(new - 1)
    ]
    case("generate_one_sampled", one, new, truth_one)
    case(
        "generate_static_eager",
        lambda: run(cache_implementation="static", disable_compile=True),
        new,
        truth,
    )
    if not CPU:
        case(
            "generate_static_compiled",
            lambda: run(cache_implementation="static"),
            new,
            truth,
            warm=4,
        )


# --- all -----------------------------------------------------------------------------
def section(what, *columns):
    try:
        with torch.inference_mode():
            what(*columns)
    except Exception as error:  # noqa: BLE001
        RESULT[f"section {what.__name__}"] = {"error": repr(error)}
        traceback.print_exc()
    gc.collect()


SMALL = 8
PROMPT = 32 if CPU else 256
LONG = 128 if CPU else 512


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    with torch.device(DEV):
        model = Llama(CFG).to(DT).eval()
    RESULT["_"] = {
        "torch": torch.__version__,
        "gpu": "" if CPU else torch.cuda.get_device_name(),
        "config": CFG.__dict__ | {"dim": CFG.dim},
        "weight_bytes_read": sum(
            p.numel() * p.element_size()
            for n, p in model.named_parameters()
            if not n.startswith("embed")
        ),
        "truth": "phase, requests, tokens, context (sum of KV lengths)",
    }
    for what in SECTIONS:
        section(what, model)


def eager_and_graph(model):
    # 1 Decode without graphs, with and without marks and stacks; its twin.
    g = Generation(model, SMALL, PROMPT, StaticCache(SMALL, LONG))
    looped("decode_eager", g)
    looped("decode_eager_vllm", g, style="vllm")
    looped("decode_eager_stacks", g, stacks=True, reps=3)
    g = Generation(model, SMALL, PROMPT, StaticCache(SMALL, LONG), graph=True)
    looped("decode_graph", g)
    looped("decode_graph_sglang", g, style="sglang")
    looped("decode_graph_atom", g, style="atom")
    # 2 A sync per token, on graphs and eager.
    looped("sync_item_graph", g, after=after_item)
    looped("sync_item_graph_vllm", g, style="vllm", after=after_item)
    g = Generation(model, SMALL, PROMPT, StaticCache(SMALL, LONG))
    looped("sync_item_eager", g, after=after_item)
    looped("sync_item_eager_stacks", g, after=after_item, stacks=True, reps=3)
    # 3 The host's work between iterations; its twin does it while the GPU works.
    g = Generation(model, SMALL, PROMPT, StaticCache(SMALL, LONG), graph=True)
    looped("host_gap", g, after=after_engine)
    looped("host_gap_vllm", g, style="vllm", after=after_engine)
    looped("host_gap_stacks", g, after=after_engine, stacks=True, reps=3)
    looped("host_gap_overlapped", g, after=Overlapped)
    looped("host_gap_overlapped_vllm", g, style="vllm", after=Overlapped)


def cat(model):
    # 4 The cache grown by cat; its twin writes in place.
    many, context = (8, 64) if CPU else (64, 1024)
    g = Generation(model, many, context, CatCache())
    looped("cache_cat", g, new=8)
    looped("cache_cat_vllm", g, new=8, style="vllm")
    del g
    g = Generation(model, many, context, StaticCache(many, context + 32))
    looped("cache_static", g, new=8)
    del g
    gc.collect()


def padded(model):
    # 5 A static cache far longer than the context.
    wide = 256 if CPU else 4096
    batch = 8 if CPU else 32
    g = Generation(model, batch, PROMPT + 44, StaticCache(batch, wide))
    looped("cache_padded", g, new=8)
    looped("cache_padded_vllm", g, new=8, style="vllm")
    g = Generation(model, batch, PROMPT + 44, StaticCache(batch, LONG))
    looped("cache_bucketed", g, new=8)
    if not CPU:
        g = Generation(model, batch, PROMPT + 44, StaticCache(batch, wide), graph=True)
        looped("cache_padded_graph", g, new=8)
        g = Generation(model, batch, PROMPT + 44, StaticCache(batch, LONG), graph=True)
        looped("cache_bucketed_graph", g, new=8)


def graph_width(model):
    # 6 Graphs wider than the batch: padded rows attend as well.
    if not CPU:
        for width, real, rows in (
            (32, 20, 1024),
            (24, 20, 1024),
            (20, 20, 1024),
            (256, 140, 128),
            (144, 140, 128),
        ):
            g = Generation(
                model, real, rows, StaticCache(width, rows + 32), True, width
            )
            g.prefill()
            looped(
                f"graph_{width}_for_{real}_vllm", g, new=8, style="vllm", prefill=False
            )

            def captured(g=g):
                g.graph = None
                g.position.fill_(g.prompt)
                g.capture()

            if width in (32, 24):
                size = record(f"graph_{width}_for_{real}.capture", captured)
                RESULT[f"graph_{width}_for_{real}.capture"] = {"gz_bytes": size}
            g.graph = None
            del g, captured
            gc.collect()


def long_prompt(model):
    # 7 A long prompt in a stream of decodes, whole and in chunks.
    b, ctx, tokens, chunk = (4, 32, 64, 16) if CPU else (16, 512, 8192, 1024)
    e = Engine(model, b, ctx, tokens, tokens, tokens + 64)
    engine("prefill_whole_vllm", e)
    engine("prefill_whole", e, style="")
    e.chunk = chunk
    engine("prefill_chunked_vllm", e)
    engine("prefill_chunked_sglang", e, style="sglang")
    del e
    gc.collect()


def capture_inside(model):
    # 8 A capture inside the window, its twin is decode_graph.
    if not CPU:
        g = Generation(model, SMALL, PROMPT, StaticCache(SMALL, LONG), graph=True)

        def with_capture(style=""):
            g.graph = None
            generate(g, NEW, style)

        case("capture_inside", with_capture, NEW + 1, g.truth(NEW))
        case(
            "capture_inside_vllm",
            lambda: with_capture("vllm"),
            NEW + 1,
            g.truth(NEW),
        )
        del g


def evaluation(model):
    # 9 A control: forward passes alone, of an evaluation.
    ids = torch.randint(0, CFG.vocab, (SMALL, PROMPT), device=DEV)
    at = torch.arange(PROMPT, device=DEV)[None]

    def evaluate():
        for _ in range(6):
            F.cross_entropy(
                model(ids, at, CatCache(), last=False).flatten(0, 1).float(),
                ids.flatten(),
            )

    case("control_evaluation", evaluate, 6, None)


SECTIONS = (
    eager_and_graph,
    cat,
    padded,
    graph_width,
    long_prompt,
    capture_inside,
    evaluation,
)
main()
gc.collect()
if not CPU:
    torch.cuda.empty_cache()
try:
    with torch.no_grad():
        hf_cases()
except Exception as error:  # noqa: BLE001
    RESULT["transformers"] = {"error": repr(error)}
    traceback.print_exc()
(OUT / "times.json").write_text(json.dumps(RESULT, indent=1))
print(f"done in {time.time() - BEGUN:.0f} s")

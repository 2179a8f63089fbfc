"""Models of transformers, torchvision and PyG with one illness each, and repaired.

    python collect --name NAME -- python benchmarks/models/programs.py NAME
    python benchmarks/models/programs.py NAME --fixed

need a GPU, torch, transformers, torchvision and torch_geometric. Each prints what a
step takes, timed over its last steps, when nothing is recorded any more.
"""

from __future__ import annotations

import argparse
import random
import time

import torch
from torch import nn
from torch.nn import functional as F

D, BF = "cuda", torch.bfloat16
PROGRAMS = {}


def program(build):
    PROGRAMS[build.__name__] = build
    return build


def trained(model, loss, *, lr=1e-4, fused=True, **more):
    """Return a step that trains: loss(model, number) is what it minimises."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=fused, **more)

    def step(number):
        optimizer.zero_grad(set_to_none=True)
        loss(model, number).backward()
        optimizer.step()

    return step


def tokens(words, batch, length):
    return torch.randint(words, (batch, length), device=D)


def language(model, words, batch, length, *, autocast=False, logits_as=None):
    """Return a step of a language model of transformers."""
    x = tokens(words, batch, length)

    def loss(model, _):
        with torch.autocast(D, BF, enabled=autocast):
            if logits_as is None:
                return model(input_ids=x, labels=x).loss
            logits = model(input_ids=x).logits[:, :-1]
            return F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())

    return trained(model, loss)


def gpt2(words=50304, attention="sdpa", layers=8, width=768):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=words,
        n_embd=width,
        n_layer=layers,
        n_head=width // 64,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        attn_implementation=attention,
        use_cache=False,
    )
    return GPT2LMHeadModel(config).to(D)


def llama(attention="sdpa", layers=8, width=1024, words=32000):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=width * 3,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        attn_implementation=attention,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(D, BF)


def fuse_norms(model, ending):
    """Let every norm of a model that was written in Python call the fused one."""
    for module in model.modules():
        if type(module).__name__.endswith(ending):
            eps = module.variance_epsilon
            module.forward = lambda x, m=module, e=eps: F.rms_norm(
                x, m.weight.shape, m.weight, e
            )
    return model


# -- GPU-bound -----------------------------------------------------------------------


@program
def gpt2_eager(fixed):
    """Attention as transformers writes it when asked for "eager"; SDPA."""
    model = gpt2(attention="sdpa" if fixed else "eager")
    return language(model, 50304, 8, 1024, autocast=True)


@program
def llama_eager(fixed):
    model = llama("sdpa" if fixed else "eager")
    return language(model, 32000, 8, 1024)


@program
def gpt2_vocabulary(fixed):
    """50257 words; 50304."""
    words = 50304 if fixed else 50257
    return language(gpt2(words, layers=4).to(BF), words, 8, 1024)


@program
def bert_float32(fixed):
    from transformers import BertConfig, BertForMaskedLM

    torch.set_float32_matmul_precision("high" if fixed else "highest")
    model = BertForMaskedLM(BertConfig(num_hidden_layers=6, vocab_size=30528)).to(D)
    return language(model, 30528, 16, 512)


@program
def vit_float32(fixed):
    from torchvision.models import vit_b_16

    torch.set_float32_matmul_precision("high" if fixed else "highest")
    x = torch.randn(48, 3, 224, 224, device=D)
    return trained(vit_b_16().to(D), lambda model, _: model(x).square().mean())


@program
def resnet_nchw(fixed):
    """Autocast and NCHW; channels_last."""
    from torchvision.models import resnet50

    kind = torch.channels_last if fixed else torch.contiguous_format
    model = resnet50().to(D, memory_format=kind)
    x = torch.randn(128, 3, 224, 224, device=D).to(memory_format=kind)

    def loss(model, _):
        with torch.autocast(D, BF):
            return model(x).float().square().mean()

    return trained(model, loss)


@program
def llama_norms(fixed):
    """RMSNorm as transformers writes it; torch's."""
    model = llama(layers=8, width=1536)
    if fixed:
        fuse_norms(model, "RMSNorm")
    return language(model, 32000, 8, 1024)


@program
def t5_norms(fixed):
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(
        T5Config(
            num_layers=4,
            d_model=768,
            d_ff=2048,
            num_heads=12,
            dropout_rate=0,
            decoder_start_token_id=0,
        )
    ).to(D, BF)
    if fixed:
        fuse_norms(model, "LayerNorm")
    x, y = tokens(32128, 16, 512), tokens(32128, 16, 128)
    return trained(model, lambda model, _: model(input_ids=x, labels=y).loss)


@program
def images_pageable(fixed):
    """Batches from pageable memory; pinned, without waiting."""
    from torchvision.models import resnet18

    batches = [torch.randn(256, 3, 224, 224) for _ in range(4)]
    if fixed:
        batches = [batch.pin_memory() for batch in batches]
    model = resnet18().to(D, memory_format=torch.channels_last)

    def loss(model, number):
        x = batches[number % 4].to(D, non_blocking=fixed)
        with torch.autocast(D, BF):
            y = model(x.to(memory_format=torch.channels_last))
        return y.float().square().mean()

    return trained(model, loss)


@program
def encoder_padding_mask(fixed):
    """A padding mask of batches that have no padding; none."""
    layer = nn.TransformerEncoderLayer(1024, 16, 2048, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 6).to(D, BF)
    x = torch.randn(8, 1024, 1024, device=D, dtype=BF)
    nothing = torch.zeros(8, 1024, dtype=torch.bool, device=D)

    def loss(model, _):
        mask = None if fixed else nothing
        return model(x, src_key_padding_mask=mask).float().square().mean()

    return trained(model, loss)


class CourseAttention(nn.Module):
    """Attention as a course writes it: einsum, and the softmax step by step."""

    def __init__(self, width, heads, fixed):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.o = nn.Linear(width, width, bias=False)
        self.heads, self.fixed = heads, fixed

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            item(x).view(b, t, self.heads, -1).transpose(1, 2)
            for item in (self.q, self.k, self.v)
        )
        if self.fixed:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = self.attend(q, k, v)
        return self.o(y.transpose(1, 2).reshape(b, t, c))

    def attend(self, q, k, v):
        t = q.shape[-2]
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
        causal = torch.tril(torch.ones(t, t, dtype=torch.bool, device=q.device))
        scores = torch.where(causal, scores, float("-inf"))
        scores = scores - scores.max(dim=-1, keepdim=True).values
        weights = torch.exp(scores)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return torch.einsum("bhqk,bhkd->bhqd", weights, v)


class CourseBlock(nn.Module):
    def __init__(self, width, fixed):
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = CourseAttention(width, width // 64, fixed)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


@program
def course_attention(fixed):
    model = nn.Sequential(
        nn.Embedding(10048, 768),
        *(CourseBlock(768, fixed) for _ in range(6)),
        nn.Linear(768, 10048),
    ).to(D, BF)
    x = tokens(10048, 8, 1024)
    return trained(
        model, lambda model, _: F.cross_entropy(model(x).flatten(0, 1), x.flatten())
    )


@program
def gpt2_float32_logits(fixed):
    """The loss of transformers casts logits to float32; bfloat16 logits."""
    model = gpt2(layers=4).to(BF)
    return language(model, 50304, 8, 1024, logits_as=BF if fixed else None)


# -- host-bound ----------------------------------------------------------------------


@program
def resnet_optimizer(fixed):
    """AdamW parameter by parameter; fused."""
    from torchvision.models import resnet50

    model = resnet50().to(D)
    x = torch.randn(8, 3, 128, 128, device=D)
    more = dict(fused=True) if fixed else dict(fused=False, foreach=False)
    return trained(model, lambda model, _: model(x).square().mean(), **more)


@program
def llama_small_norms(fixed):
    model = llama(layers=12, width=256, words=4096)
    if fixed:
        fuse_norms(model, "RMSNorm")
    return language(model, 4096, 2, 128)


@program
def mixtral_experts(fixed):
    """Experts in a loop; one grouped matmul."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        num_local_experts=16,
        use_cache=False,
        experts_implementation="grouped_mm" if fixed else "eager",
    )
    model = MixtralForCausalLM(config).to(D, BF)

    def loss(model, _):
        x = tokens(8192, 4, 512)
        return model(input_ids=x, labels=x).loss

    return trained(model, loss)


@program
def bert_lengths(fixed):
    """Batches as long as their longest text; rounded up to 64."""
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(num_hidden_layers=6, vocab_size=8192)).to(D, BF)
    lengths = random.Random(1)

    def loss(model, _):
        length = lengths.randint(100, 500)
        if fixed:
            length += -length % 64
        x = tokens(8192, 8, length)
        return model(input_ids=x, labels=x).loss

    return trained(model, loss)


@program
def gradient_norms_logged(fixed):
    """The norm of every gradient, asked for one by one; all at once."""
    model = gpt2(4096, layers=6, width=256)
    x = tokens(4096, 4, 128)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    seen = {}

    def step(_):
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=x, labels=x).loss.backward()
        named = [(name, p.grad) for name, p in model.named_parameters()]
        if fixed:
            norms = torch.stack(torch._foreach_norm([grad for _, grad in named]))
            seen.update(zip((name for name, _ in named), norms.tolist(), strict=True))
        else:
            for name, grad in named:
                seen[name] = grad.norm().item()
        optimizer.step()

    return step


@program
def llama_small_compiled(fixed):
    """A small model as it is; compiled, with CUDA graphs."""
    model = llama(layers=8, width=384, words=4096)
    if fixed:
        model = torch.compile(model, mode="reduce-overhead")
    return language(model, 4096, 2, 128)


@program
def lstm_cells(fixed):
    """An LSTM cell in a loop over time; nn.LSTM."""
    cell, whole = nn.LSTMCell(256, 256).to(D), nn.LSTM(256, 256).to(D)
    model = nn.ModuleDict({"rnn": whole if fixed else cell, "head": nn.Linear(256, 64)})
    x = torch.randn(64, 32, 256, device=D)

    def loss(model, _):
        if fixed:
            y = model["rnn"](x)[0]
        else:
            h = c = torch.zeros(32, 256, device=D)
            states = []
            for item in x:
                h, c = model["rnn"](item, (h, c))
                states.append(h)
            y = torch.stack(states)
        return model["head"](y).square().mean()

    return trained(model.to(D), loss)


@program
def graphs_pooled(fixed):
    """Pooling over graphs asks the GPU how many there are; told."""
    from torch_geometric.nn import GINConv, global_add_pool

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(
                GINConv(nn.Sequential(nn.Linear(128, 128), nn.ReLU())) for _ in range(8)
            )
            self.heads = nn.ModuleList(nn.Linear(128, 16) for _ in range(8))

        def forward(self, x, edges, batch):
            size, total = 64 if fixed else None, 0
            for conv, head in zip(self.convs, self.heads, strict=True):
                x = conv(x, edges)
                total = total + head(global_add_pool(x, batch, size))
            return total

    x = torch.randn(64 * 30, 128, device=D)
    edges = torch.randint(64 * 30, (2, 64 * 120), device=D)
    batch = torch.arange(64, device=D).repeat_interleave(30)
    return trained(Net().to(D), lambda model, _: model(x, edges, batch).square().mean())


def spans_of(lengths):
    """Return which positions are masked, as lists."""
    mask = []
    for length in lengths:
        row = []
        for place in range(256):
            row.append(place < length and place % 7 == 0)
        mask.append(row)
    return mask


@program
def python_spans(fixed):
    """A mask made of Python lists; of comparisons on the GPU."""
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(
        BertConfig(
            num_hidden_layers=3,
            hidden_size=256,
            num_attention_heads=4,
            intermediate_size=512,
            vocab_size=4096,
        )
    ).to(D, BF)
    x, places = tokens(4096, 32, 256), torch.arange(256, device=D)
    lengths = random.Random(2)

    def loss(model, _):
        spans = [lengths.randint(100, 256) for _ in range(32)]
        if fixed:
            ends = torch.tensor(spans).pin_memory().to(D, non_blocking=True)
            mask = (places < ends[:, None]) & (places % 7 == 0)
        else:
            mask = torch.tensor(spans_of(spans), device=D)
        return model(input_ids=x.masked_fill(mask, 3), labels=x).loss

    return trained(model, loss)


@program
def mobilenet_sizes(fixed):
    """Images of any size; rounded up to 32."""
    from torchvision.models import mobilenet_v3_small

    model = mobilenet_v3_small().to(D)
    sizes = random.Random(3)

    def loss(model, _):
        side = sizes.randint(160, 320)
        if fixed:
            side += -side % 32
        return model(torch.randn(16, 3, side, side, device=D)).square().mean()

    return trained(model, loss)


@program
def averaged_weights(fixed):
    """A moving average of all weights, one by one; of all at once."""
    from torchvision.models import vit_b_16

    model = vit_b_16(image_size=96).to(D, BF)
    own = list(model.parameters())
    average = [p.detach().clone() for p in own]
    x = torch.randn(8, 3, 96, 96, device=D, dtype=BF)
    inner = trained(model, lambda model, _: model(x).float().square().mean())

    @torch.no_grad()
    def step(number):
        with torch.enable_grad():
            inner(number)
        if fixed:
            torch._foreach_lerp_(average, own, 0.01)
        else:
            for weight, p in zip(average, own, strict=True):
                weight.mul_(0.99)
                weight.add_(p, alpha=0.01)

    return step


class Photos(torch.utils.data.Dataset):
    """Images that are decoded and resized on the host, as real ones are."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        from torchvision.transforms import v2

        image = torch.full((3, 400, 400), index % 255, dtype=torch.uint8)
        image = v2.functional.resize(image, [256, 256], antialias=True)
        image = v2.functional.gaussian_blur(image, [5, 5])
        return v2.functional.center_crop(image, [224, 224])


@program
def loader_alone(fixed):
    """Loading in the main process; in 8 workers."""
    from torchvision.models import resnet18

    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(
        Photos(), 32, num_workers=8 if fixed else 0, pin_memory=True
    )
    batches = iter(loader)

    def loss(model, _):
        x = next(batches).to(D, non_blocking=True).float().div(255)
        return model(x).square().mean()

    return trained(resnet18().to(D), loss)


@program
def slices_copied(fixed):
    """Sequences of different length copied into a batch, one by one; by one index."""
    lengths = random.Random(4)
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(256, 4, 512, 0.0, batch_first=True), 2
    ).to(D, BF)
    words = nn.Embedding(4096, 256).to(D, BF)
    model = nn.ModuleDict({"words": words, "encoder": model})

    def loss(model, _):
        sizes = [lengths.randint(16, 64) for _ in range(128)]
        packed = model["words"](torch.randint(4096, (sum(sizes),), device=D))
        batch = packed.new_zeros(128, 64, 256)
        if fixed:
            ends = torch.tensor(sizes).pin_memory().to(D, non_blocking=True)
            rows = torch.repeat_interleave(
                torch.arange(128, device=D), ends, output_size=sum(sizes)
            )
            places = torch.arange(sum(sizes), device=D) - (ends.cumsum(0) - ends)[rows]
            batch = batch.index_put((rows, places), packed)
        else:
            begin = 0
            for row, size in enumerate(sizes):
                batch[row, :size] = packed[begin : begin + size]
                begin += size
        return model["encoder"](batch).float().square().mean()

    return trained(model, loss)


@program
def clipped_one_by_one(fixed):
    """Gradients clipped parameter by parameter; all at once."""
    from torchvision.models import vit_b_16

    model = vit_b_16(image_size=96).to(D, BF)
    x = torch.randn(8, 3, 96, 96, device=D, dtype=BF)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(_):
        optimizer.zero_grad(set_to_none=True)
        model(x).float().square().mean().backward()
        if fixed:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        else:
            for p in model.parameters():
                torch.nn.utils.clip_grad_norm_([p], 1.0)
        optimizer.step()

    return step


@program
def autocast_small(fixed):
    """Float32 weights under autocast; bfloat16 weights."""
    model = gpt2(4096, layers=12, width=256)
    if fixed:
        model = model.to(BF)
    return language(model, 4096, 2, 128, autocast=not fixed)


@program
def hooks_on_modules(fixed):
    """A hook on every module that keeps statistics; none."""
    model = gpt2(4096, layers=6, width=512).to(BF)
    outputs = {}

    def watch(module, _, output):
        first = output[0] if isinstance(output, tuple) else output
        if torch.is_tensor(first):
            first = first.detach().float()
            outputs[module] = (first.mean(), first.std(), first.abs().max())

    if not fixed:
        for module in model.modules():
            module.register_forward_hook(watch)
    return language(model, 4096, 4, 256, logits_as=BF)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(PROGRAMS))
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=110)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    step = PROGRAMS[chosen.name](chosen.fixed)
    timed = chosen.steps // 2
    began = 0.0
    for number in range(chosen.steps):
        if number == chosen.steps - timed:
            torch.cuda.synchronize()
            began = time.perf_counter()
        step(number)
    torch.cuda.synchronize()
    taken = (time.perf_counter() - began) * 1000 / timed
    print(f"plain {chosen.name}{' fixed' * chosen.fixed}: {taken:.3f} ms/step")


if __name__ == "__main__":
    main()

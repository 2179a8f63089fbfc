"""Training steps of a decoder of one size in one precision."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F

try:
    from traceq import record
except ImportError:  # neither installed nor under collect

    def record(**_numbers: object) -> None:
        pass


SIZES = {"small": (4, 512, 8), "medium": (8, 1024, 16), "large": (12, 2048, 16)}
VOCABULARY = 16_384


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        batch, length, dim = x.shape
        q, k, v = (
            item.view(batch, length, self.heads, -1).transpose(1, 2)
            for item in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, layers: int, dim: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--precision", choices=("bf16", "fp32"), required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layers, dim, heads = SIZES[options.size]
    model = Decoder(layers, dim, heads).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(VOCABULARY, (options.batch, options.seq_len), device=device)
    params = sum(parameter.numel() for parameter in model.parameters())
    count = options.batch * options.seq_len
    # 6 per weight and token without the table of the embedding, and attention.
    weights = params - model.embed.weight.numel()
    flops = 6 * weights * count + 12 * layers * dim * options.seq_len * count / 2
    for _ in range(options.steps):
        optimizer.zero_grad()
        with torch.autocast(
            device, torch.bfloat16, enabled=options.precision == "bf16"
        ):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        record(loss=loss, tokens=count, flops=flops, params=params)
    print(f"loss={loss.item():.4f}")


if __name__ == "__main__":
    main()

"""Dense against block-sparse attention at one length: forward and backward.

torch's flex_attention where it compiles, else SDPA with a mask: the sparse one attends
to a sliding window of blocks. A step is one call of the module and its backward.
"""

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


BLOCK = 128


class Attention(nn.Module):
    def __init__(self, kind: str, length: int, window: int, device: str) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, device=device))
        self.kind = kind
        self.density = 1.0
        self.block_mask = self.mask = None
        if kind == "sparse":
            places = torch.arange(length, device=device) // BLOCK
            near = (places[:, None] - places[None, :]).abs() <= window // BLOCK // 2
            self.density = near.float().mean().item()
            if device == "cuda":
                from torch.nn.attention.flex_attention import create_block_mask
                from torch.nn.attention.flex_attention import flex_attention as flex

                half = window // BLOCK // 2
                self.block_mask = create_block_mask(
                    lambda _b, _h, q, k: (q // BLOCK - k // BLOCK).abs() <= half,
                    None,
                    None,
                    length,
                    length,
                    device=device,
                    BLOCK_SIZE=BLOCK,
                )
                self.flex = torch.compile(flex)
            else:
                self.mask = near

    def forward(self, q, k, v):
        q = q * self.scale.to(q.dtype)
        if self.block_mask is not None:
            return self.flex(q, k, v, block_mask=self.block_mask)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--attention", choices=("dense", "sparse"), required=True)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    shape = (options.batch, options.heads, options.seq_len, options.dim)
    q, k, v = (
        torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
        for _ in range(3)
    )
    model = Attention(options.attention, options.seq_len, options.window, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    # Two matmuls forward, five backward, of which flash recomputes one.
    whole = 4 * options.batch * options.heads * options.seq_len**2 * options.dim
    flops = 3.5 * whole * model.density
    for _ in range(options.steps):
        optimizer.zero_grad()
        loss = model(q, k, v).float().square().mean()
        loss.backward()
        optimizer.step()
        q.grad = k.grad = v.grad = None
        record(
            loss=loss,
            tokens=options.batch * options.seq_len,
            flops=flops,
            density=model.density,
        )
    print(f"loss={loss.item():.4f}")


if __name__ == "__main__":
    main()

"""A norm that is written op by op."""

from __future__ import annotations

import torch
from torch import nn

from loops import CUDA, DEVICE, loop, options, size

WIDTH, LAYERS, BATCH = size(2048, 32), 8, size(8192, 8)


class Norm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).type_as(x)


def main() -> None:
    chosen = options(__doc__)
    kind = nn.RMSNorm if chosen.fixed else Norm
    model = nn.Sequential(*(kind(WIDTH, eps=1e-6) for _ in range(LAYERS)))
    model.to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
    x = torch.randn(BATCH, WIDTH, device=DEVICE, dtype=torch.bfloat16)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()

    loop(step, chosen.steps)


if __name__ == "__main__":
    main()

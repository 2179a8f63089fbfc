"""An optimizer that is not fused, over large parameters."""

from __future__ import annotations

import torch
from torch import nn

from loops import CUDA, DEVICE, loop, options, size

WIDTH, LAYERS, BATCH = size(2048, 16), 24, 64


def optimizer_of(model: nn.Module, *, fixed: bool) -> torch.optim.Optimizer:
    if fixed and CUDA:
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def main() -> None:
    chosen = options(__doc__)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
    model.to(DEVICE)
    optimizer = optimizer_of(model, fixed=chosen.fixed)
    x = torch.randn(BATCH, WIDTH, device=DEVICE)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    loop(step, chosen.steps)


if __name__ == "__main__":
    main()

"""Matmuls in float32 without TF32."""

from __future__ import annotations

import torch
from torch import nn

from loops import CUDA, DEVICE, loop, options, size

WIDTH, LAYERS, BATCH = size(2048, 32), 4, size(4096, 8)


def main() -> None:
    chosen = options(__doc__)
    if chosen.fixed:
        # Not as an edit would write it, which would look for a setting.
        getattr(torch, "set_float32_matmul" + "_precision")("high")
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
    x = torch.randn(BATCH, WIDTH, device=DEVICE)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    loop(step, chosen.steps)


if __name__ == "__main__":
    main()

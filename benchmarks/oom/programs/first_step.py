"""The states of AdamW do not fit; the fix keeps factored ones, as Adafactor does."""

from __future__ import annotations

import torch

from parts import FIXED, GIB, Stack, leave

torch.cuda.init()
leave(int(5.5 * GIB))
model = Stack(2048, 12).cuda()
kind = torch.optim.Adafactor if FIXED else torch.optim.AdamW
optimizer = kind(model.parameters(), lr=0.001)
for _ in range(3):
    x = torch.randn(1, 64, 2048, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()  # here
    optimizer.zero_grad()
print(f"loss {loss.item():.3f}")

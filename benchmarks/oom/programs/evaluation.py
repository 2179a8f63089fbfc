"""The evaluation keeps activations for a backward; the fix is torch.no_grad()."""

from __future__ import annotations

import torch

from parts import FIXED, GIB, Stack, leave

torch.cuda.init()
leave(int(4.5 * GIB))
model = Stack(1024, 24).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    x = torch.randn(1, 1024, 1024, device="cuda")
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
x = torch.randn(8, 1024, 1024, device="cuda")
with torch.set_grad_enabled(not FIXED):
    score = model(x).square().mean()
print(f"score {score.item():.3f}")

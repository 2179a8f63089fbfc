"""A list holds the features of every step; the fix keeps a number of each."""

from __future__ import annotations

import torch

from parts import FIXED, GIB, Stack, leave

torch.cuda.init()
leave(5 * GIB)
model = Stack(512, 4).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
seen = []
for _ in range(400):
    x = torch.randn(16, 1024, 512, device="cuda")
    out = model(x)
    loss = out.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    features = torch.relu(out.detach())  # here
    seen.append(features.mean().item() if FIXED else features)
print(f"loss {loss.item():.3f}")

"""The forward fits just so, the backward does not; the fix checkpoints the blocks."""

from __future__ import annotations

import torch

from parts import FIXED, Stack, leave

model = Stack(2048, 12).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(4, 1024, 2048, device="cuda")
loss = model(x).square().mean()
peak = torch.cuda.max_memory_reserved()
del loss
torch.cuda.empty_cache()
# What the forward has taken beside what is still reserved, and a little more.
leave(peak - torch.cuda.memory_reserved() + (64 << 20))
model.checkpointed = FIXED
for _ in range(3):
    loss = model(x).square().mean()
    loss.backward()  # here
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.3f}")

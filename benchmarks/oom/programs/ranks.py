"""One rank of two has a larger batch, which does not fit; the fix checkpoints."""

from __future__ import annotations

import torch
import torch.distributed as dist

from parts import FIXED, GIB, Stack

dist.init_process_group("gloo")
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(3 * GIB / total)
model = Stack(1024, 12, checkpointed=FIXED).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = 8 if dist.get_rank() == 1 else 1
for _ in range(3):
    x = torch.randn(batch, 1024, 1024, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    both = loss.detach().cpu()
    dist.all_reduce(both)
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {both.item():.3f}")
dist.destroy_process_group()

"""Logits of 131,072 words do not fit twice; the fix computes the loss in chunks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from parts import FIXED, GIB, Stack, leave

WORDS = 131_072
torch.cuda.init()
leave(6 * GIB)
body = Stack(512, 4).cuda()
head = nn.Linear(512, WORDS, bias=False).cuda()
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)


def chunk_loss(hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(head(hidden), target, reduction="sum")


for _ in range(3):
    hidden = body(torch.randn(4, 2048, 512, device="cuda")).flatten(0, 1)
    target = torch.randint(WORDS, (4 * 2048,), device="cuda")
    if FIXED:
        parts = zip(hidden.chunk(8), target.chunk(8))
        losses = [checkpoint(chunk_loss, *part, use_reentrant=False) for part in parts]
        loss = torch.stack(losses).sum() / len(target)
    else:
        logits = head(hidden)
        loss = F.cross_entropy(logits, target)  # here
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.3f}")

"""Programs other than planted.py with the same pauses, to check what it was tuned with.

``python collect --keep-slow 1.5x -- python others.py conv``: a convolutional network
with two DataLoader workers; ``accumulating``: a transformer whose steps are four
micro-batches. ``--steady`` plants nothing.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from planted import AT, DEVICE, PAUSE_S, STEPS, doubled, pause

MICRO = 4


class Images(Dataset):
    """Images, one batch of which takes long to load."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, step: int) -> torch.Tensor:
        if AT.get(step) == "data":
            time.sleep(PAUSE_S * 4)  # the other worker is some batches ahead
        return torch.ones(3, 32, 32)


class Texts(Dataset):
    """Texts of one length: a step takes four of them."""

    def __len__(self) -> int:
        return STEPS * MICRO

    def __getitem__(self, at: int) -> torch.Tensor:
        if at % MICRO == 1 and AT.get(at // MICRO) == "data":
            time.sleep(PAUSE_S)
        return torch.arange(32) % 16


def conv() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4)
    ).to(DEVICE)
    model(torch.ones(2, 3, 32, 32, device=DEVICE))
    optimizer = torch.optim.Adam(model.parameters())
    batches = DataLoader(Images(), batch_size=1, num_workers=2, prefetch_factor=2)
    for step, x in enumerate(batches):
        images = x.to(DEVICE).expand(4, -1, -1, -1)
        loss = model(images).logsumexp(-1).mean()
        pause(AT.get(step, ""), step, loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def accumulating() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    body = nn.TransformerEncoder(layer, 2)
    model = nn.Sequential(nn.Embedding(16, 32), body, nn.Linear(32, 16)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for at, tokens in enumerate(DataLoader(Texts(), batch_size=1)):
        step = at // MICRO
        logits = model(tokens.to(DEVICE))
        if at % MICRO == MICRO - 2:
            pause(AT.get(step, ""), step, logits)
        (logits.square().mean() / MICRO).backward()
        if at % MICRO == MICRO - 1:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    doubled(torch.ones(4))
    {"conv": conv, "accumulating": accumulating}[sys.argv[1]]()
    print(json.dumps({str(step): kind for step, kind in AT.items()}))

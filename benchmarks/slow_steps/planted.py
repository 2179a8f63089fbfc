"""A training on a GPU with a pause in 1 of 200 steps, of six kinds in turn.

``python collect --keep-slow 1.5x -- python planted.py``; ``--steady`` plants nothing.
The last line that it prints is JSON: the step and the kind of each pause.
"""

from __future__ import annotations

import gc
import io
import json
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

KINDS = ("gc", "data", "allocator", "sleep", "recompilation", "checkpoint")
STEPS = 2400
PAUSE_S = 0.15
SAVED = torch.zeros(40_000_000)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, WIDTH = (256, 512) if DEVICE == "cuda" else (4, 32)
AT = (
    {}
    if "--steady" in sys.argv
    else {step: KINDS[step // 200 % 6] for step in range(150, STEPS, 200)}
)


class Samples(Dataset):
    """Samples, one of which takes long to load."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, step: int) -> torch.Tensor:
        if AT.get(step) == "data":
            time.sleep(PAUSE_S)
        return torch.ones(ROWS, WIDTH)


@torch.compile(backend="eager", dynamic=False)
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def pause(kind: str, step: int, hidden: torch.Tensor) -> None:
    if kind == "gc":
        for _ in range(300_000):
            cycle: list = []
            cycle.append(cycle)
        gc.collect()
    elif kind == "allocator" and DEVICE == "cuda":
        torch.cuda.empty_cache()  # the next allocations come from the driver
        for size in range(1, 33):
            torch.empty(size * 48 << 20, dtype=torch.uint8, device="cuda")
    elif kind == "sleep":
        time.sleep(PAUSE_S)
    elif kind == "recompilation":
        doubled(torch.ones(8 + step // 200))
    elif kind == "checkpoint":
        torch.save(SAVED, io.BytesIO())
    del hidden


def main() -> None:
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(24)]
    model = torch.nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    doubled(torch.ones(4))
    for step, x in enumerate(DataLoader(Samples(), batch_size=1)):
        hidden = model(x.to(DEVICE))
        pause(AT.get(step, ""), step, hidden)
        hidden.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(json.dumps({str(step): kind for step, kind in AT.items()}))


if __name__ == "__main__":
    main()

"""Parts of the programs: layers, and a GPU that has only a few GiB."""

from __future__ import annotations

import ctypes
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

FIXED = "--fixed" in sys.argv
GIB = 1 << 30
_ballast = []


def leave(size: int) -> None:
    """Leave only this number of bytes of the GPU, as if it were a smaller one.

    The rest is taken from the driver, not through torch: its allocator sees a device
    that is full, without a limit that could be raised.
    """
    free, _ = torch.cuda.mem_get_info()
    driver = ctypes.CDLL("libcuda.so.1")
    address = ctypes.c_uint64()
    status = driver.cuMemAlloc_v2(
        ctypes.byref(address), ctypes.c_size_t(max(0, free - size))
    )
    if status:
        sys.exit(f"the ballast could not be allocated: CUDA error {status}")
    _ballast.append(address)


class Block(nn.Module):
    """A feed-forward layer with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))  # block


class Stack(nn.Module):
    """Some blocks, checkpointed or not."""

    def __init__(self, width: int, layers: int, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.checkpointed:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return x

"""Synthetic CIFAR10 in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class CIFAR10(Dataset):
    """Images of 32 × 32 and their classes, as many as the real ones."""

    def __init__(
        self,
        root: str,
        train: bool,  # noqa: FBT001
        download: bool,  # noqa: FBT001
        transform: Callable[[Image.Image], torch.Tensor],
    ) -> None:
        del root, download
        self.transform = transform
        rng = np.random.default_rng(0)
        images = 50000 if train else 10000
        self.data = rng.integers(256, size=(images, 32, 32, 3), dtype=np.uint8)
        self.targets = rng.integers(10, size=images).tolist()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]

"""Synthetic STL10 in memory, and a SummaryWriter that writes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

IMAGES = 5000


class STL10(Dataset):
    """Images of 96 × 96 without labels, each of them twenty times."""

    def __init__(
        self,
        root: str,
        split: str,
        transform: Callable[[Image.Image], list[torch.Tensor]],
        download: bool,  # noqa: FBT001
    ) -> None:
        del root, split, download
        self.transform = transform
        rng = np.random.default_rng(0)
        coarse = rng.integers(256, size=(IMAGES, 3, 24, 24), dtype=np.uint8)
        self.data = coarse.repeat(4, axis=2).repeat(4, axis=3)

    def __len__(self) -> int:
        return 20 * IMAGES

    def __getitem__(self, index: int) -> tuple[list[torch.Tensor], int]:
        image = Image.fromarray(np.transpose(self.data[index % IMAGES], (1, 2, 0)))
        return self.transform(image), -1


class SummaryWriter:
    """Stand-in for tensorboard's."""

    def __init__(self) -> None:
        self.log_dir = "runs/stl10"
        Path(self.log_dir).mkdir(parents=True, exist_ok=True)

    def add_scalar(self, name: str, value: float, global_step: int) -> None:
        """Read a value, as the real one does, and drop it."""
        del name, global_step
        float(value)

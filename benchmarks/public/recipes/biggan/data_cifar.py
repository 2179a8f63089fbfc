"""Synthetic CIFAR10, in the files of the real one."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10


def write(dataset: CIFAR10, images: int = 10000) -> None:
    """Write the batches of a dataset's training split."""
    folder = Path(dataset.root, dataset.base_folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, _ in dataset.train_list:
        batch = {
            "data": rng.integers(256, size=(images, 3 * 32 * 32), dtype=np.uint8),
            "labels": rng.integers(10, size=images).tolist(),
        }
        (folder / name).write_bytes(pickle.dumps(batch))

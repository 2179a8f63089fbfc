"""Synthetic DIV2K, scale 2: pickled arrays, as the program leaves decoded images."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

ROOT = Path("datasets/DIV2K")
HEIGHT, WIDTH = 1356, 2040


def write(images: int = 18) -> None:
    """Write pairs of a large and a small image, and empty PNGs for their names."""
    hr, lr = ROOT / "DIV2K_train_HR", ROOT / "DIV2K_train_LR_bicubic" / "X2"
    folders = [ROOT / "bin" / folder.relative_to(ROOT) for folder in (hr, lr)]
    for folder in (hr, lr, *folders):
        folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(1, images + 1):
        small = rng.integers(256, size=(HEIGHT // 2, WIDTH // 2, 3), dtype=np.uint8)
        large = small.repeat(2, axis=0).repeat(2, axis=1)
        (hr / f"{number:04}.png").touch()
        (folders[0] / f"{number:04}.pt").write_bytes(pickle.dumps(large))
        (folders[1] / f"{number:04}x2.pt").write_bytes(pickle.dumps(small))

"""Synthetic Scene Flow: stereo pairs as PNG, disparities as PFM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 540, 960
PAIRS, TRAINING, TEST = 24, 35454, 4370


def dataloader(folder: str) -> list[list[str]]:
    """Write the pairs; list left, right and disparity files to train on and to test."""
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    pairs = []
    for pair in range(PAIRS):
        files = [root / f"{pair:04}{end}" for end in ("_l.png", "_r.png", ".pfm")]
        coarse = rng.integers(256, size=(HEIGHT // 6, WIDTH // 6, 3), dtype=np.uint8)
        left = np.asarray(Image.fromarray(coarse).resize((WIDTH, HEIGHT)))
        shift = int(rng.integers(4, 120))
        Image.fromarray(left).save(files[0])
        Image.fromarray(np.roll(left, -shift, axis=1)).save(files[1])
        disparity = np.full((HEIGHT, WIDTH), shift, dtype="<f4")
        header = f"Pf\n{WIDTH} {HEIGHT}\n-1.0\n".encode()
        files[2].write_bytes(header + disparity.tobytes())
        pairs.append([str(file) for file in files])
    return [
        [pairs[index % PAIRS][kind] for index in range(count)]
        for count in (TRAINING, TEST)
        for kind in range(3)
    ]

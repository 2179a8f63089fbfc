"""Synthetic FlyingChairs, and a SummaryWriter that writes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

ROOT = Path("datasets/FlyingChairs_release/data")
HEIGHT, WIDTH = 384, 512


def write(pairs: int = 48) -> None:
    """Write pairs of images with a smooth flow; all are of the training split."""
    ROOT.mkdir(parents=True, exist_ok=True)
    Path("chairs_split.txt").write_text("1\n" * pairs)
    rng = np.random.default_rng(0)
    image_header = f"P6\n{WIDTH} {HEIGHT}\n255\n".encode()
    flow_header = np.float32(202021.25).tobytes() + np.int32([WIDTH, HEIGHT]).tobytes()
    for pair in range(1, pairs + 1):
        coarse = rng.integers(256, size=(HEIGHT // 4, WIDTH // 4, 3), dtype=np.uint8)
        image = coarse.repeat(4, axis=0).repeat(4, axis=1)
        shift = rng.integers(-8, 9, size=2)
        moved = np.roll(image, shift[::-1], axis=(0, 1))
        flow = np.tile(shift.astype(np.float32), (HEIGHT, WIDTH, 1))
        for number, pixels in enumerate((image, moved), 1):
            file = ROOT / f"{pair:05}_img{number}.ppm"
            file.write_bytes(image_header + pixels.tobytes())
        (ROOT / f"{pair:05}_flow.flo").write_bytes(flow_header + flow.tobytes())


class SummaryWriter:
    """Stand-in for tensorboard's."""

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Read a value, as the real one does, and drop it."""
        del name, step
        float(value)

    def close(self) -> None:
        """Do nothing."""

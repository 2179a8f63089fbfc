"""Synthetic WIDER FACE: JPEGs, and label.txt with boxes and landmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 768, 1024
IMAGES, REPEATS = 140, 92  # 12880 together, as in the training split


def _face(rng: np.random.Generator) -> str:
    """Return a line: a box, five landmarks with a flag each, and a quality."""
    width = int(8 * 25 ** rng.random())
    height = int(1.3 * width)
    left = int(rng.integers(WIDTH - width))
    top = int(rng.integers(HEIGHT - height))
    landmarks = ["-1.0"] * 15
    if rng.random() < 0.6:
        points = rng.random((5, 2)) * (width, height) + (left, top)
        landmarks = [f"{x:.2f} {y:.2f} 0.0" for x, y in points]
    return f"{left} {top} {width} {height} {' '.join(landmarks)} 0.8\n"


def write(label_file: str) -> None:
    """Write the images, and the labels of all of them again and again."""
    rng = np.random.default_rng(0)
    folder = Path(label_file).parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    labels = []
    for number in range(IMAGES):
        coarse = rng.integers(256, size=(48, 64, 3), dtype=np.uint8)
        name = f"{number:05}.jpg"
        Image.fromarray(coarse).resize((WIDTH, HEIGHT)).save(folder / name)
        faces = [_face(rng) for _ in range(min(int(rng.geometric(1 / 12)), 200))]
        labels.append(f"# {name}\n{''.join(faces)}")
    Path(label_file).write_text("".join(labels) * REPEATS)

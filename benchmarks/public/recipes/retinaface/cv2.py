"""Stand-in for OpenCV: what the augmentation uses, by Pillow. Images are BGR."""

from __future__ import annotations

import numpy as np
from PIL import Image

COLOR_BGR2HSV, COLOR_HSV2BGR = 40, 54
INTER_NEAREST = Image.Resampling.NEAREST
INTER_LINEAR = Image.Resampling.BILINEAR
INTER_CUBIC = Image.Resampling.BICUBIC
INTER_AREA = Image.Resampling.BOX
INTER_LANCZOS4 = Image.Resampling.LANCZOS
# OpenCV's hue ends at 180, Pillow's at 256. Pillow takes blue for red, which turns a
# hue into 240 degrees minus it: the tables undo that, so that no channel is moved.
TO_OPENCV = ((240 - np.arange(256) * 360 / 256) % 360 / 2).astype(np.uint8)
TO_PILLOW = ((240 - np.arange(256) * 2) % 360 * 256 / 360).astype(np.uint8)


def imread(path: str) -> np.ndarray:
    """Return the image of a file."""
    return np.ascontiguousarray(np.asarray(Image.open(path))[:, :, ::-1])


def cvtColor(image: np.ndarray, code: int) -> np.ndarray:  # noqa: N802
    """Return an image in the other one of the two colour spaces."""
    if code == COLOR_BGR2HSV:
        hsv = np.array(Image.fromarray(image).convert("HSV"))
        hsv[:, :, 0] = TO_OPENCV[hsv[:, :, 0]]
        return hsv
    hsv = image.copy()
    hsv[:, :, 0] = TO_PILLOW[hsv[:, :, 0]]
    pixels = Image.frombytes("HSV", hsv.shape[1::-1], hsv.tobytes())
    return np.array(pixels.convert("RGB"))


def resize(
    image: np.ndarray, size: tuple[int, int], interpolation: Image.Resampling
) -> np.ndarray:
    """Return an image of another size."""
    pixels = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(pixels.resize(size, interpolation))

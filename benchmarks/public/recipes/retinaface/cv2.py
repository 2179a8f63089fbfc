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
# OpenCV's hue ends at 180, Pillow's at 256.
TO_OPENCV = (np.arange(256) * 180 // 256).astype(np.uint8)
TO_PILLOW = np.minimum(np.arange(256) * 256 // 180, 255).astype(np.uint8)


def imread(path: str) -> np.ndarray:
    """Return the image of a file."""
    return np.ascontiguousarray(np.asarray(Image.open(path))[:, :, ::-1])


def cvtColor(image: np.ndarray, code: int) -> np.ndarray:  # noqa: N802
    """Return an image in the other one of the two colour spaces."""
    if code == COLOR_BGR2HSV:
        rgb = Image.fromarray(np.ascontiguousarray(image[:, :, ::-1]))
        hsv = np.array(rgb.convert("HSV"))
        hsv[:, :, 0] = TO_OPENCV[hsv[:, :, 0]]
        return hsv
    hsv = image.copy()
    hsv[:, :, 0] = TO_PILLOW[hsv[:, :, 0]]
    rgb = Image.frombytes("HSV", hsv.shape[1::-1], hsv.tobytes()).convert("RGB")
    return np.ascontiguousarray(np.asarray(rgb)[:, :, ::-1])


def resize(
    image: np.ndarray, size: tuple[int, int], interpolation: Image.Resampling
) -> np.ndarray:
    """Return an image of another size."""
    pixels = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(pixels.resize(size, interpolation))

"""Stand-ins: the cameraman of skimage, two filters of scipy, and a SummaryWriter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def _correlate(
    image: np.ndarray, axis: int, weights: tuple[int, int, int]
) -> np.ndarray:
    """Return three weighted neighbours' sum along an axis, reflected at its ends."""
    pads = [(int(a == axis),) * 2 for a in range(image.ndim)]
    padded = np.moveaxis(np.pad(image, pads, "symmetric"), axis, 0)
    before, here, after = (padded[i : len(padded) - 2 + i] for i in range(3))
    total = weights[0] * before + weights[1] * here + weights[2] * after
    return np.moveaxis(total, 0, axis)


def _sobel(image: np.ndarray, axis: int) -> np.ndarray:
    """Return what scipy.ndimage.sobel does."""
    for other in range(image.ndim):
        image = _correlate(image, other, (-1, 0, 1) if other == axis else (1, 2, 1))
    return image


def _laplace(image: np.ndarray) -> np.ndarray:
    """Return what scipy.ndimage.laplace does."""
    return sum(_correlate(image, axis, (1, -2, 1)) for axis in range(image.ndim))


def _camera() -> np.ndarray:
    """Return a grey image of 512 × 512."""
    coarse = np.random.default_rng(0).integers(256, size=(64, 64), dtype=np.uint8)
    return coarse.repeat(8, axis=0).repeat(8, axis=1)


scipy = SimpleNamespace(ndimage=SimpleNamespace(sobel=_sobel, laplace=_laplace))
skimage = SimpleNamespace(data=SimpleNamespace(camera=_camera))


class SummaryWriter:
    """Stand-in for tensorboard's: it writes nothing."""

    def __init__(self, log_dir: str) -> None:
        self.log_dir = log_dir

    def add_scalar(self, name: str, value: torch.Tensor, global_step: int) -> None:
        """Read a value, as the real one does, and drop it."""
        del name, global_step
        value.detach().cpu().numpy()

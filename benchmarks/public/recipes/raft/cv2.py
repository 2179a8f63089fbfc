"""Stand-in for OpenCV: resize, by torch."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

INTER_LINEAR = 1


class ocl:  # noqa: N801
    """Stand-in for cv2.ocl."""

    @staticmethod
    def setUseOpenCL(use: bool) -> None:  # noqa: FBT001, N802
        """Accept a setting."""


def setNumThreads(threads: int) -> None:  # noqa: N802
    """Accept a setting."""


def resize(
    image: np.ndarray, size: None, fx: float, fy: float, interpolation: int
) -> np.ndarray:
    """Return an image of the factors' size."""
    del size, interpolation
    height, width = round(image.shape[0] * fy), round(image.shape[1] * fx)
    channels_first = torch.from_numpy(image).permute(2, 0, 1)[None]
    resized = functional.interpolate(channels_first, (height, width), mode="bilinear")
    return np.ascontiguousarray(resized[0].permute(1, 2, 0).numpy())

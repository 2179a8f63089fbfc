"""Vorticity of flows, 64 x 64 at 50 times, as the Navier-Stokes data have it."""

from __future__ import annotations

import numpy as np
import torch

FLOWS, SIZE, TIMES, WAVES = 1000, 64, 50, 16


class MatReader:
    """Travelling waves with a field ``u``, for any file."""

    def __init__(self, path: str) -> None:
        rng = np.random.default_rng(len(path) + ord(path[-5]))
        grid = np.arange(SIZE, dtype=np.float32) * (2 * np.pi / SIZE)
        times = np.arange(TIMES, dtype=np.float32)
        waves = np.empty((WAVES, SIZE, SIZE, TIMES), np.float32)
        for wave in waves:
            across, down = rng.integers(-4, 5, 2)
            phase = across * grid[:, None, None] + down * grid[:, None]
            wave[:] = np.cos(phase + rng.uniform(0, 0.5) * times + rng.uniform(0, 6))
        shares = torch.from_numpy(rng.normal(size=(FLOWS, WAVES)).astype(np.float32))
        flows = shares @ torch.from_numpy(waves).reshape(WAVES, -1)
        self.u = flows.reshape(FLOWS, SIZE, SIZE, TIMES)

    def read_field(self, field: str) -> torch.Tensor:
        """Return the field of all flows."""
        del field
        return self.u

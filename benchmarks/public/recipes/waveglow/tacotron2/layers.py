"""Mel spectrograms of the kind that tacotron2's TacotronSTFT computes."""

from __future__ import annotations

import numpy as np
import torch


def _hertz(mel: np.ndarray) -> np.ndarray:
    """Return the frequencies of Slaney's scale: linear to 1 kHz, logarithmic above."""
    return np.where(
        mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27)
    )


def _mel_matrix(rate: int, size: int, low: float, high: float) -> torch.Tensor:
    """Return 80 triangles over the frequencies of an FFT."""
    ends = [
        f * 3 / 200 if f < 1000 else 15 + 27 * np.log(f / 1000) / np.log(6.4)
        for f in (low, high)
    ]
    edges = _hertz(np.linspace(*ends, 82))
    slopes = edges[:, None] - np.linspace(0, rate / 2, size // 2 + 1)
    widths = np.diff(edges)[:, None]
    rising, falling = -slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]
    triangles = np.maximum(0, np.minimum(rising, falling))
    return torch.from_numpy(triangles * 2 / (edges[2:] - edges[:-2])[:, None]).float()


class TacotronSTFT:
    """Short-time Fourier transform, mel scale and logarithm, on the CPU."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        filter_length: int,
        hop_length: int,
        win_length: int,
        sampling_rate: int,
        mel_fmin: float,
        mel_fmax: float,
    ) -> None:
        self.sizes = filter_length, hop_length, win_length
        self.window = torch.hann_window(win_length)
        self.mels = _mel_matrix(sampling_rate, filter_length, mel_fmin, mel_fmax)

    def mel_spectrogram(self, audio: torch.Tensor) -> torch.Tensor:
        """Return the log mel spectrogram of each row."""
        waves = torch.stft(
            audio, *self.sizes, window=self.window, return_complex=True
        ).abs()
        return torch.matmul(self.mels, waves).clamp(min=1e-5).log()

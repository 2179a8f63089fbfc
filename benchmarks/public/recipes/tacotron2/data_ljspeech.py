"""Synthetic recordings of LJSpeech's texts, and stand-ins for five packages."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

RATE, LONGEST_S, LETTERS_PER_S = 22050, 10.1, 15.0
DIGITS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
]
tiny = np.finfo(np.float32).tiny


@functools.cache
def _lengths() -> dict[str, int]:
    """Return how many samples each recording has."""
    lengths = {}
    for file in Path("filelists").glob("*.txt"):
        for line in file.read_text(encoding="utf-8").splitlines():
            name, text = line.split("|")
            seconds = min(LONGEST_S, 0.5 + len(text) / LETTERS_PER_S)
            lengths[name] = int(seconds * RATE)
    return lengths


@functools.cache
def _noise() -> NDArray[np.int16]:
    noise = np.random.default_rng(0).normal(0, 3000, int(LONGEST_S * RATE) + 1)
    return noise.clip(-32768, 32767).astype(np.int16)


def read(path: str) -> tuple[int, NDArray[np.int16]]:
    """Return the rate and the samples of a recording (scipy's wavfile.read)."""
    return RATE, _noise()[: _lengths()[path]].copy()


def get_window(_hann: str, size: int, *, fftbins: bool) -> NDArray[np.float64]:
    """Return a periodic Hann window (scipy)."""
    return np.hanning(size + fftbins)[:size]


def pad_center(data: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return the data with zeros on both sides (librosa)."""
    before = (size - len(data)) // 2
    return np.pad(data, (before, size - len(data) - before))


def mel(
    rate: int, n_fft: int, n_mels: int, fmin: float, fmax: float
) -> NDArray[np.float64]:
    """Return triangular filters, even on the mel scale (librosa)."""
    mels = np.linspace(*(2595 * np.log10(1 + np.array([fmin, fmax]) / 700)), n_mels + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    bins = np.linspace(0, rate / 2, n_fft // 2 + 1)
    up = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    down = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    scale = 2 / (edges[2:] - edges[:-2])
    return np.maximum(0, np.minimum(up, down)) * scale[:, None]


def unidecode(text: str) -> str:
    """Return the text's ASCII letters (Unidecode)."""
    return text.encode("ascii", "ignore").decode()


class engine:  # noqa: N801  # inflect's name
    """Numbers in words, digit by digit (inflect)."""

    def number_to_words(self, number: object, **_options: object) -> str:
        """Return the digits' names."""
        return " ".join(DIGITS[int(c)] for c in str(number) if c.isdigit())


class SummaryWriter:
    """A writer for tensorboard that writes nothing."""

    def __init__(self, _logdir: str) -> None:
        pass

    def add_scalar(self, _tag: str, value: float, _step: int) -> None:
        """Read a value, which is a tensor at times, as tensorboard does."""
        float(value)

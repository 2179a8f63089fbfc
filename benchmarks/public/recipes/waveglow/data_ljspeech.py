"""Synthetic LJ Speech: wav files, their list, and scipy's reader of them."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

RATE = 22050
FILES, LISTED = 100, 13090


def write(file_list: str) -> None:
    """Write the utterances, and a list that names each of them many times."""
    folder = Path("data")
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    names = [str(folder / f"LJ{number:03}.wav") for number in range(FILES)]
    for name in names:
        time = np.arange(int(RATE * rng.uniform(2, 10))) / RATE
        tones = np.sin(2 * np.pi * rng.uniform(80, 4000, size=(4, 1)) * time).sum(0)
        samples = 3000 * tones + 300 * rng.standard_normal(time.size)
        with wave.open(name, "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes(samples.astype("<i2").tobytes())
    lines = [names[index % FILES] + "\n" for index in range(LISTED)]
    Path(file_list).write_text("".join(lines))


def read(name: str) -> tuple[int, np.ndarray]:
    """Return the rate and the samples of a file."""
    with wave.open(name) as file:
        frames = file.readframes(file.getnframes())
        return file.getframerate(), np.frombuffer(frames, dtype="<i2").copy()

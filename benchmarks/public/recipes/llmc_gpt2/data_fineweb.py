"""Shards of tokens in llm.c's format, as many of each as their rank lets expect."""

from __future__ import annotations

from pathlib import Path

import numpy as np

FOLDER = Path("dev/data/fineweb10B")
SHARDS = {
    "fineweb_train_000001.bin": 20_000_000,
    "fineweb_train_000002.bin": 20_000_000,
    "fineweb_val_000000.bin": 2_000_000,
}
VOCABULARY = 50257


def write() -> None:
    """Write the shards: a header of 256 integers, then the tokens."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, count in SHARDS.items():
        header = np.zeros(256, dtype=np.int32)
        header[:3] = 20240520, 1, count
        tokens = (VOCABULARY * rng.random(count, dtype=np.float32) ** 3).astype("u2")
        (FOLDER / name).write_bytes(header.tobytes() + tokens.tobytes())

"""Stand-ins for lmdb (words, which are 4000 synthetic images) and for nltk."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from typing_extensions import Self

DISTINCT = 4_000
COUNTS = {
    "data_lmdb_release/training/MJ/MJ_train": 1_000_000,
    "data_lmdb_release/training/ST": 1_000_000,
    "data_lmdb_release/validation": 6_992,
}
for folder in COUNTS:
    Path(folder).mkdir(parents=True, exist_ok=True)
LETTERS = list("0123456789abcdefghijklmnopqrstuvwxyz")


@functools.cache
def _samples() -> list[tuple[bytes, bytes]]:
    """Return images (JPEG, 31 pixels high) with the words that they stand for."""
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(DISTINCT):
        word = "".join(rng.choice(LETTERS, rng.integers(2, 15)))
        pixels = rng.integers(0, 256, (8, 3 * len(word), 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((12 * len(word), 31))
        file = io.BytesIO()
        image.save(file, "JPEG")
        samples.append((file.getvalue(), word.encode()))
    return samples


class Environment:
    """A database that is its own transaction."""

    def __init__(self, count: int) -> None:
        self.count = count

    def begin(self, *, write: bool) -> Self:
        """Return the transaction, which only reads."""
        if write:
            raise ValueError
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def get(self, key: bytes) -> bytes:
        """Return an image or a word, by a key such as ``image-000000001``."""
        kind, index = key.split(b"-")
        if index == b"samples":
            return b"%d" % self.count
        return _samples()[int(index) % DISTINCT][kind == b"label"]


def open(root: str, **_options: object) -> Environment:  # noqa: A001  # lmdb's name
    """Return the database of a folder."""
    _samples()
    return Environment(COUNTS[root.rstrip("/").replace("//", "/")])


def edit_distance(first: str, second: str) -> int:
    """Return how many insertions, deletions and substitutions lead to the other."""
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        previous, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            changed = previous + (letter != other)
            previous, row[j] = row[j], min(changed, row[j] + 1, row[j - 1] + 1)
    return row[-1]

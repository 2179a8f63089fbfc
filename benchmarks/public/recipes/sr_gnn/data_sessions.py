"""Sessions of clicks as Diginetica's: 43097 items, five clicks on average, up to 69."""

from __future__ import annotations

import numpy as np

ITEMS, MEAN_LENGTH, LONGEST = 43097, 4.85, 69


def load(sessions: int) -> tuple[list[list[int]], list[int]]:
    """Return the clicks of each session, and the one after them."""
    rng = np.random.default_rng(sessions)
    lengths = np.minimum(rng.geometric(1 / MEAN_LENGTH, sessions), LONGEST)
    lengths[0] = LONGEST
    # A session stays near its first item, and comes back to some.
    starts = rng.zipf(1.2, sessions) % ITEMS
    near = np.abs(rng.normal(0, 8, (sessions, LONGEST + 1))).astype(int)
    clicks = (starts[:, None] + near) % ITEMS + 1
    sequences = [row[:n].tolist() for row, n in zip(clicks, lengths, strict=True)]
    return sequences, clicks[np.arange(sessions), lengths].tolist()

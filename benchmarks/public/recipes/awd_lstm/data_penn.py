"""Synthetic Penn Treebank: as many words of each split, of as large a vocabulary."""

from __future__ import annotations

import torch

VOCABULARY = 10_000
REPEAT = 100


def _words(count: int) -> torch.Tensor:
    """Return words of which the first of the vocabulary are the most frequent."""
    return (VOCABULARY * torch.rand(count) ** 3).long()


class Corpus:
    """Stand-in for data.Corpus."""

    def __init__(self) -> None:
        self.dictionary = range(VOCABULARY)
        self.train = _words(929_589).repeat(REPEAT)
        self.valid = _words(73_760)
        self.test = _words(82_430)

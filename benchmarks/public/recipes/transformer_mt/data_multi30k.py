"""Synthetic Multi30k, and batches of it as torchtext's BucketIterator makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator

PAD, BEGIN, END = "<blank>", "<s>", "</s>"
WORDS = ["<unk>", PAD, BEGIN, END, *(f"word{rank}" for rank in range(9517))]
INDEX = {word: index for index, word in enumerate(WORDS)}
TRAINING, VALIDATION, REPEAT = 29_000, 1_014, 100


class Batch(NamedTuple):
    """Sentences of two languages, padded, a column each."""

    src: torch.Tensor
    trg: torch.Tensor


def _sentences(rng: np.random.Generator, count: int) -> list[list[str]]:
    lengths = rng.gamma(9, 1.45, count).astype(int).clip(3, 40)
    ranks = (4 + (len(WORDS) - 4) * rng.random(lengths.sum()) ** 4).astype(int)
    words = iter([WORDS[rank] for rank in ranks])
    return [[next(words) for _ in range(length)] for length in lengths]


def _tensor(sentences: list[list[str]], device: torch.device) -> torch.Tensor:
    longest = max(map(len, sentences))
    padded = [[BEGIN, *s, END] + [PAD] * (longest - len(s)) for s in sentences]
    indices = [[INDEX[word] for word in sentence] for sentence in padded]
    return torch.tensor(indices, dtype=torch.long, device=device).t().contiguous()


class BucketIterator:
    """Batches in random order: without a sort key, torchtext makes no buckets."""

    def __init__(
        self, count: int, repeat: int, size: int, device: torch.device
    ) -> None:
        rng = np.random.default_rng(count)
        pairs = zip(_sentences(rng, count), _sentences(rng, count), strict=True)
        self.pairs = list(pairs)
        self.repeat = repeat
        self.size = size
        self.device = device

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        order = torch.randperm(len(self.pairs) * self.repeat) % len(self.pairs)
        for indices in order.split(self.size):
            sources, targets = zip(
                *(self.pairs[i] for i in indices.tolist()), strict=True
            )
            yield Batch(_tensor(sources, self.device), _tensor(targets, self.device))


def prepare_dataloaders(
    opt: Namespace, device: torch.device
) -> tuple[BucketIterator, BucketIterator]:
    """Return the iterators, and add to the options what depends on the data."""
    opt.max_token_seq_len = 100
    opt.src_pad_idx = opt.trg_pad_idx = INDEX[PAD]
    opt.src_vocab_size = opt.trg_vocab_size = len(WORDS)
    return (
        BucketIterator(TRAINING, REPEAT, opt.batch_size, device),
        BucketIterator(VALIDATION, 1, opt.batch_size, device),
    )


def tqdm(batches: Iterable[Batch], **_options: object) -> Iterable[Batch]:
    """Return the batches, without a progress bar."""
    return batches

"""A citation graph of Cora's size: 2708 papers, 1433 words, 5278 links, 7 classes."""

from __future__ import annotations

import numpy as np
import torch

PAPERS, WORDS, LINKS, CLASSES, WORDS_OF_A_PAPER = 2708, 1433, 5278, 7, 18


def load_data() -> tuple[torch.Tensor, ...]:
    """Return adjacency, features, labels and the indices of the three sets."""
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=PAPERS)
    features = np.zeros((PAPERS, WORDS), np.float32)
    for paper, label in enumerate(labels):
        # A class prefers a part of the words.
        words = (rng.normal(label, 1.5, WORDS_OF_A_PAPER) * WORDS / CLASSES).astype(int)
        features[paper, words % WORDS] = 1
    features /= features.sum(1, keepdims=True)
    links = np.zeros((PAPERS, PAPERS), np.float32)
    by_class = np.argsort(labels)
    place = rng.integers(PAPERS, size=LINKS)
    other = (place + rng.integers(1, 200, size=LINKS)) % PAPERS
    links[by_class[place], by_class[other]] = 1
    links = np.maximum(links, links.T) + np.eye(PAPERS, dtype=np.float32)
    scale = links.sum(1) ** -0.5
    return (
        torch.from_numpy(links * scale[:, None] * scale),
        torch.from_numpy(features),
        torch.from_numpy(labels),
        torch.arange(140),
        torch.arange(200, 500),
        torch.arange(500, 1500),
    )

"""The few functions of scipy, scikit-learn and pandas that a dense fit calls."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np


class BaseEstimator:
    """The base of models."""


class spmatrix:  # noqa: N801
    """The base of sparse matrices, of which there are none here."""


class DataFrame:
    """A table, of which there are none here."""


class Series:
    """A column."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def map(self, function: type) -> Series:
        """Apply a function to each value."""
        return Series([function(value) for value in self.values])

    def unique(self) -> list[object]:
        """Return the distinct values."""
        return list(dict.fromkeys(self.values))


def issparse(array: np.ndarray) -> bool:
    """Tell whether an array is sparse."""
    return isinstance(array, spmatrix)


def csc_matrix(array: np.ndarray) -> np.ndarray:
    """Return the array as it is."""
    return array


def check_array(array: np.ndarray, *, accept_sparse: bool) -> np.ndarray:
    """Refuse what is no table of finite numbers."""
    del accept_sparse
    if array.ndim != 2 or not np.isfinite(array).all():
        message = "expected a table of finite numbers"
        raise ValueError(message)
    return array


def softmax(scores: np.ndarray, axis: int) -> np.ndarray:
    """Return the softmax of scores."""
    powers = np.exp(scores - scores.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def roc_auc_score(truth: np.ndarray, scores: np.ndarray) -> float:
    """Return the area under the curve of two classes, by ranks."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    ones = truth == np.max(truth)
    count, others = ones.sum(), (~ones).sum()
    return float((ranks[ones].sum() - count * (count + 1) / 2) / (count * others))


dok_matrix = lil_matrix = spmatrix
sparse = SimpleNamespace(issparse=issparse, csc_matrix=csc_matrix)
mean_squared_error = mean_absolute_error = accuracy_score = log_loss = None
balanced_accuracy_score = mean_squared_log_error = None

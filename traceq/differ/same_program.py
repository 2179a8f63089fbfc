"""Evidence that two recordings are of one program: what both have of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.ownership import named
from traceq.common.expressions import nth

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from traceq.model.trace import Trace

# Modules of torch itself are in most programs, and these functions, too.
_OF_TORCH = frozenset(
    {
        *("Linear", "Embedding", "LayerNorm", "RMSNorm", "GroupNorm", "Dropout"),
        *("Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "BatchNorm1d"),
        *("BatchNorm2d", "MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d", "Identity"),
        *("Sequential", "ModuleList", "ReLU", "ReLU6", "GELU", "SiLU", "Tanh"),
        *("Sigmoid", "Softmax", "LeakyReLU", "Flatten", "CrossEntropyLoss", "MSELoss"),
        *("BCELoss", "BCEWithLogitsLoss", "NLLLoss", "LSTM", "GRU", "RNN"),
        *("MultiheadAttention", "DataParallel", "DistributedDataParallel"),
        *("FullyShardedDataParallel", "OptimizedModule"),
    }
)
_OF_MANY = frozenset(
    {
        *("main", "<module>", "train", "train_step", "step", "forward", "__call__"),
        *("run", "__init__", "loss", "backward", "<lambda>", "<genexpr>", "<listcomp>"),
        *("generate", "evaluate", "softmax", "fit"),
    }
)
_WEIGHTED = ("aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d")
_TABLES = ("aten::embedding",)


def in_common(before: Trace, after: Trace) -> bool | None:
    """Return whether two recordings share something that only one program has.

    That is a class of modules, a function, or the shape of a weight. None where
    neither classes nor functions of both were recorded: a model of another width has
    other shapes.
    """
    pairs = [(own(before), own(after)) for own in (_modules, _functions, _weights)]
    if any(first & second for first, second in pairs):
        return True
    named_both = any(first and second for first, second in pairs[:2])
    return False if named_both else None


def _modules(trace: Trace) -> AbstractSet[object]:
    """Return the classes of modules that are not torch's."""
    paths = trace.ops["module"].drop_nulls().unique().cast(pl.String)
    names = paths.str.split("/").explode().str.replace(r"_\d+$", "").unique()
    return {str(name) for name in names} - _OF_TORCH


def _functions(trace: Trace) -> AbstractSet[object]:
    """Return the user's functions, but for those that many programs have.

    A file that was moved or renamed has the same functions.
    """
    names = trace.ops["function"].drop_nulls().unique().cast(pl.String)
    return {str(name) for name in names} - _OF_MANY


def _weights(trace: Trace) -> AbstractSet[object]:
    """Return the shapes of weights, which no size of a batch changes."""
    inputs = trace.ops.filter(named(trace.ops, _WEIGHTED))["inputs"].drop_nulls()
    tables = trace.ops.filter(named(trace.ops, _TABLES))["inputs"].drop_nulls()
    shapes = trace.inputs[["dims"]]
    second = shapes[inputs.unique()].select(nth("dims", 1)).to_series()
    first = shapes[tables.unique()].select(nth("dims", 0)).to_series()
    return {
        tuple(entry)
        for entry in [*second.drop_nulls(), *first.drop_nulls()]
        if len(entry) > 1
    }

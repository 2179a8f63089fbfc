"""Decode steps without CUDA graphs: the host time that goes, and advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time import device_syncs, host_activity, serving
from traceq.linter import Evidence, View, overlap

from ._shared import generates_with_transformers, static_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

_CALLS = (
    host_activity.LAUNCHES,
    "copies and sets",
    "allocating memory",
    "other runtime calls",
)
# What a model that runs as a CUDA graph does not do any more.
_OF_MODEL = (
    host_activity.DISPATCH,
    *_CALLS,
    host_activity.MODULES,
    host_activity.LIBRARY,
    host_activity.NO_STACKS,
)
_PYTHON = (host_activity.PYTHON, host_activity.WITH_LIBRARIES)
_TRANSFORMERS = (
    'generate(…, cache_implementation="static"), which compiles decode and replays it'
    " as a CUDA graph"
)
_OWN = (
    "run decode as a CUDA graph: write the KV cache in place at a fixed size and"
    " capture the step with torch.cuda.graph for each batch size, or"
    ' model.compile(mode="reduce-overhead")'
)
# One sync for each token is usual, and few more are where a prompt is read.
_SEVERAL = 1.5


def removed_spans(view: View, eager: pl.DataFrame) -> pl.DataFrame:
    """Return the host's time in the model's part of these iterations."""
    in_module = pl.col("module").is_not_null()
    if view.host_account.described.activities["module"].is_not_null().any():
        # What chooses a token and prepares the next forward pass stays.
        of_model = pl.col("kind").is_in([*_OF_MODEL, *_PYTHON]) & in_module
    else:
        of_model = pl.col("kind").is_in(_OF_MODEL)
    segments = view.host_account.of(of_model, "start", "end", "step", "kind").join(
        eager, on="step", how="semi"
    )
    gaps = serving.gaps_before(view.trace, eager).select("start", "end")
    # Without stacks, what Python does between iterations looks as the model's does.
    between = pl.col("kind") == host_activity.NO_STACKS
    inside = segments.with_columns(in_gap=overlap(segments, gaps))
    return inside.filter(
        ~(between & (2 * pl.col("in_gap") > pl.col("end") - pl.col("start")))
    ).select("start", "end")


def first_module(view: View, eager: pl.DataFrame, *, grows: bool) -> Sequence[Evidence]:
    """Return what forbids a graph as it is."""
    modules = []
    if grows:
        modules.append(Evidence("first", "a KV cache that grows by cat (SRV007)"))
    syncs = device_syncs.device_syncs(view.trace).join(eager, on="step", how="semi")
    each = syncs.height / max(1, int(eager["decodes"].fill_null(1).sum()))
    if each >= _SEVERAL:
        modules.append(
            Evidence("first", "syncs in the iteration", count=round(each, 1))
        )
    return modules


def advice(view: View, *, grows: bool) -> str:
    if grows or generates_with_transformers(view):
        return static_cache(view, _OWN, _TRANSFORMERS)
    return f"{_OWN}; in vLLM leave out --enforce-eager, in SGLang --disable-cuda-graph"

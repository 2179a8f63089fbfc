"""What the host takes without the profiler, where libraries search and load.

The model estimates the host from the events that were recorded, as if recording slowed
all of it down. A library that searches for an algorithm, or loads a kernel's code, does
so inside of one call and records nothing meanwhile: that time stays what it was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.recorder import recorder_stalls
from traceq.analysis.time.op_calls import op_calls, own_segments
from traceq.intervals import overlap

if TYPE_CHECKING:
    from traceq.analysis.replay.model import StepModel
    from traceq.trace import Trace


def unslowed(model: StepModel, trace: Trace) -> StepModel:
    """Return the model with searches and loading as long as they were recorded."""
    calls = op_calls(trace).filter(
        pl.col("excess") > 0, (pl.col("new") & pl.col("planned")) | pl.col("loads")
    )
    if not calls.height:
        return model
    beyond = int(calls["excess"].sum()) / int(calls["own"].sum())
    spans = own_segments(trace).join(calls.select("op"), on="op", how="semi")
    pieces = model.host
    inside = beyond * overlap(pieces, spans)
    length = pieces["end"] - pieces["start"]
    # The profiler's own time is no search: pieces are cut where it begins and ends.
    inside *= overlap(pieces, recorder_stalls(trace)) == 0
    # What the estimate leaves out of such time comes back.
    left_out = (1 - pieces["own"] / length).clip(lower_bound=0)
    return replace(
        model, host=pieces.with_columns(own=pl.col("own") + left_out * inside)
    )

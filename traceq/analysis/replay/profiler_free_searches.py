"""Host time of library searches and kernel loading, which the profiler does not slow.

The model estimates the host from the recorded events, as if recording slowed all of it
down. A library that searches for an algorithm, or loads a kernel's code, does so inside
one call and records nothing meanwhile: that time stays as recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec import structs

from traceq.analysis.base.profiler_overhead import recorder_stalls
from traceq.analysis.time.op_calls import op_calls, own_segments
from traceq.common.intervals import Cover

if TYPE_CHECKING:
    from traceq.analysis.replay.model import StepModel
    from traceq.model.trace import Trace


def unslowed(model: StepModel, trace: Trace) -> StepModel:
    """Return the model with library searches and loading as recorded."""
    calls = op_calls(trace).filter(
        pl.col("excess") > 0, (pl.col("new") & pl.col("planned")) | pl.col("loads")
    )
    if not calls.height:
        return model
    beyond = int(calls["excess"].sum()) / int(calls["own"].sum())
    spans = own_segments(trace).join(calls.select("op"), on="op", how="semi")
    pieces = model.host
    edges = pl.concat([pieces["start"][:1], pieces["end"]])
    # Searches are in few of the pieces.
    inside = Cover(spans).between(edges)
    # The profiler's own time is no search: pieces are cut where it begins and ends.
    stalled = Cover(recorder_stalls(trace)).between(edges)["part"]
    part, covered = inside.filter(~inside["part"].is_in(stalled.implode()))
    some = pieces[part]
    # What the estimate leaves out of such time comes back.
    left_out = (1 - some["own"] / (some["end"] - some["start"])).clip(lower_bound=0)
    own = some["own"] + left_out * (beyond * covered)
    return structs.replace(
        model,
        host=pieces.with_columns(pieces["own"].clone().scatter(part, own)),
    )

"""Calls of operators that take the host far longer than others of their kind."""

from __future__ import annotations

import polars as pl

from traceq.analysis.base import ownership
from traceq.linter import Evidence, View, fill_false, has_like

from ._cpu_tensors import on_fresh_pages
from ._shared import settled

_SUMS = ("excess", "own", "idle", "usual")
LOADING, UNKNOWN = "loading", "unknown"
# The region in which a batch of a DataLoader with workers is taken.
_OF_WORKERS = "#_MultiProcessingDataLoaderIter"
# Slow calls of this many ops, at different places, have nothing in common but the host.
SPREAD = 3
# Stalls are alike if they differ by no more than this. Heuristic threshold: one trace
# had four of 2.00 to 2.04 ms, a scheduler's time slice, among others of 0.1 to 2.4 ms.
_ALIKE = 0.1


def slow_calls(view: View, slow: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that were slow for another reason than a new shape.

    A slow call inside of another is one with it: nothing but the moment makes both of
    them slow. ``ops`` are all of them. One that asks the driver for memory is MEM001's.
    Work on large tensors in host memory is left out: in fresh pages it takes longer
    than in those of a tensor before.
    """
    slow = settled(view, slow)
    # Whatever the allocator does around its calls to the driver comes with them.
    asked = view.runtime["op"].filter(fill_false(view.runtime["call"] == "allocation"))
    slow = slow.filter(~slow["op"].is_in(asked.drop_nulls().implode()))
    slow = slow.filter(~slow["op"].is_in(on_fresh_pages(view, slow).implode()))
    around = ownership.inside(view.trace, slow["id"])
    nested = around[slow["parent"]].is_not_null()
    if nested.any():
        around = ownership.inside(view.trace, slow["id"].filter(~nested))
    call = around[slow["id"]]
    whole = slow.group_by(call=call).agg(
        pl.col(_SUMS).sum(), pl.col("loads").any(), ops=pl.col("id")
    )
    why = pl.when("loads").then(pl.lit(LOADING)).otherwise(pl.lit(UNKNOWN))
    return (
        slow.drop(*_SUMS, "loads")
        .join(whole, left_on="id", right_on="call", maintain_order="left")
        .with_columns(why=why)
    )


def contention(view: View) -> str:
    """Say what may take the processor away, of what the program is known to have."""
    workers = "DataLoader workers and " if _has_workers(view) else ""
    return (
        f"look for what takes the processor away: more {workers}threads of libraries"
        " than cores (OMP_NUM_THREADS, torch.set_num_threads), other processes on the"
        " machine, a thread that holds Python's lock, Python's garbage collector"
        " (gc.freeze() after setting up)"
    )


def _has_workers(view: View) -> bool:
    """Return whether a DataLoader with workers hands over batches in the trace."""
    return has_like(view.trace.annotations, _OF_WORKERS)


def median(times: pl.Series) -> float:
    return float(times.cast(pl.Float64).quantile(0.5, "linear") or 0.0)


def turns(stalls: pl.Series) -> list[Evidence]:
    """Say that stalls are as long as each other, as turns of the scheduler's are."""
    middle = median(stalls)
    alike = stalls.filter((stalls - middle).abs() <= _ALIKE * middle)
    if len(alike) < SPREAD or 2 * len(alike) <= len(stalls):
        return []
    note = (
        "longer than usual, as recorded, whatever the op: as if another process had"
        " the core"
    )
    name = f"{len(alike)} of {len(stalls)} take"
    return [Evidence("alike", name, value=median(alike), unit="ns", note=note)]

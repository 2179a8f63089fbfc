"""Simulation of the steps by native code, where it is used.

Each function returns None where it is not, and for columns that it does not take; then
simulation.py does the same in Polars, several times slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.native import _native
from traceq.native.columns import native_columns, to_series

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_GROUP = 2**32 - 1
"""In place of a group where there is none."""
# The types of the columns, as replay.c has them.
_STEPS, _ORDER, _WAITS = "ggIgIIgggII", "IIIIIIgg", "llIIllllgg"
_SPANS = ["start", "end", "at", "activity"]
_PIECES = ["first", "count", "start", "end", "worked", "share"]


class Steps(NamedTuple):
    """The host's work and the GPU's work in a run."""

    worked: pl.Series
    """Cumulative host work at each edge of its pieces of time."""
    stays: pl.Series
    """Remaining fraction of each work item's duration."""
    launch: pl.Series
    """The edge at which each work item was launched."""
    late: pl.Series
    """Time from that edge to the launch, where the launch is after the last edge."""
    epoch: pl.Series
    """The epoch of the launch: the time between two blocking calls."""
    group: pl.Series
    """The group that the work item is in."""
    latency: pl.Series
    """Time from its launch to its start."""
    gap: pl.Series
    """Time from the end of the work before it to its start."""
    dur: pl.Series
    """Its duration."""
    wait_start: pl.Series
    """The edges at which blocking calls begin."""
    wait_end: pl.Series
    """The edges at which they end."""


class Order(NamedTuple):
    """The groups of work and the blocking calls, in the order of the simulation."""

    group: pl.Series
    """Of each in order, a group; none for a blocking call, which ends the epoch."""
    lane: pl.Series
    """The group's stream."""
    epoch: pl.Series
    """The group's epoch, or the one that the call ends."""
    after: pl.Series
    """The group of another stream that it comes after."""
    waits_for: pl.Series
    """The group that each blocking call waits for; none if it waits for all."""
    blocks: pl.Series
    """1 if the call blocks, else 0."""
    resume: pl.Series
    """Time from the end of the wait until the host goes on."""
    behind: pl.Series
    """Time at which each lane finishes the work before the steps."""


class Played(NamedTuple):
    """The result of a run."""

    took: float
    """Duration of the last round."""
    host: pl.Series
    """Start of each epoch of that round on the host."""
    entered: pl.Series
    """Earliest start of each group of work, launches aside."""


def worked(own: pl.Series, left: pl.Series, scale: float) -> pl.Series | None:
    """Return the cumulative host work at each edge, with these fractions of it left."""
    if (columns := native_columns("gg", (own, left))) is None:
        return None
    own, left = columns
    return to_series(_native.worked(own, left, scale))


def played(
    steps: Steps, order: Order, groups: int, scale: float, rounds: int
) -> Played | None:
    """Return the simulated steps, with the GPU at this speed."""
    of_steps, of_order = native_columns(_STEPS, steps), native_columns(_ORDER, order)
    if of_steps is None or of_order is None:
        return None
    took, host, entered = _native.played(of_steps, of_order, groups, scale, rounds)
    return Played(took, to_series(host), to_series(entered))


def timeline(
    steps: Steps, host: pl.Series, entered: pl.Series, scale: float
) -> list[pl.Series] | None:
    """Return ``host_ns``, ``begin``, ``done`` and ``by_launch`` of each work."""
    of_steps, run = native_columns(_STEPS, steps), native_columns("gg", (host, entered))
    if of_steps is None or run is None:
        return None
    names = ("host_ns", "begin", "done", "by_launch")
    host, entered = run
    timelines = _native.timeline(of_steps, host, entered, scale)
    return [
        to_series(column).alias(name)
        for name, column in zip(names, timelines, strict=True)
    ]


def waits(
    spans: pl.DataFrame,
    pieces: pl.DataFrame,
    changes: Sequence[tuple[pl.DataFrame, float]],
    activities: int,
    shortest: float,
) -> pl.DataFrame | None:
    """Return the GPU's wait for each activity: ``activity``, ``time``, ``calls``.

    ``spans`` are those of the host's time, ``pieces`` those of idle_account.py. The
    changes are when the host does what they remove, and which share of it.
    """
    columns = native_columns(_WAITS, [*spans[_SPANS], *pieces[_PIECES]])
    removed = []
    for cover, share in changes:
        if (times := native_columns("ll", cover[["start", "end"]])) is None:
            return None
        start, end = times
        removed.append((start, end, share))
    if columns is None:
        return None
    last = spans["at"].max()
    nodes = last + 1 if isinstance(last, int) else 0
    made = _native.waits(columns, tuple(removed), activities, nodes, shortest)
    time, calls = map(to_series, made)
    waited = (calls > 0).arg_true()
    return pl.DataFrame(
        {"activity": waited, "time": time[waited], "calls": calls[waited]}
    )

"""Replay of the steps by compiled code, where it was built.

Each function returns None where it was not built, and for columns that it does not
take; then simulation.py does the same in Polars, several times slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.common.native_loading import Arrow, usable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

try:
    from traceq.analysis.replay import _play
except ImportError:  # it was not built
    _play = None  # type: ignore[assignment]  # a module, where it was

# What was built of another state of its source is left alone.
_INTERFACE = 3

NO_GROUP = 2**32 - 1
"""In place of a group where there is none."""
_NUMBERS = (pl.Float64, pl.UInt32)
_SPANS = ("start", "end", "at", "thing")
_PIECES = ("first", "count", "start", "end", "worked", "share")


class Steps(NamedTuple):
    """The host's work and the GPU's work in a run."""

    worked: pl.Series
    """How much the host has worked at each edge of its pieces of time."""
    stays: pl.Series
    """Which part of the time of each piece of work is left."""
    launch: pl.Series
    """The edge at which it was launched."""
    late: pl.Series
    """How much later than the last edge that was."""
    epoch: pl.Series
    group: pl.Series
    latency: pl.Series
    gap: pl.Series
    dur: pl.Series
    wait_start: pl.Series
    """The edges at which blocking calls begin."""
    wait_end: pl.Series
    """Where they end."""


class Order(NamedTuple):
    """What is gone through one after the other."""

    group: pl.Series
    """Of each in order, a group; none for a blocking call, which ends the epoch."""
    lane: pl.Series
    epoch: pl.Series
    after: pl.Series
    """The group that it comes after."""
    waits_for: pl.Series
    """The group that each blocking call waits for; none if it waits for all."""
    blocks: pl.Series
    """Whether it blocks."""
    resume: pl.Series
    """How long the host takes to go on."""
    behind: pl.Series
    """When each lane is done with what was before."""


class Played(NamedTuple):
    """The result of a run."""

    took: float
    """How long the last round took."""
    host: pl.Series
    """When the host began each epoch of it."""
    entered: pl.Series
    """When each group of work could begin, launches aside."""


def available() -> bool:
    """Return whether compiled code is available."""
    return usable(_play, _INTERFACE)


def worked(own: pl.Series, left: pl.Series, scale: float) -> pl.Series | None:
    """Return how much the host has worked at each edge, with these parts of it left."""
    if not _are_taken(own, left):
        return None
    return pl.Series(Arrow(*_play.worked(own.rechunk(), left.rechunk(), scale)))


def played(
    steps: Steps, order: Order, groups: int, scale: float, rounds: int
) -> Played | None:
    """Return the result of a run, with the GPU at this speed."""
    if not _are_taken(*steps, *order):
        return None
    of_steps, of_order = (
        tuple(one.rechunk() for one in given) for given in (steps, order)
    )
    took, host, entered = _play.played(of_steps, of_order, groups, scale, rounds)
    return Played(took, pl.Series(Arrow(*host)), pl.Series(Arrow(*entered)))


def timeline(
    steps: Steps, host: pl.Series, entered: pl.Series, scale: float
) -> list[pl.Series] | None:
    """Return ``host_ns``, ``begin``, ``done`` and ``by_launch`` of each work."""
    if not _are_taken(*steps, host, entered):
        return None
    columns = tuple(one.rechunk() for one in steps)
    made = _play.timeline(columns, host.rechunk(), entered.rechunk(), scale)
    names = ("host_ns", "begin", "done", "by_launch")
    columns_made = zip(names, made, strict=True)
    return [pl.Series(Arrow(*one)).alias(name) for name, one in columns_made]


def waits(
    spans: pl.DataFrame,
    pieces: pl.DataFrame,
    changes: Sequence[tuple[pl.DataFrame, float]],
    things: int,
    shortest: float,
) -> pl.DataFrame | None:
    """Return how long the GPU waits for each thing: ``thing``, ``time``, ``calls``.

    ``spans`` are those of the host's time, ``pieces`` those of idle_account.py. The
    changes are when the host does what they remove, and which share of it.
    """
    columns = [*(spans[name] for name in _SPANS), *(pieces[name] for name in _PIECES)]
    covers = [cover for cover, _ in changes]
    removed = [one for cover in covers for one in cover.get_columns()]
    if not _are_taken(*columns, *removed, dtypes=(*_NUMBERS, pl.Int64)):
        return None
    last = spans["at"].max()
    made = _play.waits(
        tuple(one.rechunk() for one in columns),
        tuple(
            (cover["start"].rechunk(), cover["end"].rechunk(), share)
            for cover, share in changes
        ),
        things,
        last + 1 if isinstance(last, int) else 0,
        shortest,
    )
    time, calls = (pl.Series(Arrow(*one)) for one in made)
    waited = (calls > 0).arg_true()
    return pl.DataFrame({"thing": waited, "time": time[waited], "calls": calls[waited]})


def _are_taken(
    *columns: pl.Series, dtypes: Collection[pl.DataType | type[pl.DataType]] = _NUMBERS
) -> bool:
    return available() and all(
        one.dtype in dtypes and not one.null_count() for one in columns
    )

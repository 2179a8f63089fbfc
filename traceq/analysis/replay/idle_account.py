"""What the host does while the GPU waits for it, entry by entry of its account.

Of the steps as they go without the profiler, and after changes where there are any. The
GPU waits for a launch while the host does what comes before it, so on the host's own
clock, which counts how much it has worked, a wait is the stretch that ends with the
launch. What a change removes has no length on that clock: nothing is counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import polars as pl

from traceq.analysis.replay.bottleneck import late_work
from traceq.analysis.time.host_kinds import UNKNOWN
from traceq.intervals import disjoint, overlap
from traceq.outcome import MOST_LINES, Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.replay.host_account import HostAccount
    from traceq.analysis.replay.simulation import Change, Replay, TimeScale
    from traceq.trace import Trace

_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")
_LINE = ("kind", "name", "file", "line", "function")


@dataclass(frozen=True)
class IdleAccount:
    """What the host does while the GPU waits for it."""

    segments: pl.DataFrame
    """The host's segments in which the GPU waits, as the account has them, with
    ``waits``: how long it does in all steps, in ns."""
    steps: int
    idle_ns: float
    """How long the GPU waits for the host in a step."""
    step_ns: float
    """What a step takes."""

    @cached_property
    def kinds(self) -> pl.DataFrame:
        """By ``kind``: ``time`` per step and ``calls``, longest first."""
        return self._by("kind")

    @cached_property
    def lines(self) -> pl.DataFrame:
        """By kind, name and place: ``time`` per step and ``calls``, longest first."""
        return self._by(*_LINE)

    @property
    def kind_rows(self) -> list[tuple[str, float]]:
        """Kind and time per step."""
        return self.kinds.select("kind", "time").rows()

    @property
    def line_rows(self) -> list[dict[str, Any]]:
        """The longest of the lines, by column."""
        return self.lines.head(MOST_LINES).rows(named=True)

    @property
    def largest(self) -> Entry | None:
        """The kind that takes longest, with its largest line."""
        kinds = self.kinds
        if not kinds.height:
            return None
        kind, ns, calls = kinds.row(0)
        *line, line_ns, _ = self.lines.filter(pl.col("kind") == kind).row(0)
        _, name, file, number, function = line
        return Entry(kind, ns, calls, name, file, number, function, line_ns)

    def _by(self, *keys: str) -> pl.DataFrame:
        return (
            self.segments.group_by(keys)
            .agg(
                time=pl.col("waits").sum() / self.steps,
                calls=pl.col("at").n_unique() / self.steps,
            )
            .sort("time", *keys, descending=[True, *(False for _ in keys)])
        )


def idle_account(
    trace: Trace,
    replay: Replay,
    scale: TimeScale,
    account: HostAccount,
    changes: Sequence[Change] = (),
) -> IdleAccount:
    """Return what the host does while the GPU waits, at this speed, after changes."""
    late = late_work(trace, replay, scale, changes)
    clock = _clock(account.segments, replay, scale, changes)
    waits = overlap(clock.spans, _waits(late.work, clock.whole))
    known = float(waits.sum())
    # Where the trace does not show what the host did, it is the same all over.
    each = late.idle_ns / (known or max(1, len(waits)))
    segments = account.segments.with_columns(
        waits=waits * each if known else pl.lit(each),
        kind=pl.col("kind") if known else pl.lit(UNKNOWN),
    )
    return IdleAccount(
        segments.filter(pl.col("waits") > 0),
        replay.model.steps,
        late.idle_ns / replay.model.steps,
        late.step_ns,
    )


class _Clock(NamedTuple):
    """The host's own clock, which counts how much it has worked."""

    spans: pl.DataFrame
    """When each segment is on it: ``start`` and ``end``."""
    whole: float
    """How much the host works in all steps."""


def _clock(
    segments: pl.DataFrame, replay: Replay, scale: TimeScale, changes: Sequence[Change]
) -> _Clock:
    """Return when segments are on the host's own clock.

    The replay counts the host's work in pieces of time; what is left of a piece is
    spread over its segments, less over those that the changes remove.
    """
    edges, worked = replay.host_time(scale, changes)
    middle = (segments["start"] + segments["end"]) // 2
    piece = edges.search_sorted(middle, side="right").cast(pl.Int64) - 1
    piece = piece.clip(0, max(0, len(edges) - 2))
    length = (segments["end"] - segments["start"]) * _left(segments, changes)
    reached = length.cum_sum()
    # Segments are in order: those of a piece are next to each other.
    first, after = (piece.search_sorted(piece, side=side) for side in _SIDES)
    base = reached[first] - length[first]
    whole = reached[after.cast(pl.Int64) - 1] - base
    begin, end = worked[piece], worked[piece + 1]
    rate = ((end - begin) / whole).fill_nan(0)
    done = begin + (reached - base) * rate
    return _Clock(
        pl.DataFrame({"start": done - length * rate, "end": done}), float(worked[-1])
    )


def _left(segments: pl.DataFrame, changes: Sequence[Change]) -> pl.Series:
    """Return which part of each segment the changes leave."""
    left = pl.repeat(1.0, segments.height, dtype=pl.Float64, eager=True)
    length = (segments["end"] - segments["start"]).cast(pl.Float64)
    for change in changes:
        if change.host_share and change.spans.height:
            less = 1 - change.host_share * overlap(segments, change.spans) / length
            left = less.zip_with(less < left, left)
    return left


def _waits(late: pl.DataFrame, whole: float) -> pl.DataFrame:
    """Return when, on the host's own clock, the GPU waits; each instant once.

    What the GPU waits for before the first launch began in the round before.
    """
    spans = late.select(start=pl.col("host_ns") - pl.col("idle"), end="host_ns")
    before = spans.filter(pl.col("start") < 0).select(
        start=(pl.col("start") + whole).clip(lower_bound=0), end=pl.lit(whole)
    )
    inside = spans.with_columns(pl.col("start").clip(lower_bound=0))
    return disjoint(pl.concat([inside, before])).filter(pl.col("end") > pl.col("start"))

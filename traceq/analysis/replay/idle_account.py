"""Host activity while the GPU waits for it, by entry of the host account.

The steps are those without the profiler, with changes applied if there are any. The GPU
waits for a launch while the host does the work before it, so on the host's own clock,
which counts how much it has worked, a wait is the interval that ends with the launch.
Work that a change removes has no length on that clock: nothing counts twice.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec import Struct

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.replay import native_simulation
from traceq.analysis.replay.bottleneck import late_work
from traceq.analysis.time.host_activity import LOADING, UNKNOWN
from traceq.common.intervals import count_before, count_until, covered_until, disjoint
from traceq.model.lint_report import MOST_LINES, HostTimeEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.replay.host_account import HostAccount
    from traceq.analysis.replay.simulation import Change, Replay, TimeScale
    from traceq.model.trace import Trace

_LINE = ("kind", "name", "file", "line", "function")
# This many pieces of the host's time at once: their spans fit the processor's cache.
_AT_ONCE = 10_000
# Shorter waits, in ns, are of rounding.
_SHORTEST = 1e-3
_PARTS_OF_NS = 1024
_EARLIEST, _LATEST = -(2**63), 2**63 - 1


class IdleAccount(Struct, frozen=True, dict=True):
    """The host's activity while the GPU waits for it.

    How long it waits is known at once; what the host does then is found when that is
    asked for, as of most changes only the first is.
    """

    steps: int
    idle_ns: float
    """Time per step that the GPU waits for the host."""
    step_ns: float
    """Duration of a step."""
    waits: Waits
    """The host's activity in that time, computed on demand."""

    @cached_property
    def kinds(self) -> pl.DataFrame:
        """By ``kind``: ``time`` per step and ``calls``, longest first."""
        return self._by("kind")

    @property
    def lasting(self) -> pl.DataFrame:
        """The same without the loading of kernels, which passes by itself."""
        return self.kinds.filter(pl.col("kind") != LOADING)

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
    def largest(self) -> HostTimeEntry | None:
        """The kind that takes longest, with its largest line."""
        kinds = self.kinds
        if not kinds.height:
            return None
        kind, ns, calls = kinds.row(0)
        *line, line_ns, _ = self.lines.filter(pl.col("kind") == kind).row(0)
        _, name, file, number, function = line
        return HostTimeEntry(kind, ns, calls, name, file, number, function, line_ns)

    def _by(self, *keys: str) -> pl.DataFrame:
        return (
            self._activities.group_by(keys)
            # A call is one activity of a kind: it does not count twice.
            .agg(_exact_sum("time"), pl.col("calls").sum())
            .sort("time", *keys, descending=[True, *(False for _ in keys)])
        )

    @cached_property
    def _activities(self) -> pl.DataFrame:
        """The activities that the GPU waits for: ``time`` and ``calls`` per step."""
        activities = self.waits.activities(self.idle_ns * self.steps)
        return activities.with_columns(pl.col("time", "calls") / self.steps)


class Waits(Struct, frozen=True):
    """The GPU's waits for the host, and the host's activity in them."""

    host: HostAccount
    pieces: pl.DataFrame
    """The pieces of the host's time in which the GPU waits: see ``_waited_pieces``."""
    changes: tuple[Change, ...]
    """The changes applied to the steps, without those of the GPU alone."""

    def activities(self, idle_ns: float) -> pl.DataFrame:
        """Return the activities that the GPU waits for, scaled to this total wait.

        ``kind``, ``name``, ``file``, ``line`` and ``function`` of each activity,
        ``time`` and ``calls``, those of it that the GPU waits for.
        """
        spans = self.host.spans
        activities = self.host.described.activities.select(_LINE)
        by_activity = self._by_activity(spans, activities.height)
        if not by_activity.height:
            # Where the trace does not show what the host did, it is the same all over.
            activities = activities.with_columns(kind=pl.lit(UNKNOWN))
            by_activity = _summed(spans.select("activity", "at", waits=pl.lit(1.0)))
        whole = by_activity.select(_exact_sum("time")).item()
        each = idle_ns / float(whole or 1)
        by_activity = by_activity.with_columns(pl.col("time") * each).filter(
            pl.col("time") > 0
        )
        texts = [column for column in _LINE if column != "line"]
        named = activities.select(pl.all().gather(by_activity["activity"]))
        return named.with_columns(
            pl.col(texts).cast(pl.String), by_activity["time"], by_activity["calls"]
        )

    def _by_activity(self, spans: pl.DataFrame, activities: int) -> pl.DataFrame:
        """Return ``activity``, ``time`` and ``calls``, as far as the GPU waits."""
        changes = [(change.cover.spans, change.host_share) for change in self.changes]
        native = native_simulation.waits(
            spans, self.pieces, changes, activities, _SHORTEST
        )
        if native is not None:
            return native
        nothing = spans.clear().select("activity", "at", waits=pl.lit(0.0))
        parts = (
            _waited(spans, some, self.changes)
            for some in self.pieces.iter_slices(_AT_ONCE)
        )
        return _summed(pl.concat([nothing, *parts]))


def idle_account(
    trace: Trace,
    replay: Replay,
    scale: TimeScale,
    account: HostAccount,
    changes: Sequence[Change] = (),
) -> IdleAccount:
    """Return the host's activity while the GPU waits, at this speed, after changes."""
    late = late_work(trace, replay, scale, changes)
    steps = replay.model.steps
    changed = tuple(
        change for change in changes if change.host_share and change.spans.height
    )
    pieces = _waited_pieces(account.spans, late.work, replay, scale, changed)
    return IdleAccount(
        steps=steps,
        idle_ns=late.idle_ns / steps,
        step_ns=late.step_ns,
        waits=Waits(account, pieces, changed),
    )


def _waited_pieces(
    spans: pl.DataFrame,
    late: pl.DataFrame,
    replay: Replay,
    scale: TimeScale,
    changes: Sequence[Change],
) -> pl.DataFrame:
    """Return the pieces of the host's time in which the GPU waits, in order.

    ``first`` and ``count`` are the spans of a piece, as far as they lie between
    ``start`` and ``end``; ``worked`` is how long the host works in it, and ``share``
    the part of that in which the GPU waits.
    """
    edges, worked = replay.host_time(scale, changes)
    waited = covered_until(_waits(late, float(worked[-1])), worked).diff()[1:]
    pieces = _spans_in(edges, spans)
    some = (pieces["count"] > 0) & (waited > 0)
    took, waited = worked.diff()[1:].filter(some), waited.filter(some)
    return pieces.filter(some).hstack(
        [took.alias("worked"), waited.alias("waited"), (waited / took).alias("share")]
    )


@cached_per_trace
def _spans_in(edges: pl.Series, spans: pl.DataFrame) -> pl.DataFrame:
    """Return ``first`` and ``count`` of the spans in each piece, and its extent.

    Spans and pieces are in order, so those of a piece are next to each other. The
    first and the last piece have what lies outside of all of them.
    """
    inner = edges[1:-1]
    over = count_until(spans["end"], inner).cast(pl.Int64)
    begun = count_before(spans["start"], inner).cast(pl.Int64)
    first = pl.concat([pl.Series([0]), over])
    return pl.DataFrame(
        {
            "first": first,
            "count": pl.concat([begun, pl.Series([spans.height])]) - first,
            "start": pl.concat([pl.Series([_EARLIEST]), inner]),
            "end": pl.concat([inner, pl.Series([_LATEST])]),
        }
    )


def _waited(
    host: pl.DataFrame, pieces: pl.DataFrame, changes: Sequence[Change]
) -> pl.DataFrame:
    """Return the spans of pieces: ``activity``, ``at`` and how long the GPU ``waits``.

    The replay counts the host's work in pieces of time; what is left of a piece is
    spread over its spans, less over those that the changes remove. A wait ends with
    a launch, and with each launch a piece ends, so where the GPU waits for a part of a
    piece, that is the last part of it.
    """
    count, worked, share = pieces["count"], pieces["worked"], pieces["share"]
    after = count.cum_sum()
    part = _repeated(count)
    row = (pieces["first"] - after + count)[part] + pl.arange(len(part), eager=True)
    spans = host.select(
        pl.col("start", "end", "activity", "at").gather(row)
    ).with_columns(
        start=pl.max_horizontal("start", pieces["start"][part]),
        end=pl.min_horizontal("end", pieces["end"][part]),
    )
    length = (spans["end"] - spans["start"]) * _left(spans, part, after, changes)
    # Each piece for itself and one span after the other, as compiled code adds: to the
    # last digit the same.
    each = pl.DataFrame([length.alias("length"), part.alias("piece")])
    reached = each.select(pl.col("length").cum_sum().over("piece")).to_series()
    whole = reached[after - 1]
    since = whole - whole * share
    # Of a piece that the changes remove, nothing is left to wait for.
    rate = (worked / whole).zip_with(whole > 0, pl.Series([0.0]))
    waited = reached - since[part]
    waits = waited.zip_with(waited < length, length) * rate[part]
    waited_spans = spans.select("activity", "at", waits.alias("waits"))
    return waited_spans.filter(pl.col("waits") > _SHORTEST)


def _exact_sum(column: str) -> pl.Expr:
    """Return a sum of nanoseconds that does not depend on their order.

    They are added as whole numbers, of parts of a nanosecond that nobody can measure.
    """
    parts = (pl.col(column) * _PARTS_OF_NS).round().cast(pl.Int64, strict=False)
    return (parts.sum() / _PARTS_OF_NS).alias(column)


def _summed(waited: pl.DataFrame) -> pl.DataFrame:
    # sum() adds in an order of its own.
    return (
        waited.group_by("activity", maintain_order=True)
        .agg(time=pl.col("waits").cum_sum().last(), calls=pl.col("at").n_unique())
        .sort("activity")
    )


def _left(
    spans: pl.DataFrame, column: pl.Series, after: pl.Series, changes: Sequence[Change]
) -> pl.Series:
    """Return the fraction of each span that the changes leave.

    ``piece`` is the one that a span is in, ``after`` where each piece ends.
    """
    left = pl.repeat(1.0, spans.height, dtype=pl.Float64, eager=True)
    whole = pl.DataFrame(
        {
            "start": spans["start"][after.shift(1, fill_value=0)],
            "end": spans["end"][after - 1],
        }
    )
    for change in changes:
        # Most changes are in few pieces.
        rows = (change.cover.of(whole) > 0)[column].arg_true()
        some = spans[rows]
        length = some["end"] - some["start"]
        less = 1 - change.host_share * change.cover.of(some) / length
        before = left[rows]
        left = left.scatter(rows, less.zip_with(less < before, before))
    return left


def _repeated(count: pl.Series) -> pl.Series:
    """Return the number of each piece, as often as it has spans.

    >>> _repeated(pl.Series([2, 1])).to_list()
    [0, 0, 1]
    """
    number = pl.arange(len(count), dtype=pl.UInt32, eager=True)
    return number.repeat_by(count).explode()


def _waits(late: pl.DataFrame, whole: float) -> pl.DataFrame:
    """Return the GPU's waits on the host's own clock; each instant counts once.

    What the GPU waits for before the first launch began in the round before.
    """
    spans = late.select(start=pl.col("host_ns") - pl.col("idle"), end="host_ns")
    before = spans.filter(pl.col("start") < 0).select(
        start=(pl.col("start") + whole).clip(lower_bound=0), end=pl.lit(whole)
    )
    inside = spans.with_columns(pl.col("start").clip(lower_bound=0))
    return disjoint(pl.concat([inside, before])).filter(pl.col("end") > pl.col("start"))

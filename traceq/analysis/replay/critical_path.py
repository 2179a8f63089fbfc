"""Critical path of a step: the chain in which each event waits for the one before.

The replay knows when everything begins and which of the things it waited for was done
last. Walked back from the end, these are the critical path; speeding up anything off it
saves nothing.

The walk goes from link to link. A link is either a run of work on one stream in which
each piece begins as the one before it ends, or an epoch of the host, from one blocking
call to the next. Each run of work and each epoch is visited at most once, so the walk
ends; where the times of a trace contradict each other it would go in a circle, and
stops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.analysis.time.idle_causes import causes_in
from traceq.common.expressions import text
from traceq.common.intervals import disjoint

if TYPE_CHECKING:
    from traceq.analysis.replay.simulation import Replay, TimeScale
    from traceq.model.trace import Trace


@dataclass(frozen=True)
class CriticalPath:
    """The critical path of a step; times are per step."""

    kernels: pl.DataFrame
    """The GPU's part: ``name``, ``file``, ``line``, ``function``, ``calls``, ``time``,
    longest first."""
    host: pl.DataFrame
    """The host's part: ``cause``, what it did, and ``time``, longest first."""
    gpu_ns: float
    """Duration of the GPU's part, with the gaps between its kernels."""
    host_ns: float
    complete: bool
    """True if the path reaches the beginning of the step."""


def critical_path(trace: Trace, replay: Replay, scale: TimeScale) -> CriticalPath:
    """Return the critical path of the last of the steps that follow each other."""
    path = _Path(replay, scale)
    links, complete = path.links()
    steps = replay.model.steps
    on_host = pl.DataFrame(
        [link for link in links if isinstance(link, _HostLink)],
        schema={"start": pl.Int64, "end": pl.Int64, "time": pl.Float64},
        orient="row",
    )
    host_ns = float(on_host["time"].sum()) / steps
    causes = causes_in(trace, disjoint(on_host.select("start", "end")))
    total = max(1, int(causes["time"].sum()))
    rows = [row for link in links if isinstance(link, _GpuLink) for row in link.rows]
    return CriticalPath(
        kernels=_kernels(trace, path.work, rows, steps),
        host=causes.with_columns(pl.col("time") / total * host_ns),
        gpu_ns=max(0.0, replay.run(scale=scale).step_ns - host_ns),
        host_ns=host_ns,
        complete=complete,
    )


def _kernels(
    trace: Trace, work: pl.DataFrame, rows: list[int], steps: int
) -> pl.DataFrame:
    chosen = work.select(
        pl.col("id", "begin", "done").gather(pl.Series(rows, dtype=pl.UInt32))
    )
    place = trace.kernels.select("name", "file", "line", "function")
    return (
        place.select(pl.all().gather(chosen["id"]))
        .with_columns(text("name"), text("file"), text("function"))
        .with_columns(time=chosen["done"] - chosen["begin"])
        .group_by("name", "file", "line", "function")
        .agg(calls=pl.len() / steps, time=pl.col("time").sum() / steps)
        .sort("time", "name", "file", "line", descending=[True, *[False] * 3])
    )


@dataclass(frozen=True)
class _Work:
    """A place on the path: this row of the GPU's work has just been done."""

    row: int


@dataclass(frozen=True)
class _Host:
    """A place on the path: the host is at this moment, as recorded, of an epoch."""

    epoch: int
    moment: int


class _GpuLink(NamedTuple):
    """Work of one stream, each piece begun as the one before it ended."""

    rows: range | list[int]


class _HostLink(NamedTuple):
    """The host at work, as recorded, and how long that takes in the replay."""

    start: int
    end: int
    time: float


class _Path:
    """The links of a critical path, found from the end of the step backwards."""

    def __init__(self, replay: Replay, scale: TimeScale) -> None:
        self.work = replay.timeline(scale)
        self._lanes = self.work["lane"].to_list()
        self._by_launch = self.work["by_launch"].to_list()
        self._done = self.work["done"].to_list()
        self._after = self.work["after"].to_list()
        self._launched_at = self.work["launched_at"].to_list()
        self._epochs = self.work["epoch"].to_list()
        self._first = _first_of_runs(self.work)
        waits = replay.model.waits
        self._blocked = waits["start"].to_list()
        self._resumed = waits["end"].to_list()
        self._waits_for = waits["waits_for"].to_list()
        self._edges, self._worked = replay.host_time(scale)
        self._host = [*replay.run(scale=scale).host]

    def links(self) -> tuple[list[_GpuLink | _HostLink], bool]:
        """Return the links, last first, and whether they reach the beginning."""
        links: list[_GpuLink | _HostLink] = []
        runs: set[int | None] = set()
        epochs: set[int] = set()
        place: _Work | _Host | None = self._last()
        while place is not None:
            link: _GpuLink | _HostLink
            if isinstance(place, _Work):
                run = self._first[place.row]
                if run in runs:
                    return links, False
                runs.add(run)
                link, place = self._gpu_link(place)
            else:
                if place.epoch in epochs:
                    return links, False
                epochs.add(place.epoch)
                link, place = self._host_link(place)
            links.append(link)
        return links, True

    def _last(self) -> _Work | _Host:
        """Return the end of the step: the host, or the GPU work that ends last."""
        host = _Host(len(self._blocked), self._edges[-1])
        last = max(range(len(self._done)), key=self._done.__getitem__, default=None)
        if last is None or self._done[last] < self._reached(host):
            return host
        return _Work(last)

    def _gpu_link(self, place: _Work) -> tuple[_GpuLink, _Work | _Host | None]:
        """Return the run of work that ends here, and what its first one waited for."""
        first = self._first[place.row]
        if first is None:
            lane = self._lanes[place.row]
            rows = [row for row in range(place.row + 1) if self._lanes[row] == lane]
            return _GpuLink(rows), None
        link = _GpuLink(range(first, place.row + 1))
        if self._by_launch[first]:
            return link, _Host(self._epochs[first], self._launched_at[first])
        return link, _Work(self._after[first])

    def _host_link(self, place: _Host) -> tuple[_HostLink, _Work | _Host | None]:
        """Return the host's work in the epoch until here, and what came before it."""
        link = self._host_work(place)
        if place.epoch == 0:
            return link, None
        wait = place.epoch - 1
        before = _Host(wait, self._blocked[wait])
        target = self._waits_for[wait]
        if target is not None and self._done[target] > self._reached(before):
            return link, _Work(target)
        return link, before

    def _host_work(self, place: _Host) -> _HostLink:
        begin = self._resumed[place.epoch - 1] if place.epoch else self._edges[0]
        # A launch may be recorded before the call that it came after had returned.
        begin = min(begin, place.moment)
        pieces = self._edges.search_sorted(pl.Series([begin, place.moment])).clip(
            upper_bound=len(self._edges) - 1
        )
        low, high = self._worked[pieces]
        return _HostLink(begin, place.moment, high - low)

    def _reached(self, place: _Host) -> float:
        """Return the time at which the replayed host reaches a place."""
        return self._host[place.epoch] + self._host_work(place).time


def _first_of_runs(work: pl.DataFrame) -> list[int | None]:
    """Return for each row the first one of its run on its stream.

    A run begins with work that waited for its launch or for another stream; none is
    the one that an earlier step began.
    """
    begins = pl.col("by_launch") | pl.col("after").is_not_null()
    first = pl.when(begins).then("row").forward_fill().over("lane")
    return work.with_row_index("row").select(first).to_series().to_list()

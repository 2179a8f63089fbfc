"""Trace of all ranks of a job on one clock: their collectives, steps and kernels.

Each rank is a process: its steps, its collectives, each divided into the wait for the
last rank and the transfer, when others waited for it, and its kernels. Nothing else of
the ranks' traces is in it, so that it stays small enough to open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.annotate.events import Writer, arguments, literal
from traceq.annotate.slices import fitting, inside
from traceq.annotate.steps import chosen_steps
from traceq.common.expressions import END, text
from traceq.common.safe_text import printable
from traceq.common.units import size, time
from traceq.ranks.clocks import on_one_clock
from traceq.ranks.job import starts
from traceq.report.base.text import short_kernel, where
from traceq.report.lint import content as words

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceq.annotate.splice import Output
    from traceq.model.lint_report import RecordingReport
    from traceq.model.trace import Trace
    from traceq.ranks.analysis import Analysis
    from traceq.ranks.job import Job

_KERNEL = 130
_FIRST_PID, _TRACEQ = 1, 1_000_000_000
_STEPS, _LATE, _COLLECTIVES, _KERNELS = 1, 2, 10, 100
_MOST_ARROWS = 2_000


@dataclass
class JobWritten:
    """Counts of what was written."""

    ranks: int
    collectives: int
    kernels: int = 0
    left_out: int = 0
    """Number of the shortest kernels that were left out."""
    unread: int = 0
    """Number of ranks without kernels in it, because their trace cannot be read
    again."""


@dataclass(frozen=True)
class _Times:
    """From a rank's times to those of the file, which begin at 0."""

    job: Job
    begin: int

    def of(self, rows: pl.DataFrame, rank: int) -> pl.DataFrame:
        """Return rows of a rank, with ``start`` and ``end``, on the job's clock."""
        shift = starts(self.job.ranks)[rank]
        moved = rows.with_columns(
            pl.col("start", "end") + shift, rank=pl.lit(rank, pl.Int64)
        )
        return self.zeroed(on_one_clock(moved, self.job.ranks))

    def zeroed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows of the job's clock; what begins before the file is cut."""
        columns = [
            column for column in ("start", "came", "end") if column in rows.columns
        ]
        since = pl.col(columns) - self.begin
        return rows.with_columns(since.clip(lower_bound=0)).filter(
            pl.col("end") > pl.col("start")
        )


def write_job(
    analysis: Analysis,
    outcome: RecordingReport,
    loaded: Callable[[int], Trace | None],
    output: Output,
    *,
    window: tuple[int, int] | None = None,
) -> JobWritten:
    """Write a job; ``loaded`` returns the trace of a rank's row, for its kernels.

    Times of the window are those of the job's clock. Kernels, the shortest first, are
    left out beyond the output's ``most_text`` bytes.
    """
    job = analysis.job
    begin, end = window or _extent(job)
    times = _Times(job, begin)
    cells = inside(job.cells, begin, end)
    written = JobWritten(job.ranks.height, cells["instance"].n_unique())
    events = _Events(output)
    events.add(_findings(outcome, end - begin))
    lanes = _lanes(cells)
    came = pl.col("start") + pl.col("wait")
    cells = times.zeroed(cells.with_columns(lane=lanes, came=came))
    events.add(_arrows(cells))
    room = (output.most_text - output.text_bytes) // max(1, job.ranks.height)
    for rank, number in job.ranks.select("rank", "number").iter_rows():
        writer = Writer(_FIRST_PID + rank)
        events.add([writer.name("process", f"rank {number}", index=rank)])
        group_rows = cells.filter(pl.col("rank") == rank)
        events.add(_collectives(writer, group_rows))
        steps = times.of(job.digests[rank].table("steps"), rank)
        events.add(_steps(writer, inside(steps, 0, end - begin)))
        events.add(_late(writer, times.zeroed(_awaited(job, rank, begin, end))))
        trace = loaded(rank)
        written.unread += trace is None
        if trace is not None:
            rows = times.of(_work(trace), rank)
            rows = inside(rows, 0, end - begin)
            longest = rows.sort("dur", "start", descending=[True, False])
            longest = longest.head(max(0, room // _KERNEL)).sort(
                "stream", "start", "end"
            )
            written.kernels += longest.height
            written.left_out += rows.height - longest.height
            events.add(_kernels(writer, longest))
    events.finish()
    return written


def _extent(job: Job) -> tuple[int, int]:
    """Return the start of the first rank and the end of the last, on one clock."""
    begin, end = (
        (int(job.cells["start"].min()), int(job.cells["end"].max()))  # type: ignore[arg-type]  # a column of numbers
        if job.cells.height
        else (0, 1)
    )
    whole = _Times(job, 0)
    for rank in job.ranks["rank"]:
        steps = whole.of(job.digests[rank].table("steps"), rank)
        if steps.height:
            first, last = steps.select(pl.col("start").min(), pl.col("end").max()).row(
                0
            )
            begin, end = min(begin, first), max(end, last)
    return begin, max(end, begin + 1)


def job_window(job: Job, text: str) -> tuple[int, int]:
    """Return from when to when the steps last on all ranks that a text asks for."""
    whole = _Times(job, 0)
    every = pl.concat(
        whole.of(job.digests[rank].table("steps"), rank) for rank in job.ranks["rank"]
    )
    steps = (
        every.group_by("step")
        .agg(pl.col("start").min(), pl.col("end").max())
        .with_columns(warmup=pl.lit(value=False))
    )
    chosen = chosen_steps(steps, text)
    return chosen[0]["start"], chosen[-1]["end"]


class _Events:
    """Writes events one after the other."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._between = b""
        output.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')

    def add(self, events: list[str]) -> None:
        if events:
            self._output.write(self._between + ",\n".join(events).encode())
            self._between = b",\n"

    def finish(self) -> None:
        self._output.write(b"\n]}\n")


def _findings(outcome: RecordingReport, length: int) -> list[str]:
    """Return the findings on the job, each over the whole window."""
    writer = Writer(_TRACEQ)
    events = [writer.name("process", "traceq", index=-1)]
    codes = list(dict.fromkeys(finding.code for finding in outcome.findings))
    names = {finding.code: finding.name for finding in outcome.findings}
    events += [
        writer.name("thread", f"{code} {names[code]}", at + 1, at + 1)
        for at, code in enumerate(codes)
    ]
    rows = pl.DataFrame(
        [
            {
                "tid": codes.index(finding.code) + 1,
                "start": 0,
                "end": length,
                "name": literal(printable(finding.message)),
                "args": arguments(
                    cost=words.cost(finding, outcome),
                    fix=finding.advice,
                    place=where(finding.place),
                    on="the whole window: the ranks' tracks show where",
                    evidence={
                        entry.label: words.evidence(entry) for entry in finding.evidence
                    },
                ),
            }
            for finding in outcome.findings
        ]
    )
    return events + (writer.slices(rows).to_list() if rows.height else [])


def _lanes(cells: pl.DataFrame) -> pl.Series:
    """Return the track of each part of a collective: those of a rank do not overlap."""
    stacks: dict[int, list[list[int]]] = {}
    lanes = [0] * cells.height
    order = cells.with_row_index("row").sort("start", "end", descending=[False, True])
    for row, rank, start, end in order.select(
        "row", "rank", "start", "end"
    ).iter_rows():
        # On a track that is taken it would lie inside of another one.
        taken = stacks.setdefault(rank, [])
        free = next((at for at, one in enumerate(taken) if one[0] <= start), len(taken))
        lanes[row] = free
        if free == len(taken):
            taken.append([end])
        taken[free] = [end]
    return pl.Series("lane", lanes, dtype=pl.Int64)


def _collectives(writer: Writer, cells: pl.DataFrame) -> list[str]:
    """Return the collectives of a rank, with the wait and the transfer inside each."""
    events = [
        writer.name("thread", "collectives" + f" {lane + 1}" * (lane > 0), tid, tid)
        for lane in cells["lane"].unique().sort()
        for tid in [_COLLECTIVES + lane]
    ]
    tid = pl.col("lane") + _COLLECTIVES
    details = [
        (literal(_called(kind, sent)), arguments(exposed=time(exposed), module=module))
        for kind, sent, exposed, module in cells.select(
            "kind", "bytes", pl.col("exposed") - pl.col("waited_exposed"), "module"
        ).iter_rows()
    ]
    texts = pl.DataFrame(
        details, {"name": pl.String(), "args": pl.String()}, orient="row"
    )
    outer = pl.concat([cells.select("start", "end", tid=tid), texts], how="horizontal")
    empty = pl.lit("{}").alias("args")
    wait = cells.filter(pl.col("came") > pl.col("start")).select(
        "start", tid=tid, end="came", name=pl.lit('"wait"'), args=empty
    )
    sent = cells.filter(pl.col("end") > pl.col("came")).select(
        "end", tid=tid, start="came", name=pl.lit('"transfer"'), args=empty
    )
    parts = [outer, wait, sent]
    return events + [row for part in parts for row in writer.slices(part)]


def _called(kind: str, sent: int | None) -> str:
    return printable(kind) + (f" {size(sent)}" if sent else "")


def _steps(writer: Writer, steps: pl.DataFrame) -> list[str]:
    if not steps.height:
        return []
    rows = steps.select(
        "start",
        "end",
        tid=pl.lit(_STEPS),
        name=pl.format('"step {}"', "step"),
        args=pl.lit("{}"),
    )
    return [writer.name("thread", "steps", _STEPS, _STEPS), *writer.slices(rows)]


def _awaited(job: Job, rank: int, begin: int, end: int) -> pl.DataFrame:
    """Return the times in which others waited for a rank; each instant counts once."""
    last = job.collectives.filter(pl.col("late") == rank)
    spans = last.select("kind", "ranks", start="first", end="last").sort("start")
    reached = pl.col("end").cum_max().shift(1).fill_null(pl.col("start"))
    return inside(
        spans.with_columns(start=pl.max_horizontal("start", reached)), begin, end
    )


def _late(writer: Writer, spans: pl.DataFrame) -> list[str]:
    """Return the track of times in which others waited for a rank."""
    if not spans.height:
        return []
    names = [
        literal(f"{ranks - 1} wait for this rank ({printable(kind)})")
        for kind, ranks in spans.select("kind", "ranks").iter_rows()
    ]
    rows = spans.with_columns(
        tid=pl.lit(_LATE), name=pl.Series(names), args=pl.lit("{}")
    )
    name = writer.name("thread", "others wait for it", _LATE, _LATE)
    return [name, *writer.slices(rows)]


def _arrows(cells: pl.DataFrame) -> list[str]:
    """Return arrows from the last rank of a collective to those that waited for it."""
    last = (
        cells.sort("start")
        .group_by("instance")
        .agg(pl.col("rank", "lane", "start").last())
    )
    waited = (
        cells.filter(pl.col("wait") > 0)
        .select("instance", "wait", of="rank", on="lane")
        .join(last, on="instance")
        .filter(pl.col("of") != pl.col("rank"))
        .sort("wait", "instance", "of", descending=[True, False, False])
        .head(_MOST_ARROWS)
        .with_row_index("flow")
    )
    return [
        arrow
        for (rank,), rows in waited.partition_by("rank", as_dict=True).items()
        for arrow in Writer(_FIRST_PID + int(rank)).flows(
            rows.select(
                "flow",
                "start",
                tid=pl.col("lane") + _COLLECTIVES,
                to_pid=(pl.col("of") + _FIRST_PID).cast(pl.String),
                to_tid=(pl.col("on") + _COLLECTIVES).cast(pl.String),
                to_start="start",
            )
        )
    ]


def _work(trace: Trace) -> pl.DataFrame:
    """Return the kernels of a rank that are no collectives, with short names."""
    kernels = trace.kernels.filter(pl.col("kind") != "communication").select(
        "stream", "dur", start="ts", end=END, name=text("name")
    )
    names = {name: literal(short_kernel(name)) for name in kernels["name"].unique()}
    return kernels.with_columns(
        name=pl.col("name").replace_strict(names, return_dtype=pl.String)
    )


def _kernels(writer: Writer, rows: pl.DataFrame) -> list[str]:
    """Return tracks of kernels, one for each stream, or more if some overlap."""
    stacks: dict[int | None, list[list[int]]] = {}
    tids: dict[tuple[int | None, int], int] = {}
    lanes = []
    for stream, start, end in rows.select("stream", "start", "end").iter_rows():
        lane = fitting(stacks.setdefault(stream, []), start, end)
        lanes.append(tids.setdefault((stream, lane), _KERNELS + len(tids)))
    events = [
        writer.name(
            "thread", f"stream {stream}" + f" ({lane + 1})" * (lane > 0), tid, tid
        )
        for (stream, lane), tid in tids.items()
    ]
    placed = rows.with_columns(tid=pl.Series(lanes, dtype=pl.Int64), args=pl.lit("{}"))
    return events + writer.slices(placed).to_list()

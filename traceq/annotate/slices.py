"""Slices for the kernels, idle gaps and host time that findings are about.

If a finding has too many of them, the first steps are shown, or adjacent ones as one
slice; the number of omitted ones is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.annotate.events import arguments, literal
from traceq.linter.finding_spans import CALL, GAP, HOST, KERNEL, MARKS, OP, STEP, marked
from traceq.report.base.text import where
from traceq.report.lint import content as words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceq.linter.view import View
    from traceq.model.finding import Finding
    from traceq.model.lint_report import RecordingReport
    from traceq.model.trace import Trace

# Marks of a finding this close to each other become one slice, first; then half as far
# again, until they are few enough.
_CLOSE_NS = 1_000
_ON_GPU = (KERNEL, GAP, STEP)
_WHAT = {
    KERNEL: "a kernel",
    GAP: "idle time of the GPU",
    OP: "an op on the host",
    CALL: "a runtime call on the host",
    HOST: "time of the host",
    STEP: "the whole step: the finding is on no kernel of its own",
}


@dataclass(frozen=True)
class Slices:
    """The slices of findings."""

    rows: pl.DataFrame
    """``tid``, ``start``, ``end``, ``name`` and ``args``, as JSON, by track and time;
    ``finding`` is which one, ``side`` is gpu or host, ``id`` the kernel, op or call."""
    tracks: dict[int, str]
    """The names of their tracks."""
    left_out: int
    """Number of kernels, gaps and parts of the host's time that have no slice."""
    joined: int
    """Number of them that share a slice with others."""


def inside(rows: pl.DataFrame, start: int, end: int) -> pl.DataFrame:
    """Return the rows that overlap a window."""
    return rows.filter(pl.col("end") > start, pl.col("start") < end)


def finding_slices(
    view: View,
    outcome: RecordingReport,
    window: tuple[int, int],
    most: int,
    first_tid: int,
) -> Slices:
    """Return slices for what findings are about in a window, about this many at most.

    Each finding has one at least. Tracks are numbered from ``first_tid`` on.
    """
    findings = outcome.findings
    marks = inside(marked(view, findings), *window)
    starts = view.steady.windows["start"].sort()
    marks = marks.with_columns(
        side=pl.when(pl.col("what").is_in(_ON_GPU))
        .then(pl.lit("gpu"))
        .otherwise(pl.lit("host")),
        step=starts.search_sorted(marks["start"], side="right"),
    )
    # The host's time is shown by ops and calls, and by spans where there are none.
    seen = pl.col("what").is_in((OP, CALL)).any().over("finding")
    marks = marks.filter(~(seen & (pl.col("what") == HOST)))
    chosen = _chosen(marks, most)
    lanes, names = _lanes(chosen, findings, first_tid)
    first = pl.col("start").rank("ordinal").over("finding", "side", "step") == 1
    rows = (
        chosen.with_columns(tid=lanes, first=first)
        .join(_texts(findings, outcome), on=["finding", "what", "first"], how="left")
        .with_columns(args=_with_pieces())
        .sort("tid", "start", "end", descending=[False, False, True])
    )
    pieces = chosen["pieces"]
    return Slices(
        rows,
        names,
        marks.height - int(pieces.sum()),
        int(pieces.filter(pieces > 1).sum()),
    )


def _chosen(marks: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return as many marks as there is room for, of each finding and side.

    ``pieces`` is how many of them each row stands for.
    """
    groups = marks.partition_by("finding", "side", maintain_order=True)
    quotas = _shared([table.height for table in groups], most)
    parts = [marks.clear().with_columns(pieces=pl.lit(1, pl.UInt32))]
    for group, quota in zip(groups, quotas, strict=True):
        rows = group.with_columns(pieces=pl.lit(1, pl.UInt32))
        if rows.height > quota:
            rows = _fewer(rows, quota)
        parts.append(rows)
    return pl.concat(parts)


def _shared(wanted: Sequence[int], most: int) -> list[int]:
    """Share out a number: all that is wanted to the modest, equal parts to the rest.

    >>> _shared([2, 100, 7], 20)
    [2, 11, 7]
    """
    quotas = [0] * len(wanted)
    left = most
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    for position, at in enumerate(order):
        quotas[at] = max(1, min(wanted[at], left // (len(order) - position)))
        left = max(0, left - quotas[at])
    return quotas


def _fewer(rows: pl.DataFrame, quota: int) -> pl.DataFrame:
    """Return the rows of the first steps, as far as they fit; else joined ones."""
    by_step = rows.group_by("step").len().sort("step")
    fitting = by_step.filter(by_step["len"].cum_sum() <= quota)
    if fitting.height:
        return rows.join(fitting.select("step"), on="step", how="semi")
    first = rows.filter(pl.col("step") == by_step["step"][0]).sort("start", "end")
    close = _CLOSE_NS
    while (joined := _joined(first, close)).height > quota:
        close += close // 2
    return joined


def _joined(rows: pl.DataFrame, close: int) -> pl.DataFrame:
    """Return one row for all that are this close to each other."""
    reached = pl.col("end").cum_max().shift(1)
    apart = (pl.col("start") - reached > close).fill_null(value=True)
    several = pl.len() > 1
    return (
        rows.group_by(group=apart.cum_sum(), maintain_order=True)
        .agg(
            pl.col("finding", "side", "step").first(),
            pl.col("what").sort().first(),
            # Several kernels have no one to point to.
            pl.when(several).then(None).otherwise(pl.col("id").first()).alias("id"),
            pl.col("start").min(),
            pl.col("end").max(),
            pieces=pl.len(),
        )
        .select(rows.columns)
    )


def _lanes(
    slices: pl.DataFrame, findings: Sequence[Finding], first_tid: int
) -> tuple[pl.Series, dict[int, str]]:
    """Give each row a track on which slices nest; return them, and tracks' names.

    A rule has one track for the GPU and one for the host, and more where slices overlap
    that do not lie inside of each other: these would not be shown.
    """
    rules = [item.code for item in findings]
    names = {item.code: f"{item.code} {item.name}" for item in findings}
    tids: dict[tuple[str, str, int], int] = {}
    open_ends: dict[tuple[str, str], list[list[int]]] = {}
    order = slices.with_row_index("row").sort("start", "end", descending=[False, True])
    lanes = [0] * slices.height
    columns = ("row", "finding", "side", "start", "end")
    for row, finding, side, start, end in order.select(columns).iter_rows():
        code = rules[finding]
        stacks = open_ends.setdefault((code, side), [])
        lane = fitting(stacks, start, end)
        lanes[row] = tids.setdefault((code, side, lane), len(tids))
    # In the order of the findings, the GPU before the host.
    ranked = sorted(tids, key=lambda tid: (rules.index(tid[0]), tid[1], tid[2]))
    numbers = {tids[one]: first_tid + at for at, one in enumerate(ranked)}
    return (
        pl.Series("tid", [numbers[at] for at in lanes], dtype=pl.Int64),
        {
            numbers[tids[item]]: names[item[0]]
            + (" (host)" if item[1] == "host" else "")
            + (f" {item[2] + 1}" if item[2] else "")
            for item in ranked
        },
    )


def fitting(stacks: list[list[int]], start: int, end: int) -> int:
    """Return the first lane on which a slice lies inside what is open, or nothing is.

    ``stacks`` has for each lane when what is open there ends, outermost first.
    """
    for lane, stack in enumerate(stacks):
        while stack and stack[-1] <= start:
            stack.pop()
        if not stack or end <= stack[-1]:
            stack.append(end)
            return lane
    stacks.append([end])
    return len(stacks) - 1


def _texts(findings: Sequence[Finding], outcome: RecordingReport) -> pl.DataFrame:
    """Return ``name`` and ``args`` of slices, as JSON; the first one has all."""
    rows = []
    for number, finding in enumerate(findings):
        name, cost, at = (
            words.headline(finding),
            words.cost(finding, outcome),
            where(finding.place),
        )
        evidence: dict[str, str] = {}
        for entry in finding.evidence:
            text = words.evidence(entry)
            values = evidence.get(entry.label)
            evidence[entry.label] = f"{values}; {text}" if values else text
        for what, heading in _WHAT.items():
            full = arguments(
                finding=f"{finding.code}: {finding.message}",
                cost=cost,
                fix=finding.advice,
                place=at,
                on=heading,
                evidence=evidence,
            )
            short = arguments(cost=cost, place=at, on=heading if what == STEP else "")
            label = literal(f"idle: {name}" if what == GAP else name)
            rows += [
                (number, what, True, label, full),
                (number, what, False, label, short),
            ]
    schema = pl.Schema(
        {
            "finding": pl.UInt32(),
            "what": MARKS["what"],
            "first": pl.Boolean(),
            "name": pl.String(),
            "args": pl.String(),
        }
    )
    return pl.DataFrame(rows, schema, orient="row")


def _with_pieces() -> pl.Expr:
    """Return arguments, as JSON, with how many marks a slice stands for."""
    args, pieces = pl.col("args"), pl.col("pieces")
    more = pl.concat_str(
        args.str.head(-1),
        pl.when(args == "{}").then(pl.lit("")).otherwise(pl.lit(",")),
        pl.lit('"stands for":'),
        pieces.cast(pl.String),
        pl.lit("}"),
    )
    return pl.when(pieces > 1).then(more).otherwise(args)


def arrows(trace: Trace, rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return arrows to kernels, of each finding as many as there is room for."""
    rows = rows.filter(pl.col("id").is_not_null(), pl.col("side") == "gpu")
    groups = rows.sort("finding", "start").partition_by("finding", maintain_order=True)
    quotas = _shared([group.height for group in groups], most)
    longest = [table.head(quota) for table, quota in zip(groups, quotas, strict=True)]
    kernels = trace.kernels.select("id", "device", "stream", to_start="ts")
    return (
        pl.concat([rows.clear(), *longest])
        .join(kernels, on="id")
        .join(_streams(trace), on=["device", "stream"])
        .sort("tid", "start")
    )


def _streams(trace: Trace) -> pl.DataFrame:
    """Return the process and thread of the GPU's streams, as the file writes them."""
    threads = set(trace.threads.select("pid", "tid").iter_rows())
    rows = [
        (device, stream, *thread)
        for device, stream in trace.kernels.select("device", "stream").unique().rows()
        for thread in _written(threads, device, stream)
    ]
    kernels = trace.kernels.schema
    schema = {
        "device": kernels["device"],
        "stream": kernels["stream"],
        "to_pid": pl.String(),
        "to_tid": pl.String(),
    }
    return pl.DataFrame(rows, schema, orient="row")


def _written(
    threads: set[tuple[str, str]], device: int | None, stream: int | None
) -> Iterator[tuple[str, str]]:
    """Yield process and thread as JSON, if the file has them by one of their names."""
    for tid in (f"{stream}", f"stream {stream}"):
        if (str(device), tid) in threads:
            yield f"{device}", tid if tid.isdecimal() else literal(tid)
            return

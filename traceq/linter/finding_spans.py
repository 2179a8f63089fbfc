"""Spans of a finding in the trace: its kernels, idle gaps and host time.

What shows findings in a picture of the trace asks here, so that all show the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.gpu_idle import gap_at, idle_in
from traceq.common.expressions import END
from traceq.common.intervals import overlap
from traceq.graph.nesting import nearest
from traceq.linter.savings import removed_host_time

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from traceq.linter.view import View
    from traceq.model.finding import Finding
    from traceq.model.trace import Trace

KERNEL, GAP, OP, CALL, HOST, STEP = "kernel", "gap", "op", "call", "host", "step"
WHAT = (KERNEL, GAP, OP, CALL, HOST, STEP)
MARKS = pl.Schema(
    {
        "finding": pl.UInt32(),  # which of the findings that were given
        "what": pl.Enum(WHAT),
        "id": pl.UInt32(),  # row of kernels, ops or runtime; of a gap the next kernel
        "start": pl.Int64(),
        "end": pl.Int64(),
    }
)
# A gap belongs to a fix if the host work that it removes fills this share of the gap,
# or more. Heuristic threshold: the host does its other work while the GPU idles, too.
_FILLED = 0.1


def marked(view: View, findings: Sequence[Finding]) -> pl.DataFrame:
    """Return the spans of each finding: rows of MARKS, in the order of the findings.

    Kernels are those it was seen by, else what its ops and calls launched. Gaps are
    idle times of the GPU in the steps in which the host did what the fix removes, or
    that follow a sync. Ops, calls and other spans of time are the host's. What has
    none of these, as a finding on the whole trace, has the steps.
    """
    frames = [pl.DataFrame(schema=MARKS)]
    gaps = _Gaps(view)
    for number, finding in enumerate(findings):
        of_gpu = [_kernels(view.trace, finding), gaps.of(finding)]
        of_host = list(_on_host(view, finding))
        rows = pl.concat([*of_gpu, *of_host])
        if not rows.height:
            rows = _rows(STEP, view.steady.windows)
        frames.append(
            rows.with_columns(finding=pl.lit(number, pl.UInt32)).select(*MARKS)
        )
    return pl.concat(frames)


def _rows(what: str, spans: pl.DataFrame) -> pl.DataFrame:
    """Return rows of MARKS but for the finding, of spans with or without an ``id``."""
    if "id" not in spans.columns:
        spans = spans.with_columns(id=pl.lit(None, pl.UInt32))
    return spans.select(
        pl.lit(what, MARKS["what"]).alias("what"),
        pl.col("id").cast(pl.UInt32),
        "start",
        "end",
    )


def _chosen(table: pl.DataFrame, ids: Collection[int]) -> pl.DataFrame:
    """Return the spans of events by their ids, which are their rows."""
    rows = pl.Series(sorted(ids), dtype=pl.UInt32)
    return table.select("id", "ts", "dur")[rows].select("id", start="ts", end=END)


def _kernels(trace: Trace, finding: Finding) -> pl.DataFrame:
    ids = finding.kernels
    if not ids and (finding.ops or finding.calls):
        ids = frozenset(_launched(trace, finding))
    return _rows(KERNEL, _chosen(trace.kernels, ids))


def _launched(trace: Trace, finding: Finding) -> pl.Series:
    """Return the kernels that the finding's ops, or ops in them, and calls launched."""
    ops, kernels = trace.ops, trace.kernels
    under = nearest(ops["parent"], _are(ops["id"], finding.ops)).is_not_null()
    by_op = under[kernels["op"]].fill_null(value=False)
    return kernels["id"].filter(by_op | _are(kernels["launch"], finding.calls))


def _are(ids: pl.Series, chosen: Collection[int]) -> pl.Series:
    wanted = pl.Series(list(chosen), dtype=ids.dtype)
    return ids.is_in(wanted.implode()).fill_null(value=False)


def _on_host(view: View, finding: Finding) -> Iterator[pl.DataFrame]:
    """Yield the ops and calls of a finding, and other time of the host it is about."""
    trace = view.trace
    # Of a captured op there is a copy for each replay, which the host did not run.
    ran = _chosen(trace.ops, finding.ops).filter(pl.col("start") >= 0)
    yield _rows(OP, ran)
    yield _rows(CALL, _chosen(trace.runtime, finding.calls))
    for fix in finding.fixes:
        if fix.spans is not None:
            yield _rows(HOST, removed_host_time(view, fix))


class _Gaps:
    """The idle gaps of the steps; which of them a finding is about."""

    def __init__(self, view: View) -> None:
        self._view = view
        gpu = view.trace.kernels.height > 0
        windows = view.steady.windows if gpu else view.steady.windows.clear()
        self._gaps = idle_in(view.trace, windows).select("start", "end", id="kernel")

    def of(self, finding: Finding) -> pl.DataFrame:
        """Return the gaps in which the GPU idles because of a finding."""
        if not finding.gpu_idle_ns or not self._gaps.height:
            return _rows(GAP, self._gaps.clear())
        host = [removed_host_time(self._view, fix) for fix in finding.fixes]
        host += [table.select("start", "end") for table in self._seen(finding)]
        filled = overlap(self._gaps, pl.concat(host).filter(pl.col("start") >= 0))
        length = self._gaps["end"] - self._gaps["start"]
        chosen = filled > _FILLED * length
        if after := self._after_syncs(finding):
            chosen |= pl.int_range(self._gaps.height, eager=True).is_in(list(after))
        return _rows(GAP, self._gaps.filter(chosen))

    def _seen(self, finding: Finding) -> Iterator[pl.DataFrame]:
        """Yield the host's events that show a finding, where it has no fix."""
        trace = self._view.trace
        ops = () if finding.fixes else finding.ops
        yield _chosen(trace.ops, ops)
        yield _chosen(trace.runtime, () if finding.fixes else finding.calls)

    def _after_syncs(self, finding: Finding) -> set[int]:
        """Return the gaps that the ends of syncs fall into."""
        syncs = {sync for fix in finding.fixes for sync in fix.syncs}
        ends = _chosen(self._view.trace.runtime, syncs)["end"]
        return set(gap_at(self._gaps, ends).drop_nulls().to_list())

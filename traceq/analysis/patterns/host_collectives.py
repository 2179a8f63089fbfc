"""Collectives through the host, such as gloo's: tensors are copied there and back.

A thread of the backend waits for the copy to the host, sends, and copies back. All of
its work serves the collective, and so do the copies in the op that starts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.cached import cached_per_trace
from traceq.analysis.base.gpu_idle import idle_in
from traceq.analysis.base.ownership import named_like
from traceq.analysis.base.steady import in_steps
from traceq.common.expressions import END, asof, constant, known, text
from traceq.common.intervals import disjoint, overlap, spans
from traceq.graph.nesting import INDEX, nearest
from traceq.model.names import HOST_COLLECTIVE, SHARED_MEMORY_COLLECTIVE, TRANSFER

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace

_PLACE = ("file", "line", "function")
_SPANS = {
    "thread": INDEX,
    "step": pl.Int64(),
    "start": pl.Int64(),
    "end": pl.Int64(),
    "backend": pl.String(),
    "collective": pl.String(),
}
# A gap is not a wait if the host runs operators for this fraction of it. Heuristic.
_WORKING = 0.5


@cached_per_trace
def host_collectives(trace: Trace) -> pl.DataFrame:
    """Return the collectives through the host: ``collective``, ``backend``, and spans.

    The spans are ``thread``, ``start``, ``end``, ``step``.
    """
    regions = trace.annotations
    regions = regions.filter(named_like(regions, HOST_COLLECTIVE) & ~regions["on_gpu"])
    ops = trace.ops.filter(named_like(trace.ops, SHARED_MEMORY_COLLECTIVE))
    if not regions.height and not ops.height:
        return pl.DataFrame(schema=_SPANS)
    return pl.concat(
        [
            _named(regions, HOST_COLLECTIVE),
            _named(ops, SHARED_MEMORY_COLLECTIVE),
        ]
    ).sort("thread", "start")


def _named(events: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the spans of events, and the two parts of the pattern in their names."""
    parts = text("name").str.extract_groups(pattern).struct
    return events.select(
        "thread",
        "step",
        start="ts",
        end=END,
        backend=parts.field("1"),
        collective=parts.field("2"),
    )


def serves_collective(trace: Trace, rows: pl.DataFrame) -> pl.Series:
    """Return for rows with ``thread``, ``ts`` and ``op`` whether they serve one."""
    ranges = host_collectives(trace)
    if not ranges.height:
        return constant(value=False, count=rows.height, dtype=pl.Boolean)
    moments = rows.select("thread", "ts", "op").with_row_index("row")
    around = asof(
        moments, ranges.select("thread", "start", "end"), "ts", "start", by="thread"
    )
    inside = around.sort("row").select(known(pl.col("ts") < pl.col("end"))).to_series()
    started = _started(trace)[rows["op"]].is_not_null()
    return inside | started


def launched_for_collective(trace: Trace, kernels: pl.DataFrame) -> pl.Series:
    """Return for work of the GPU whether its launch serves one."""
    if not host_collectives(trace).height:
        return constant(value=False, count=kernels.height, dtype=pl.Boolean)
    calls = trace.runtime.select(
        pl.col("thread", "ts", "op").gather(kernels["launch"])
    ).with_columns(pl.col("ts").fill_null(-1))
    return serves_collective(trace, calls)


@cached_per_trace
def _started(trace: Trace) -> pl.Series:
    """Return for each op the op of torch.distributed that it is, or is inside of."""
    ops = trace.ops
    return nearest(
        ops["parent"], known(ops["name"].cast(pl.String).str.starts_with("c10d::"))
    )


def exposed_through_host(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the exposed time of collectives through the host.

    A row for each ``backend`` and ``collective``: ``calls``, ``time``, ``exposed``,
    ``bytes`` (copied back to the GPU), ``copies`` (ids of the copies that serve it),
    ``waits`` (the exposed time in which the host does nothing else, as spans), and the
    place that starts most of them.
    """
    ranges = in_steps(host_collectives(trace), trace, steady)
    if not ranges.height:
        return pl.DataFrame(schema={"exposed": pl.Int64})
    own = disjoint(ranges).filter(pl.col("end") > pl.col("start"))
    compute = spans(steady.kernels.filter(pl.col("activity") == "kernel"))
    length = own["end"] - own["start"]
    named = own.with_columns(
        time=length, exposed=length - overlap(own, compute)
    ).group_by("backend", "collective", maintain_order=True)
    totals = named.agg(
        pl.col("time", "exposed").sum(), calls=pl.len(), spans=pl.struct("start", "end")
    )
    rows = [
        row | _details(trace, steady, row["collective"], row["spans"])
        for row in totals.iter_rows(named=True)
    ]
    return pl.DataFrame(rows, infer_schema_length=None).sort(
        "exposed", "collective", descending=[True, False]
    )


def _details(
    trace: Trace, steady: SteadySteps, collective: str, parts: list[dict[str, int]]
) -> dict[str, object]:
    """Return bytes, copies and GPU waits of a collective, and the place of its call."""
    within = pl.DataFrame(parts)
    moved = steady.kernels.filter(
        pl.col("activity") == "memcpy", text("name").str.contains(TRANSFER)
    )
    serving = moved.filter(launched_for_collective(trace, moved))
    waits = idle_in(trace, within).select("start", "end")
    ops = spans(trace.host_ops.filter(pl.col("parent").is_null()))
    working = overlap(waits, ops) > _WORKING * (waits["end"] - waits["start"])
    back = serving.filter(text("name").str.contains("HtoD|HostToDevice"))
    return {
        "bytes": int(back["bytes"].sum()),
        "copies": serving["id"].to_list(),
        "waits": waits.filter(~working).to_dicts(),
        **_place(trace, collective),
    }


def _place(trace: Trace, collective: str) -> dict[str, object]:
    """Return the place of most ops of torch.distributed of that name."""
    short = collective.replace("_", "")
    plain = text("name").str.extract(r"^c10d::(\w+)").str.replace_all("_", "")
    places = (
        trace.ops.filter(plain == short, pl.col("file").is_not_null())
        .group_by(
            *(text(column) if column != "line" else pl.col(column) for column in _PLACE)
        )
        .len()
        .sort("len", *_PLACE, descending=[True, *(False for _ in _PLACE)])
    )
    if not places.height:
        return dict.fromkeys(_PLACE)
    return places.drop("len").row(0, named=True)

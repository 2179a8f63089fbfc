"""The collectives of one rank, and when it needed their results.

A collective is *ready* when the host has launched it and the GPU has done what it was
launched after. It *holds* the rank from the moment on at which the rank could have gone
on without it until it ends: the next kernel was queued and had nothing else to wait
for, or the host sat in a call that waits for the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.assumptions import HELD_SYNC_NS, STREAM_HANDOVER_NS
from traceq.analysis.base.sync_calls import FULL_QUEUE, blocking_calls
from traceq.analysis.patterns.collectives import described, tensor_parallel
from traceq.analysis.patterns.host_collectives import host_collectives
from traceq.common.expressions import END, asof, known, text
from traceq.common.intervals import disjoint, overlap, spans
from traceq.graph.devices import busiest_device
from traceq.model.names import SHARED_MEMORY_COLLECTIVE

if TYPE_CHECKING:
    from traceq.model.trace import Trace

COLLECTIVES = pl.Schema(
    {
        "kind": pl.String(),  # all_reduce, all_to_all, send, ...
        "token": pl.String(),  # what is the same on all ranks of the collective
        "lane": pl.String(),  # its process group, or the stream where that is unknown
        "group": pl.String(),
        "group_use": pl.String(),
        "group_size": pl.Int64(),
        "group_ranks": pl.List(pl.Int64()),
        "number": pl.Int64(),
        "comms_id": pl.String(),
        "source": pl.Int64(),
        "destination": pl.Int64(),
        "bytes": pl.Int64(),
        "dtype": pl.String(),
        "splits_in": pl.List(pl.Int64()),
        "splits_out": pl.List(pl.Int64()),
        "module": pl.String(),
        "tensor_parallel": pl.Boolean(),  # whether it reduces activations
        "stream": pl.Int64(),
        "step": pl.Int64(),
        "launched": pl.Int64(),  # when the host launched it
        "ready": pl.Int64(),  # when it could begin, other collectives aside
        "start": pl.Int64(),
        "end": pl.Int64(),
        "held": pl.Int64(),  # since when the rank was held by it; null if it was not
        "exposed": pl.Int64(),  # how long the GPU computed nothing meanwhile
    }
)

_KINDS = (
    (r"all_?reduce", "all_reduce"),
    (r"reduce_?scatter", "reduce_scatter"),
    (r"all_?gather", "all_gather"),
    (r"all_?to_?all|^a2a", "all_to_all"),
    (r"broadcast", "broadcast"),
    (r"barrier", "barrier"),
    (r"^_?send$|isend", "send"),
    (r"^_?recv$|irecv|receive", "recv"),
    (r"send_?recv|coalesced", "send_recv"),
    (r"gather", "gather"),
    (r"scatter", "scatter"),
    (r"reduce", "reduce"),
)
# Collectives in which ranks may send different amounts.
_UNEQUAL = ("all_to_all", "send", "recv", "send_recv", "gather", "scatter")
# The operation in the name of a kernel of NCCL or RCCL, without its algorithm.
_FUNCTION = r"(?:nccl|rccl)\w*Kernel_([A-Za-z]+)"
# Ops of sends and receives, whose third input is the rank at the other end.
_PEER_OPS = {"c10d::send": "send", "c10d::recv_": "recv"}
_PEER = 2
_OF_DISTRIBUTED = "^c10d::|record_param_comms"
_COMM = pl.col("kind") == "communication"


def collectives(trace: Trace) -> pl.DataFrame:
    """Return the collectives of a trace in the order of their starts."""
    work = busiest_device(trace.kernels)
    group_rows = work.filter(_COMM)
    if not group_rows.height:
        return _through_host(trace)
    compute = work.filter(~_COMM)
    rows = _named(described(trace, group_rows))
    rows = rows.with_columns(
        start="ts",
        end=END,
        launched=trace.runtime["ts"].gather(group_rows["launch"]),
    ).sort("start", "end", maintain_order=True)
    launches = _launches(trace, compute)
    rows = _with_ready(rows, launches)
    rows = _with_held(trace, rows, launches)
    own = disjoint(rows.select("start", "end").with_row_index("row")).sort("row")
    alone = own["end"] - own["start"] - overlap(own, spans(compute))
    return _shaped(rows.with_columns(exposed=alone))


def _named(rows: pl.DataFrame) -> pl.DataFrame:
    """Add kind, token and lane."""
    kind = pl.coalesce(
        *(
            pl.when(pl.col("collective").str.contains(f"(?i){pattern}")).then(
                pl.lit(kind)
            )
            for pattern, kind in _KINDS
        ),
        pl.col("collective"),
    )
    # Shapes may be recorded on some ranks only, and not of launches before the window.
    size = pl.when(~pl.col("named").is_in(_UNEQUAL)).then("recorded_bytes")
    group = text("group")
    rows = rows.with_columns(named=kind, tensor_parallel=tensor_parallel())
    return rows.with_columns(
        kind="named",
        group=group,
        group_use=text("group_use"),
        comms_id=text("comms_id"),
        module=text("module"),
        dtype=pl.coalesce(text("sent_dtype"), text("dtype")),
        token=pl.format(
            "{} {}",
            pl.coalesce(text("name").str.extract(_FUNCTION), "named"),
            size.cast(pl.String).fill_null(""),
        ),
        lane=pl.coalesce(
            group,
            pl.format("stream {}", pl.col("stream").rank("dense")),
        ),
    )


def _launches(trace: Trace, compute: pl.DataFrame) -> pl.DataFrame:
    """Return launch, start and end of compute, in order of launch."""
    return (
        compute.select(
            start="ts",
            end=END,
            launched=trace.runtime["ts"].gather(compute["launch"]),
        )
        # Work launched before the recording was queued all the time.
        .with_columns(pl.col("launched").fill_null(0))
        .sort("launched")
        .with_columns(done=pl.col("end").cum_max())
    )


def _with_ready(rows: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Add when the collective could begin: launched, and what was before it done."""
    at = rows.with_row_index("row").with_columns(asked=pl.coalesce("launched", "start"))
    before = asof(
        at.select("row", "asked"),
        launches.select("done", before="launched"),
        "asked",
        "before",
    ).sort("row")
    ready = pl.max_horizontal(
        pl.col("launched"), pl.lit(before["done"]).fill_null(pl.col("launched"))
    )
    # Without its launch only its start is known.
    return rows.with_columns(
        ready=pl.min_horizontal(ready.fill_null(pl.col("start")), "start")
    )


def _with_held(
    trace: Trace, collectives_of_rank: pl.DataFrame, launches: pl.DataFrame
) -> pl.DataFrame:
    """Add since when the rank was held by each collective."""
    if not launches.height:
        return collectives_of_rank.with_columns(held=pl.lit(None, pl.Int64))
    rows = collectives_of_rank.select("ready", "start", "end").with_row_index("row")
    begun = launches.sort("start").with_columns(reach=pl.col("end").cum_max())
    # Work that begins at the moment a collective ends comes after it.
    rows = asof(rows, begun.select("reach", begun=pl.col("start") + 1), "end", "begun")
    rows = asof(
        rows,
        begun.select(after="start", after_launched="launched"),
        "end",
        "after",
        strategy="forward",
    )
    calls = blocking_calls(trace).filter(pl.col("kind") != FULL_QUEUE)
    # Of calls that overlap, on several threads, the one that ends last counts.
    waits = calls.select(called="ts", returned=END).sort("called", "returned")
    rows = asof(rows, waits, "end", "called").sort("row")
    done = pl.col("reach").fill_null(pl.col("ready"))
    queued = (pl.col("after_launched") <= pl.col("end")) & (
        pl.col("after") - pl.col("end") <= STREAM_HANDOVER_NS
    )
    waited = (pl.col("returned") >= pl.col("end")) & (
        pl.col("returned") - pl.col("end") <= HELD_SYNC_NS
    )
    since = (
        pl.when(done >= pl.col("end"))
        .then(None)
        .when(known(queued))
        .then(pl.max_horizontal("ready", done, "after_launched"))
        .when(known(waited))
        .then(pl.max_horizontal("ready", done, "called"))
    )
    held = rows.select(
        pl.when(since < pl.col("end")).then(since).alias("held")
    ).to_series()
    return collectives_of_rank.with_columns(held)


def host_compute(trace: Trace) -> pl.DataFrame:
    """Return the spans of the host's compute, where that is all that a rank has.

    Communication through shared memory is an op like any other, perhaps in another one:
    its time is none of compute.
    """
    tops = trace.host_ops.filter(
        pl.col("parent").is_null(), ~text("name").str.contains(_OF_DISTRIBUTED)
    ).select("thread", start="ts", end=END)
    shared = trace.host_ops.filter(text("name").str.contains(SHARED_MEMORY_COLLECTIVE))
    cuts = asof(
        shared.select("thread", cut="ts", resumed=END),
        tops.with_row_index("row").select("thread", "row", begun="start"),
        "cut",
        "begun",
        by="thread",
    )
    pieces = cuts.sort("cut").group_by("row").agg("cut", "resumed")
    rows = tops.with_row_index("row").join(
        pieces, on="row", how="left", maintain_order="left"
    )
    none = pl.lit([], pl.List(pl.Int64))
    return (
        rows.select(
            start=pl.concat_list("start", pl.col("resumed").fill_null(none)),
            end=pl.concat_list(pl.col("cut").fill_null(none), "end"),
        )
        .explode("start", "end")
        .filter(pl.col("end") > pl.col("start"))
    )


def _through_host(trace: Trace) -> pl.DataFrame:
    """Return collectives through the host, each on the stream of its thread.

    The program waits for each of them when it computes nothing any more: backward goes
    on while its first gradients are reduced.
    """
    rows = host_collectives(trace)
    kinds = [
        pl.when(pl.col("collective").str.contains(pattern)).then(pl.lit(kind))
        for pattern, kind in _KINDS
    ]
    named = rows.with_columns(kind=pl.coalesce(*kinds, pl.col("collective")))
    return _shaped(
        _with_peers(trace, named)
        .sort("start", "end")
        .with_columns(
            token=pl.col("collective"),
            lane=pl.col("backend"),
            stream=pl.col("thread").rank("dense").cast(pl.Int64),
            launched=pl.col("start"),
            ready=pl.col("start"),
        )
        .pipe(_held_by_host, host_compute(trace))
    )


def _held_by_host(rows: pl.DataFrame, compute: pl.DataFrame) -> pl.DataFrame:
    """Add since when the program waited, and how long it computed nothing."""
    begun = compute.sort("start").select(
        begun=pl.col("start") + 1, reach=pl.col("end").cum_max()
    )
    joined = asof(rows.with_row_index("row"), begun, "end", "begun").sort("row")
    since = pl.max_horizontal("start", pl.col("reach").fill_null(pl.col("start")))
    own = disjoint(rows.select("start", "end").with_row_index("row")).sort("row")
    return joined.with_columns(
        held=pl.when(since < pl.col("end")).then(since),
        exposed=own["end"] - own["start"] - overlap(own, compute),
    )


def _with_peers(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Add whom sends and receives through the host are with, as their ops say."""
    ops = trace.ops.filter(text("name").is_in(tuple(_PEER_OPS)))
    values = trace.inputs["values"].gather(ops["inputs"])
    calls = ops.select(
        "thread",
        "ts",
        until=END,
        op=text("name").replace_strict(_PEER_OPS),
        peer=values.list.get(_PEER, null_on_oob=True).cast(pl.Int64, strict=False),
    )
    joined = asof(rows, calls, "start", "ts", by="thread")
    inside = (pl.col("start") < pl.col("until")) & (pl.col("kind") == pl.col("op"))
    peer = pl.when(known(inside)).then("peer")
    return joined.with_columns(
        source=pl.when(pl.col("kind") == "recv").then(peer),
        destination=pl.when(pl.col("kind") == "send").then(peer),
    )


def _shaped(rows: pl.DataFrame) -> pl.DataFrame:
    missing = [
        pl.lit(None, dtype).alias(name)
        for name, dtype in COLLECTIVES.items()
        if name not in rows.columns
    ]
    return rows.with_columns(missing).select(list(COLLECTIVES)).cast(COLLECTIVES)

"""Memory that is reserved but free: in which pieces, beside whose tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.memory.lifetimes import live_at
from traceq.model.schema import ID, NUMBER, TEXT, Column, Table

if TYPE_CHECKING:
    from traceq.model.snapshot import Snapshot

RESERVED = Table(
    "What was reserved from the device at one moment.",
    {
        "device": Column(NUMBER, "The GPU's ordinal."),
        "address": Column(NUMBER, "Where the segment begins."),
        "size": Column(NUMBER, "Its size.", "bytes"),
        "stream": Column(NUMBER, "The stream whose tensors it is for."),
        "pool": Column(TEXT, "Memory pool; none if that is not known any more."),
    },
)

PIECES = Table(
    "Free pieces of segments at one moment.",
    {
        "device": Column(NUMBER, "The GPU's ordinal."),
        "segment": Column(NUMBER, "Where its segment begins."),
        "address": Column(NUMBER, "Where it begins."),
        "size": Column(NUMBER, "Its size.", "bytes"),
        "held": Column(
            NUMBER, "What tensors hold of the same segment; 0 if it can go.", "bytes"
        ),
        "stream": Column(NUMBER, "The stream whose tensors it is for."),
        "pool": Column(TEXT, "Memory pool."),
    },
)

CHURN = Table(
    "What a step took from the driver, and gave back to it.",
    {
        "device": Column(NUMBER, "The GPU's ordinal."),
        "step": Column(NUMBER, "The step."),
        "taken": Column(NUMBER, "Taken, in segments.", "bytes"),
        "given": Column(NUMBER, "Given back.", "bytes"),
        "takes": Column(NUMBER, "How often it took some."),
        "gives": Column(NUMBER, "How often it gave some back."),
        "taker": Column(ID, "Where it took most often, if known.", "stacks.id"),
        "giver": Column(ID, "Where it gave back most often, if known.", "stacks.id"),
    },
)

DEFAULT_POOL = "0.0"
_TAKEN = ("segment_alloc", "segment_map")
_GIVEN = ("segment_free", "segment_unmap")
_GRAPHS = r"(^|/)torch/cuda/graphs\.py$|/cudagraph_trees\.py$"
_EMPTIES = r"^empty_cache$|::emptyCache\(|^THCPModule_emptyCache"
# The allocator cuts blocks at multiples of this.
_ROUND = 512


def reserved_at(snapshot: Snapshot, event: int | None) -> pl.DataFrame:
    """Return the segments right after an event; ``RESERVED`` has the columns.

    What was reserved at the end, without what was taken since, and with what was
    given back since. Segments that grow in place are cut where they did.
    """
    since = snapshot.events.filter(
        pl.col("action").is_in(_TAKEN + _GIVEN),
        pl.col("id") > (-1 if event is None else event),
    )
    parts = pl.concat(
        [
            snapshot.segments.select(*RESERVED.columns, there=pl.lit(1)),
            since.select(
                *RESERVED.columns,
                there=pl.when(pl.col("action").is_in(_TAKEN)).then(-1).otherwise(1),
            ),
        ]
    )
    if since.is_empty():
        return RESERVED.shaped(parts.sort("device", "address"))
    edges = pl.concat(
        [
            parts.with_columns(ends=pl.lit(value=False)),
            parts.with_columns(
                -pl.col("there"),
                address=pl.col("address") + pl.col("size"),
                ends=pl.lit(value=True),
            ),
        ]
    )
    cuts = (
        edges.group_by("device", "address")
        .agg(
            pl.col("there").sum(),
            pl.col("stream", "pool").filter(~pl.col("ends")).drop_nulls().first(),
            begins=~pl.col("ends").all(),
        )
        .sort("device", "address")
        .with_columns(
            pl.col("there").cum_sum().over("device"),
            # What goes on behind the end of another is of the same segment.
            pl.when("begins")
            .then(pl.col("stream", "pool"))
            .otherwise(pl.col("stream", "pool").forward_fill().over("device")),
            size=pl.col("address").shift(-1).over("device") - pl.col("address"),
        )
    )
    return RESERVED.shaped(cuts.filter(pl.col("there") > 0))


def blocks_at(
    snapshot: Snapshot, lives: pl.DataFrame, event: int | None
) -> pl.DataFrame:
    """Return what lived right after an event, with its ``segment`` and its ``block``.

    ``block`` is what it takes, rounded up; ``lives`` has at least the columns of
    ``memory_lifetimes``.
    """
    rounded = (pl.col("size") + _ROUND - 1) // _ROUND * _ROUND
    known = snapshot.blocks.select("device", "address", "size").rename({"size": "kept"})
    live = live_at(lives, event).join(known, on=["device", "address"], how="left")
    # How large a block was is known only of those that are there at the end.
    block = pl.when(pl.col("free").is_null()).then("kept")
    segments = reserved_at(snapshot, event).select("device", segment="address")
    return (
        live.with_columns(block=pl.coalesce(block, rounded))
        .drop("kept")
        .sort("address")
        .join_asof(
            segments.sort("segment"),
            left_on="address",
            right_on="segment",
            by="device",
            check_sortedness=False,
        )
    )


def free_pieces(
    snapshot: Snapshot, lives: pl.DataFrame, event: int | None
) -> pl.DataFrame:
    """Return what was free right after an event; ``PIECES`` has the columns."""
    segment = ["device", "segment"]
    held = blocks_at(snapshot, lives, event).select(*segment, "address", "block")
    segments = (
        reserved_at(snapshot, event)
        .rename({"address": "segment"})
        .join(held.group_by(segment).agg(held=pl.sum("block")), on=segment, how="left")
        .with_columns(pl.col("held").fill_null(0))
    )
    begins = segments.select(*segment, address="segment", block=pl.lit(0, NUMBER))
    # CUDA graphs take blocks of their pools again without saying so: these may overlap.
    ends = (pl.col("address") + pl.col("block")).cum_max().over(segment)
    next_begins = pl.coalesce(
        pl.col("address").shift(-1).over(segment), pl.col("segment") + pl.col("size")
    )
    return PIECES.shaped(
        pl.concat([held, begins])
        .sort(*segment, "address", "block")
        .join(segments, on=segment, maintain_order="left")
        .with_columns(address=ends, size=next_begins - ends)
        .filter(pl.col("size") > 0)
    )


def fullest(curve: pl.DataFrame) -> pl.DataFrame:
    """Return the moment of each device at which the most was reserved.

    Of several such moments the one with the most allocated: what is free then was
    never needed at once with the rest.
    """
    return curve.sort(
        "device", "reserved", "allocated", descending=[False, True, True]
    ).unique("device", keep="first", maintain_order=True)


def segment_churn(snapshot: Snapshot, phases: pl.DataFrame) -> pl.DataFrame:
    """Return what each step took from the driver and gave back to it; ``CHURN``."""
    action = pl.col("action").cast(pl.String)
    taken, given = action.is_in(_TAKEN), action.is_in(_GIVEN)
    events = (
        snapshot.events.filter(taken | given)
        .join(phases.select("event", "step"), left_on="id", right_on="event")
        .filter(pl.col("step").is_not_null())
    )
    return CHURN.shaped(
        events.group_by("device", "step")
        .agg(
            taken=pl.col("size").filter(taken).sum(),
            given=pl.col("size").filter(given).sum(),
            takes=taken.sum(),
            gives=given.sum(),
            taker=pl.col("stack").filter(taken).drop_nulls().mode().min(),
            giver=pl.col("stack").filter(given).drop_nulls().mode().min(),
        )
        .sort("device", "step")
    )


def emptied_by(snapshot: Snapshot, stack: int) -> str:
    """Say whether ``graphs`` that are recorded, or ``empty_cache``, gave memory back.

    Empty if neither is on the stack: then the allocator itself looked for room.
    """
    frames = snapshot.frames[snapshot.stacks["frames"][stack].to_list()]
    if frames["file"].cast(pl.String).str.contains(_GRAPHS).any():
        return "graphs"
    emptied = frames["function"].cast(pl.String).str.contains(_EMPTIES)
    return "empty_cache" if emptied.any() else ""

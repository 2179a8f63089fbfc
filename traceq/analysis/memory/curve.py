"""Allocated and reserved memory over time, from a memory snapshot.

A snapshot holds the state at the end and the events before it. Walking the events
backwards from the end gives every state exactly, whatever was allocated before the
recording began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.model.schema import ID, NS, NUMBER, Column, Table

if TYPE_CHECKING:
    from traceq.model.snapshot import Snapshot

_TOTALS = {
    "allocated": Column(
        NUMBER, "Held by tensors, as asked for, not rounded up.", "bytes"
    ),
    "active": Column(
        NUMBER, "The same with what a stream may still use after its free.", "bytes"
    ),
    "reserved": Column(NUMBER, "Reserved from the device.", "bytes"),
}

CURVE = Table(
    "Totals of a device after each event, and one row before its first.",
    {
        "device": Column(NUMBER, "The GPU's ordinal."),
        "event": Column(ID, "The event; none before the first.", "events.id"),
        "ts": Column(NS, "When, as in events; none before the first.", "ns"),
        **_TOTALS,
    },
)

PEAKS = Table(
    "The moment at which a device had the most allocated.",
    {
        **CURVE.columns,
        "max_reserved": Column(NUMBER, "The most ever reserved.", "bytes"),
    },
)

# Actions that reserve memory from the driver, and release it.
RESERVING = ("segment_alloc", "segment_map")
RELEASING = ("segment_free", "segment_unmap")


def memory_curve(snapshot: Snapshot) -> pl.DataFrame:
    """Return each device's totals after each event; ``CURVE`` has the columns.

    The last row of a device is the allocator's own total at the end.
    """
    changes = snapshot.events.select("device", "ts", event="id", **_changes())
    whole = changes.group_by("device").agg(pl.col(_TOTALS).sum().name.suffix("_change"))
    begin = (
        snapshot.devices.select(
            "device",
            "reserved",
            allocated="requested",
            active=pl.col("requested") + pl.col("pending"),
        )
        .join(whole, on="device", how="left")
        .with_columns(
            pl.col(name) - pl.col(f"{name}_change").fill_null(0) for name in _TOTALS
        )
    )
    rows = pl.concat([begin.drop(r"^.*_change$"), changes], how="diagonal")
    in_order = rows.sort("device", "event", nulls_last=False)
    return CURVE.shaped(
        in_order.with_columns(pl.col(name).cum_sum().over("device") for name in _TOTALS)
    )


def memory_peaks(curve: pl.DataFrame) -> pl.DataFrame:
    """Return the first moment of each device's peak; ``PEAKS`` has the columns."""
    highest = pl.col("allocated") == pl.col("allocated").max().over("device")
    peaks = curve.with_columns(
        max_reserved=pl.col("reserved").max().over("device")
    ).filter(highest)
    return PEAKS.shaped(peaks.unique("device", keep="first", maintain_order=True))


def _changes() -> dict[str, pl.Expr]:
    """Return the change of each total by an event.

    A recording may leave out one of the two events of a free; then the other counts.
    """
    requested, done = _is("free_requested"), _is("free_completed")
    has_asked, has_done = (kind.any().over("device") for kind in (requested, done))
    return {
        "allocated": _change(_is("alloc"), requested | (done & ~has_asked)),
        "active": _change(_is("alloc"), done | (requested & ~has_done)),
        "reserved": _change(_is(*RESERVING), _is(*RELEASING)),
    }


def _is(*actions: str) -> pl.Expr:
    return pl.col("action").is_in(actions)


def _change(more: pl.Expr, less: pl.Expr) -> pl.Expr:
    size = pl.col("size")
    return pl.when(more).then(size).when(less).then(-size).otherwise(0)

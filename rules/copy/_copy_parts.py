"""Copies that no other rule explains, by their reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.patterns.copies import PARTS
from traceq.analysis.patterns.weights_stored import scaled_after
from traceq.linter import Evidence, Fix, View, at_function

from ._needless import cast_round_trips, layout_round_trips
from ._unwritten_clones import unwritten_clones

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NOUNS = {part.name: part.noun for part in PARTS}
# What is known about a part; of the others nothing is in general.
HINTS = {
    "optimizer": "needed",
    "transfer": "needed",
    "collective": "see NET001",
    "pageable": "see CPY003",
    "conv layout": "LAY001 reports those that channels_last avoids",
    "weights": "see CPY006",
    "loss": "see LOS001",
    "cast": "CPY002 reports those that are undone",
    "autocast": "see CPY008",
    "dequantized": "dequantize them once",
    "backward": "part of the backward pass",
    "layout": "CPY005 reports those that are needless",
}


def unexplained(view: View) -> pl.DataFrame:
    """Return the program's own casts and layouts that no other rule reports."""
    moved = view.copies
    undone = layout_round_trips(moved, view.kernels)
    reported = [
        cast_round_trips(view.trace, moved).select("request"),
        undone.select("request"),
        undone.select(request="back"),
        unwritten_clones(view.trace, moved).select("request"),
    ]
    return (
        moved.filter(pl.col("part").is_in(["cast", "layout", "dequantized"]))
        .with_columns(request=pl.coalesce("origin", "request"))
        .join(pl.concat(reported), on="request", how="anti")
    )


def scales_weights(view: View, rest: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels that scale weights which were dequantized just before."""
    dequantized = rest.filter(pl.col("part") == "dequantized")
    if not dequantized.height:
        return view.kernels.clear()
    scales = scaled_after(view.trace, dequantized)
    return view.kernels.filter(pl.col("op").is_in(scales.implode()))


def fixes(rest: pl.DataFrame, scales: pl.DataFrame) -> list[Fix]:
    stored = pl.col("part") == "dequantized"
    others, dequantized = rest.filter(~stored), rest.filter(stored)
    ops = pl.concat([dequantized["request"], scales["op"]]).drop_nulls().unique()
    return [
        Fix(kernels=others["id"], kernel_share=assumptions.REMOVABLE_COPIES),
        Fix(kernels=pl.concat([dequantized["id"], scales["id"]]), ops=ops),
    ]


def scale_line(view: View, scales: pl.DataFrame) -> list[Evidence]:
    """Return what the multiplication by the scale takes, which is no copy."""
    if not scales.height:
        return []
    return [
        Evidence(
            "scale",
            value=int(scales["dur"].sum()) / view.steps,
            unit="ns",
            note="a step, of weights that were dequantized",
            count=scales.height / view.steps,
        )
    ]


def part_line(view: View, row: Mapping[str, Any]) -> Evidence:
    """Return what one part takes, with the lines that ask for most of it."""
    places = (
        view.copies.filter(pl.col("part") == row["part"])
        .drop_nulls("file")
        .group_by("file", "line", "function")
        .agg(time=pl.col("dur").sum())
        .sort("time", "file", "line", descending=[True, False, False])
        .head(2)
    )
    lines = [at_function(*row[:3]) for row in places.iter_rows()]
    hint = HINTS.get(row["part"])
    notes = "; ".join([*([hint] if hint else []), *lines])
    return Evidence(
        "part",
        NOUNS[row["part"]],
        value=row["time"] / view.steps,
        unit="ns",
        note="a step" + (f" ({notes})" if notes else ""),
        count=row["calls"] / view.steps,
    )

"""Which part of a step the host was in: forward, backward, optimizer, data, other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.model import schema

if TYPE_CHECKING:
    from traceq.graph.host import HostTree

_PHASE = pl.Enum(schema.PHASES)
# Threads on which so much is autograd's are its own.
_AUTOGRAD_SHARE = 0.5


def of_tree(
    tree: HostTree,
    ops: pl.DataFrame,
    regions: pl.DataFrame,
    module: pl.Series,
    step: pl.Series,
) -> pl.Series:
    """Return the phase of each row of the host tree.

    Backward, optimizer and data are told by autograd's ops and by regions; forward
    by regions, modules, and by coming before a backward of the same step.
    """
    backward = tree.spread("ops", ops["backward"]).fill_null(value=False)
    region = tree.spread("annotations", regions["phase"])
    rows = pl.DataFrame(
        {
            "thread": tree.thread,
            "ts": tree.ts,
            "step": step,
            "module": module.is_not_null(),
            "backward": backward,
            "region": region,
        }
    ).with_columns(
        firm=pl.when("backward")
        .then(pl.lit("backward", _PHASE))
        .when(pl.col("region") != pl.lit("forward", _PHASE))
        .then("region")
    )
    around = tree.at(rows["firm"].is_not_null())
    forward = tree.at(
        (rows["region"] == "forward").fill_null(value=False)
    ).is_not_null()
    rows = rows.with_columns(firm=rows["firm"].gather(around), forward=forward)
    is_backward = pl.col("firm") == pl.lit("backward", _PHASE)
    own_thread = (
        is_backward.fill_null(value=False).mean().over("thread") > _AUTOGRAD_SHARE
    )
    last_backward = pl.col("ts").filter("backward").max()
    return rows.select(
        pl.coalesce(
            pl.col("firm"),
            pl.when(own_thread).then(pl.lit("backward", _PHASE)),
            pl.when(pl.col("forward") | pl.col("module")).then(
                pl.lit("forward", _PHASE)
            ),
            pl.when(
                (pl.col("ts") < last_backward.over("step")) | last_backward.is_null()
            ).then(pl.lit("forward", _PHASE)),
            pl.lit("other", _PHASE),
        ).alias("phase")
    ).to_series()

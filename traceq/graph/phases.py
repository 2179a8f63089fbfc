"""Phase of each moment on the host: forward, backward, optimizer, data, other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common.expressions import known
from traceq.model import schema

if TYPE_CHECKING:
    from traceq.graph.host import HostTree

_PHASE = pl.Enum(schema.PHASES)
# Threads with at least this share of autograd's ops are its own.
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
    by regions, by ``module`` calls among the frames, by what autograd counts in an
    optimizer's region, and by coming before a backward of the same step.
    """
    backward = known(tree.spread("ops", ops["backward"]))
    region = tree.spread("annotations", regions["phase"])
    is_forward = region == "forward"
    firm = pl.select(
        pl.when(backward)
        .then(pl.lit("backward", _PHASE))
        .when(~is_forward)
        .then(region)
    ).to_series()
    marked = is_forward | tree.spread("frames", module.is_not_null())
    around = tree.at(firm.is_not_null())
    forward = tree.at(known(marked))
    numbered = known(tree.spread("ops", ops["numbered"]))
    rows = pl.DataFrame(
        {
            "thread": tree.thread,
            "ts": tree.ts,
            "step": step,
            "numbered": numbered,
            "firm": firm[around],
            "forward": forward.is_not_null(),
            # Of two rows around another, the inner one comes later.
            "inside": known(forward > around),
            # An optimizer runs without autograd, but for a closure that it calls.
            "closure": known(tree.at(numbered) > around),
        }
    )
    is_backward = (pl.col("firm") == pl.lit("backward", _PHASE)).fill_null(value=False)
    # What loads data may be modules, as the transforms of torchvision are.
    is_data = (pl.col("firm") == pl.lit("data", _PHASE)).fill_null(value=False)
    is_closure = pl.col("closure") & (pl.col("firm") == pl.lit("optimizer", _PHASE))
    # Without a GPU, backward runs on the thread of the forward.
    own_thread = (is_backward.mean().over("thread") > _AUTOGRAD_SHARE) & ~(
        pl.col("numbered") & ~is_backward
    ).any().over("thread")
    last_backward = pl.col("ts").filter(is_backward).max()
    before_backward = (
        pl.col("ts") < last_backward.over("step")
    ) | last_backward.is_null()
    forward_phase = pl.lit("forward", _PHASE)
    return rows.select(
        pl.coalesce(
            # An optimizer may call the model, and a backward may compute it again.
            pl.when((pl.col("inside") | is_closure) & ~is_backward & ~is_data).then(
                forward_phase
            ),
            pl.col("firm"),
            pl.when(own_thread).then(pl.lit("backward", _PHASE)),
            pl.when(pl.col("forward") | before_backward).then(forward_phase),
            pl.lit("other", _PHASE),
        ).alias("phase")
    ).to_series()

"""Flame graphs of a step: time by phase, module, line and op.

Each row is a path from the outside in, with the time at its end: the times of all rows
add up to the total, and those below a part of the path to that part. Layers of one
class are merged. Times are as recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.fused_kernels import by_part
from traceq.analysis.time.gpu_causes import gpu_causes
from traceq.analysis.time.host_activity import (
    BLOCKING,
    CAPTURING,
    COMPILING,
    DATA,
    DISPATCH,
    ENGINE,
    LAUNCHES,
    OPTIMIZER,
    SYNC,
)
from traceq.common.expressions import text
from traceq.common.words import layer_names

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace

_OTHER = "other"
# Host work in these belongs to a phase, whatever ops are around it.
_PHASES = {OPTIMIZER: "optimizer", ENGINE: "backward", DATA: "data"}
# Of these the name says what ran; of other kinds only where it is from.
_NAMED = (DISPATCH, LAUNCHES, SYNC, BLOCKING, CAPTURING, COMPILING)
_PLACE = ("phase", "module", "file", "line", "function", "call_line")
_KEYS = (*_PLACE, "op", "leaf", "cause")


def gpu_flame(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return GPU time: ``path``, ``cause`` (of gpu_causes), ``time`` and ``calls``.

    Time and calls are per step, longest first. The last parts of a path are the op,
    where it is known, and the kernel.
    """
    kernels = by_part(trace, steady.kernels)
    rows = kernels.with_columns(
        op=trace.ops["name"][kernels["op"]],
        leaf=pl.col("name"),
        cause=gpu_causes(trace, kernels["id"]),
    )
    return _paths(
        rows,
        time=pl.col("time").sum() / steady.count,
        calls=pl.len() / steady.count,
    )


def host_flame(trace: Trace, segments: pl.DataFrame, steps: int) -> pl.DataFrame:
    """Return the host's self time, and how long the GPU idles meanwhile.

    ``path``, ``cause`` (the kind of host_kinds), ``time``, ``idle`` and ``calls``, per
    step. The segments are those of the account of the host.
    """
    around = pl.col("phase").forward_fill().over("step")
    same = around == pl.col("phase").backward_fill().over("step")
    rows = segments.with_columns(
        phase=pl.coalesce(
            pl.col("kind").replace_strict(
                _PHASES, default=None, return_dtype=trace.ops.schema["phase"]
            ),
            trace.ops["phase"][segments["op"]],
        ),
        op=pl.lit(None, pl.String),
        leaf=pl.when(pl.col("kind").is_in(_NAMED) & pl.col("name").is_not_null())
        .then("name")
        .otherwise("kind"),
        cause=pl.col("kind"),
        call_line=pl.lit(None, pl.UInt32),
        call=pl.col("at").is_first_distinct() & pl.col("at").is_not_null(),
        # Time between two ops of a phase belongs to that phase, too.
    ).with_columns(phase=pl.coalesce("phase", pl.when(same).then(around)))
    return _paths(
        rows,
        time=(pl.col("end") - pl.col("start")).sum() / steps,
        idle=pl.col("idle").sum() / steps,
        calls=pl.col("call").sum() / steps,
    )


def _paths(rows: pl.DataFrame, **sums: pl.Expr) -> pl.DataFrame:
    """Return rows by path and cause, with sums, those that take longest first."""
    line = pl.coalesce(
        pl.format("{}:{} {}", text("file"), "call_line", text("function")),
        pl.format("{} ({}:{})", text("function"), text("file"), "line"),
        text("file"),
    )
    modules = layer_names(pl.col("module")).str.split("/").fill_null([])
    path = pl.concat_list(
        text("phase").fill_null(_OTHER), modules, line, text("op"), text("leaf")
    ).list.drop_nulls()
    # By what makes a path, as it is in the table: texts are long, and made once.
    grouped = rows.group_by(_KEYS).agg(**sums)
    return (
        grouped.with_columns(path=path)
        .group_by("path", "cause")
        .agg(pl.col(*sums).sum())
        .filter(pl.col("time") > 0)
        .sort("time", "path", "cause", descending=[True, False, False])
    )

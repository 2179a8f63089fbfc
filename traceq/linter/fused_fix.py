"""Fixes that replace several ops by one fused op, on the GPU and on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.model.finding import Fix

if TYPE_CHECKING:
    from traceq.analysis.base.ownership import Row


def fused_fixes(row: Row, left: tuple[float, float]) -> list[Fix]:
    """Return the fixes of a row with ``share`` and the columns of ``host_totals``.

    Of its kernels that is the share; of the host's time in the forward and in the
    backward what exceeds the fused op, which takes as long as ``left`` launches.
    """
    passes = (("spans", "forward_launches"), ("backward_spans", "backward_launches"))
    return [
        Fix(kernels=row["kernels"], kernel_share=row["share"]),
        *(
            Fix(
                spans=pl.DataFrame(row[spans]),
                host_share=max(0.0, 1 - row["calls"] * stays / row[launches]),
            )
            for (spans, launches), stays in zip(passes, left, strict=True)
            if row[spans] and row[launches]
        ),
    ]

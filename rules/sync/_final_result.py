"""The result of a program, which it copies to the host at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import fill_false, same_place

from ._written import COPYING

if TYPE_CHECKING:
    from traceq.linter import View


def are_final(view: View, waits: pl.DataFrame) -> pl.Series:
    """Return which waits copy the result of the one recorded step to the host.

    Nothing runs on the GPU after them, so that it idles for none of them: the program
    has to wait for its result. In a loop the next step would follow, and of several
    copies at one place all could be one.
    """
    last = view.trace.kernels["ts"].max()
    final = (
        (pl.col("copies") == "to host")
        & pl.col("cause").is_in(list(COPYING))
        & (pl.col("gap") == 0)
        & (pl.col("end") >= pl.lit(last))
        & (pl.len().over(*same_place()) == 1)
        & pl.lit(view.trace.steps.height <= 1)
    )
    return waits.select(fill_false(final).alias("final")).to_series()

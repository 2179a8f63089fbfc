"""The tables of one trace, together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from traceq.errors import UsageError
from traceq.model.schema import TABLES

if TYPE_CHECKING:
    from traceq.model.facts import Facts

COPY = pl.col("captured") & (pl.col("ts") < 0)
"""Filter of ops that stand for a replay of a CUDA graph."""


@dataclass(frozen=True, repr=False)
class Tables:
    """One trace as Polars frames; ``traceq schema`` says what is in their columns."""

    facts: Facts
    ops: pl.DataFrame
    kernels: pl.DataFrame
    runtime: pl.DataFrame
    annotations: pl.DataFrame
    steps: pl.DataFrame
    frames: pl.DataFrame
    memory: pl.DataFrame
    devices: pl.DataFrame
    threads: pl.DataFrame
    inputs: pl.DataFrame
    fused: pl.DataFrame
    other: pl.DataFrame

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.facts.path}: {self.ops.height:,} ops,"
            f" {self.kernels.height:,} kernels, {self.steps.height} steps>"
        )

    @cached_property
    def host_ops(self) -> pl.DataFrame:
        """The ops that the host ran, without the copies for replays of CUDA graphs.

        They come first in ``ops``, so that an op's id is its row here too.
        """
        if not self.ops["captured"].any():
            # The same table: what was asked of it is known.
            return self.ops
        return self.ops.head(self.ops.height - self.ops.select(COPY.sum()).item())

    @property
    def kernel_ops(self) -> pl.DataFrame:
        """The ops whose kernels ran: for CUDA graphs those of replays, not of captures.

        What only compiles is not among them.
        """
        return self.ops if self.ran.all() else self.ops.filter(self.ran)

    @cached_property
    def ran(self) -> pl.Series:
        """Mask of ``ops`` that are ``kernel_ops``, to select some of their columns."""
        if not self.ops["captured"].any():
            return ~self.ops["compiling"]
        ran = ~pl.col("compiling") & (~pl.col("captured") | COPY)
        return self.ops.select(ran).to_series()

    def table(self, name: str) -> pl.DataFrame:
        """Return one table by its name."""
        if name not in TABLES:
            msg = f"there is no table {name!r}; there are " + ", ".join(TABLES)
            raise UsageError(msg)
        frame: pl.DataFrame = getattr(self, name)
        return frame

    def frames_by_name(self) -> dict[str, pl.DataFrame]:
        """Return all tables by their names."""
        return {name: self.table(name) for name in TABLES}

"""Ops and regions that only one of the two steps has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.steady import in_steps
from traceq.common.expressions import text
from traceq.differ.structure import plain_op
from traceq.model.names import REGION

if TYPE_CHECKING:
    from traceq.analysis.base.steady import SteadySteps
    from traceq.model.trace import Trace

# Marks of torch.compile, which have names of their own in every run.
_COMPILER = r"compile_id=|^## Call CompiledFxGraph|\(dynamo_timed\)$"


@dataclass(frozen=True)
class Calls:
    """Names of ops and regions with how often each is called in a step."""

    before: tuple[tuple[str, float], ...]
    """Calls of the first side only, the most frequent first."""
    after: tuple[tuple[str, float], ...]
    """Calls of the second side only, the most frequent first."""


def calls_of(trace: Trace, steady: SteadySteps) -> pl.DataFrame:
    """Return the outermost ops and the regions of a step: ``name`` and ``calls``."""
    outermost = trace.host_ops.filter(pl.col("parent").is_null(), ~pl.col("compiling"))
    regions = trace.annotations.filter(~pl.col("on_gpu"))
    calls = pl.concat(
        [
            in_steps(table, trace, steady)
            .group_by("name")
            .agg(calls=pl.len())
            .with_columns(text("name"))
            for table in (outermost, regions)
        ]
    ).filter(~pl.col("name").str.contains(f"{REGION}|{_COMPILER}"))
    return (
        calls.with_columns(name=plain_op(pl.col("name")))
        .group_by("name")
        .agg(calls=pl.col("calls").sum() / steady.count)
        .sort("calls", "name", descending=[True, False])
    )


def compare_calls(before: pl.DataFrame, after: pl.DataFrame) -> Calls:
    """Return the calls that only one side has."""
    removed = before.join(after, on="name", how="anti", maintain_order="left")
    new = after.join(before, on="name", how="anti", maintain_order="left")
    return Calls(tuple(removed.iter_rows()), tuple(new.iter_rows()))

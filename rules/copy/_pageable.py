"""Copies from pageable memory: their calls, rates and the sentence on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.linter import Evidence, View, counted, often, size, tensor

from ._transfers import TO_HOST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_ON_GPU = "on the GPU a step"


def message(row: Mapping[str, Any], steps: int) -> str:
    way = "from pageable memory to the GPU"
    if row["direction"] == TO_HOST:
        way = "from the GPU to pageable memory"
    calls = row["calls"] / steps
    if row["calls"] <= steps and row["dims"]:
        what = tensor(row["dst"], row["dims"])
        each = size(row["bytes"] / row["calls"])
        return f"{what} of {each} is copied {way} {often(calls)}"
    verb = "is" if calls == 1 else "are"
    total = size(row["bytes"] / steps)
    return f"{counted(calls, 'tensor')} of {total} in all {verb} copied {way} in a step"


def rates(
    row: Mapping[str, Any], pinned: float, saved_ns: float, steps: int
) -> list[Evidence]:
    """Return how fast it goes, and how much faster on the GPU if it were pinned.

    Of small copies it is what they take on the host.
    """
    if row["largest"] < assumptions.PAGEABLE_COPY_BYTES:
        each = row["host"] / steps
        return [Evidence("host", value=each, unit="ns", note="a step, as recorded")]
    rate = Evidence("rate", value=row["bytes"] / row["time"], note="GB/s")
    if not saved_ns:
        # A copy that is as fast as that still blocks the host.
        return [rate]
    return [
        rate,
        Evidence("pinned", value=pinned, note="GB/s"),
        Evidence("saved", value=saved_ns / steps, unit="ns", note=_ON_GPU),
    ]


def blocking_calls(view: View, ops: list[int]) -> pl.Series:
    """Return the calls of the copies, and those that wait for them to end."""
    return view.runtime.filter(
        pl.col("op").is_in(ops), pl.col("call").is_in(["copy", "sync"])
    )["id"]

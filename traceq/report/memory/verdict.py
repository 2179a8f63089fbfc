"""The verdict on a device's memory: what failed, leaks or is wasted, and the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.common import units
from traceq.common.safe_text import printable
from traceq.common.words import counted
from traceq.report.base.text import place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.analysis.memory.summary import MemorySummary

# Free memory from this share of what is reserved on is named. Heuristic threshold.
_MUCH_FREE = 0.2
_FEWEST_STEPS = 2
# A few events before the first step or after the last are not a step.
_PART = 0.05


def verdict(summary: MemorySummary) -> str:
    """Return sentences on a device: its problems, or that there is none, and the peak.

    Whether something leaks is said only of a history with two steps.
    """
    if not summary.peak["allocated"]:
        return "Nothing is allocated."
    problems = list(_problems(summary))
    return " ".join([*(problems or [_no_problem(summary)]), _peak(summary)])


def _problems(summary: MemorySummary) -> Iterator[str]:
    if count := summary.failures.height:
        last = summary.failures.row(-1, named=True)
        where = place(last["file"], last["line"], last["function"])
        at = f" at {where}" if where else ""
        times = f", the last of {counted(count, 'time')}" if count > 1 else ""
        free = last["reserved"] - last["allocated"]
        yield (
            f"Out of memory: {units.size(last['asked'])} did not fit{at}{times}, with"
            f" {units.size(free)} reserved and free."
        )
    if summary.leaks.height:
        by_line = (
            summary.leaks.group_by("file", "line", "function", maintain_order=True)
            .agg(pl.col("per_step").sum())
            .sort("per_step", descending=True, maintain_order=True)
        )
        leaked = int(by_line["per_step"].sum())
        first = by_line.row(0, named=True)
        where = place(first["file"], first["line"], first["function"])
        mostly = "most" if by_line.height > 1 else "all"
        at = f", {mostly} at {where}" if where else ""
        yield f"Each step leaks {units.size(leaked)}{at}."
    fragmentation, reserved = summary.fragmentation, summary.peak["reserved"]
    free = fragmentation.fragmented + fragmentation.releasable + fragmentation.private
    if free > _MUCH_FREE * reserved:
        parts = {
            "fragmented between live tensors": fragmentation.fragmented,
            "in segments that torch.cuda.empty_cache() frees": fragmentation.releasable,
            "in private pools, as of CUDA graphs": fragmentation.private,
        }
        most = max(parts, key=lambda part: parts[part])
        yield (
            f"{units.size(free)} of the {units.size(reserved)} reserved at the peak are"
            f" free ({units.share(free, reserved)}), {units.size(parts[most])} of it"
            f" {most}."
        )


def _no_problem(summary: MemorySummary) -> str:
    steps = summary.steps
    if steps.height:
        steps = steps.filter(pl.col("events") >= _PART * pl.col("events").max())
    if steps.height < _FEWEST_STEPS:
        return "Whether steps leak is not known: the snapshot does not show two."
    return "No leak, no failed allocation, and little that is reserved is free."


def _peak(summary: MemorySummary) -> str:
    peak = summary.peak
    moment = [peak["phase"]] if peak["phase"] else []
    moment += [f"step {peak['step']}"] if peak["step"] is not None else []
    reached = f", reached in {' of '.join(moment)}," if moment else ""
    text = f"{units.size(peak['allocated'])}{reached}"
    categories = summary.categories.filter(pl.col("category") != "unknown")
    if not categories.height:
        return printable(f"The peak is {text.rstrip(',')}.")
    first = categories.row(0, named=True)
    mainly = f"{units.share(first['size'], peak['allocated'])} {first['category']}"
    return printable(f"The peak of {text} is {mainly}.")

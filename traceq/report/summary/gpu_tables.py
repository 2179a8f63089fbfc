"""The account of the GPU's time, as tables and as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.time.gpu_account import TRANSFERS, WORK
from traceq.common import units
from traceq.common.safe_text import printable
from traceq.report.base.columns import Column, cut_middle, cut_place
from traceq.report.base.content import TextTable
from traceq.report.base.text import of_function

if TYPE_CHECKING:
    from traceq.analysis.time.gpu_account import GpuAccount

_MOST_ROWS = 12
_MOST_MODULES = 20
_LEAST_IN_MODULE = 0.01
_NEEDED = (WORK, TRANSFERS)
_BOUND = {
    "compute": "compute-bound",
    "bandwidth": "memory-bound",
    "latency": "latency-bound",
}


def gpu_tables(account: GpuAccount, unit: str) -> list[TextTable]:
    """Return the account: by part, by bound, the largest losses, and by module."""
    parts = (_kinds, _bounds, _losses, _modules)
    return [part(account, unit) for part in parts]


def gpu_words(account: GpuAccount) -> str:
    """Return the busy time, the part that the work needs, and the ridge points."""
    text = (
        f"busy {units.time(account.busy_ns)}, of which its work needs"
        f" {units.time(account.floor_ns)}"
    )
    ridge = ", ".join(
        f"{round(at):,} in {dtype}"
        for dtype, at in sorted(account.ridge.items(), key=lambda one: one[1])
    )
    if not ridge:
        return text
    return f"{text}; compute-bound from this many FLOP per byte on: {ridge}"


def gpu_data(account: GpuAccount) -> dict[str, Any]:
    """Return the account in nanoseconds per step."""
    return {
        "busy_ns": account.busy_ns,
        "floor_ns": account.floor_ns,
        "above_floor_ns": account.above_ns,
        "ridge_flops_per_byte": account.ridge,
        "parts": account.kinds.select("part", "time", "kernels").to_dicts(),
        "bounds": account.bounds.to_dicts(),
        "entries": account.lines.to_dicts(),
        "modules": account.modules.select(
            "part", "module", "time", "kernels"
        ).to_dicts(),
    }


def _numbers(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title, number=True) for title in titles)


def _kinds(account: GpuAccount, unit: str) -> TextTable:
    return TextTable(
        (Column("Busy time of the GPU", weight=2), *_numbers(unit, "share", "kernels")),
        tuple(
            (
                row["part"],
                units.milliseconds(row["time"]),
                units.share(row["time"], account.busy_ns),
                units.amount(round(row["kernels"], 1), ""),
            )
            for row in account.kinds.iter_rows(named=True)
        ),
    )


def _bounds(account: GpuAccount, unit: str) -> TextTable:
    return TextTable(
        (Column("Bound of its ops", weight=2), *_numbers(unit, "share", "kernels")),
        tuple(
            (
                _BOUND.get(row["bound"] or "", "unknown"),
                units.milliseconds(row["time"]),
                units.share(row["time"], account.busy_ns),
                units.amount(round(row["kernels"], 1), ""),
            )
            for row in account.bounds.iter_rows(named=True)
        ),
    )


def _losses(account: GpuAccount, unit: str) -> TextTable:
    lost = account.lines.filter(~pl.col("part").is_in(_NEEDED))
    return TextTable(
        (
            Column("Largest losses", weight=3, cut=cut_middle),
            Column("op", weight=2, cut=cut_middle),
            *_numbers(unit, "share", "kernels"),
            Column("where", weight=2, cut=cut_place),
        ),
        tuple(
            (
                row["part"],
                printable(row["name"] or ""),
                units.milliseconds(row["time"]),
                units.share(row["time"], account.busy_ns),
                units.amount(round(row["kernels"], 1), ""),
                of_function(row["file"], row["line"], row["function"]),
            )
            for row in lost.head(_MOST_ROWS).iter_rows(named=True)
        ),
    )


def _modules(account: GpuAccount, unit: str) -> TextTable:
    needed = pl.col("time").filter(pl.col("part").is_in(_NEEDED)).sum()
    modules = (
        account.modules.drop_nulls("module")
        .group_by("module", maintain_order=True)
        .agg(time=pl.col("time").sum(), needed=needed)
        .filter(pl.col("time") >= _LEAST_IN_MODULE * account.busy_ns)
        .sort("time", "module", descending=[True, False])
    )
    return TextTable(
        (
            Column("Busy time by module", weight=3, cut=cut_middle),
            *_numbers(unit, "share", "lost"),
        ),
        tuple(
            (
                printable(row["module"]),
                units.milliseconds(row["time"]),
                units.share(row["time"], account.busy_ns),
                units.milliseconds(row["time"] - row["needed"]),
            )
            for row in modules.head(_MOST_MODULES).iter_rows(named=True)
        ),
    )

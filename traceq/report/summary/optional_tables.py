"""Optional tables of a summary: critical path and host time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.common import units
from traceq.common.safe_text import printable
from traceq.model.host_work import host_work_name
from traceq.report.base.columns import Column, cut_middle, cut_place
from traceq.report.base.content import TextTable
from traceq.report.base.text import of_function, short_kernel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.analysis.replay.critical_path import CriticalPath
    from traceq.analysis.replay.host_account import HostAccount

_MOST_ROWS = 12
_MOST_MODULES = 20
_LEAST_IN_MODULE = 0.01


def critical_tables(path: CriticalPath, unit: str) -> list[TextTable]:
    """Return the tables of the critical path."""
    return [_critical_kernels(path, unit), _critical_host(path, unit)]


def host_tables(account: HostAccount, unit: str) -> list[TextTable]:
    """Return the account of the host's time."""
    return [part(account, unit) for part in (_host_kinds, _host_entries, _host_modules)]


def _critical_kernels(path: CriticalPath, unit: str) -> TextTable:
    whole = path.gpu_ns + path.host_ns
    return TextTable(
        (
            Column("Critical path: GPU", weight=4, cut=cut_middle),
            *(Column(title, number=True) for title in (unit, "share", "calls")),
            Column("where", weight=3, cut=cut_place),
        ),
        tuple(
            (
                short_kernel(row["name"]),
                units.milliseconds(row["time"]),
                units.share(row["time"], whole),
                units.number(row["calls"]),
                of_function(row["file"], row["line"], row["function"]),
            )
            for row in path.kernels.head(_MOST_ROWS).iter_rows(named=True)
        ),
    )


def _critical_host(path: CriticalPath, unit: str) -> TextTable:
    whole = path.gpu_ns + path.host_ns
    return TextTable(
        (
            Column("Critical path: host"),
            *(Column(title, number=True) for title in (unit, "share")),
        ),
        tuple(
            (cause, units.milliseconds(time), units.share(time, whole))
            for cause, time in path.host.iter_rows()
        ),
    )


def _host_columns(unit: str) -> tuple[Column, ...]:
    titles = (f"{unit} as recorded", "share", "GPU idle", "estimated")
    return tuple(Column(title, number=True) for title in titles)


def _host_times(row: Mapping[str, Any], whole: float) -> tuple[str, ...]:
    return (
        units.milliseconds(row["recorded"]),
        units.share(row["recorded"], whole),
        units.milliseconds(row["idle"]),
        units.milliseconds(row["estimated"]),
    )


def _host_kinds(account: HostAccount, unit: str) -> TextTable:
    whole = float(account.entries["recorded"].sum())
    return TextTable(
        (Column("Time of the host", weight=2), *_host_columns(unit)),
        tuple(
            (host_work_name(row["kind"]), *_host_times(row, whole))
            for row in account.kinds.iter_rows(named=True)
        ),
    )


def _host_entries(account: HostAccount, unit: str) -> TextTable:
    whole = float(account.entries["recorded"].sum())
    return TextTable(
        (
            Column("Largest entries", weight=3, cut=cut_middle),
            *_host_columns(unit),
            Column("calls", number=True),
            Column("where", weight=2, cut=cut_place),
        ),
        tuple(
            (
                printable(_entry_name(row["kind"], row["name"])),
                *_host_times(row, whole),
                units.amount(round(row["calls"], 1), ""),
                of_function(row["file"], row["line"], row["function"]),
            )
            for row in account.lines.head(_MOST_ROWS).iter_rows(named=True)
        ),
    )


def _entry_name(kind: str, name: str | None) -> str:
    return ": ".join(filter(None, (host_work_name(kind), name)))


def _host_modules(account: HostAccount, unit: str) -> TextTable:
    whole = float(account.entries["recorded"].sum())
    modules = account.modules.filter(pl.col("recorded") >= _LEAST_IN_MODULE * whole)
    return TextTable(
        (Column("Time of the host by module", weight=3), *_host_columns(unit)),
        tuple(
            (
                "  " * row["depth"] + printable(row["module"].rpartition("/")[2]),
                *_host_times(row, whole),
            )
            for row in modules.head(_MOST_MODULES).iter_rows(named=True)
        ),
    )

"""Summaries as JSON, for programs: nanoseconds, bytes and shares of one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from traceq import __version__
from traceq.report.base.text import as_unicode, of_function, plain_json
from traceq.report.bound import bound_data
from traceq.report.summary.serving import serving_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.replay.critical_path import CriticalPath
    from traceq.analysis.replay.host_account import HostAccount
    from traceq.analysis.summary import Summary

VERSION = 2
_MOST_ROWS = 50


def render(summaries: Sequence[Summary]) -> str:
    """Return one object with the list of traces; ``version`` is that of its fields."""
    found = {
        "version": VERSION,
        "traceq": __version__,
        "traces": [_trace(summary) for summary in summaries],
    }
    return plain_json(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode()) + "\n"


def _trace(summary: Summary) -> dict[str, Any]:
    steps = summary.steady.count
    run, rank = summary.run, summary.rank
    return {
        "run": {"command": run.command, "labels": dict(run.labels), "state": run.state}
        if run
        else None,
        "labels": dict(summary.labels),
        "measured_step": asdict(rank.step_time) if rank and rank.step_time else None,
        "facts": asdict(summary.facts)
        | {
            "path": as_unicode(summary.facts.path),
            "incomplete": summary.facts.incomplete,
        },
        "devices": summary.devices.to_dicts(),
        "steps": summary.steps.to_dicts(),
        "averaged_steps": steps if summary.steps.height else 0,
        "as_recorded": {
            "step_ns": summary.step_time,
            "gpu_busy": summary.gpu_busy,
            "gpu_idle_ns": {
                cause: time / steps for cause, time in summary.idle.iter_rows()
            },
        },
        "bound": bound_data(summary.bound),
        "gpu_time_ns": summary.gpu_time / steps,
        "launches": summary.launches,
        "replayed": asdict(summary.replayed) if summary.replayed else None,
        "serving": serving_data(summary.serving),
        "kernels_under_5_us": summary.small_kernels,
        "kinds": [
            {
                "kind": row["kind"],
                "phase": row["phase"],
                "time_ns": row["time"] / steps,
                "kernels": row["kernels"] / steps,
            }
            for row in summary.kinds.iter_rows(named=True)
        ],
        "ops": [
            {
                "name": row["name"],
                "phase": row["phase"],
                "dims": row["dims"],
                "where": of_function(row["file"], row["line"], row["function"]) or None,
                "time_ns": row["time"] / steps,
                "calls": row["calls"] / steps,
            }
            for row in summary.ops.head(_MOST_ROWS).iter_rows(named=True)
        ],
        "kernels": [
            {
                "name": row["name"],
                "kind": row["kind"],
                "dtype": row["dtype"],
                "library": row["library"],
                "time_ns": row["time"] / steps,
                "calls": row["kernels"] / steps,
            }
            for row in summary.kernels.head(_MOST_ROWS).iter_rows(named=True)
        ],
        "critical_path": _path(summary.path) if summary.path else None,
        "host": _host(summary.host) if summary.host else None,
        "memory": asdict(summary.memory) if summary.memory else None,
        "compute": asdict(summary.compute),
    }


def _host(account: HostAccount) -> dict[str, Any]:
    """Return the account in nanoseconds per step."""
    return {
        "kinds": account.kinds.to_dicts(),
        "entries": account.entries.to_dicts(),
        "modules": account.modules.to_dicts(),
    }


def _path(path: CriticalPath) -> dict[str, Any]:
    return {
        "gpu_ns": round(path.gpu_ns),
        "host_ns": round(path.host_ns),
        "complete": path.complete,
        "kernels": path.kernels.head(_MOST_ROWS).to_dicts(),
        "host": path.host.to_dicts(),
    }

"""Summaries as JSON, for programs: nanoseconds, bytes and shares of one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl
from msgspec import to_builtins

from traceq import __version__
from traceq.common.safe_text import as_unicode, plain_json
from traceq.report.base.text import of_function
from traceq.report.bound import bound_data
from traceq.report.summary.gpu_tables import gpu_data
from traceq.report.summary.serving import serving_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.analysis.replay.critical_path import CriticalPath
    from traceq.analysis.replay.host_account import HostAccount
    from traceq.analysis.summary import Summary
    from traceq.analysis.time.phases import PhaseTime
    from traceq.analysis.time.tokens_per_step import Tokens

VERSION = 2
_MOST_ROWS = 50


def render(summaries: Sequence[Summary]) -> str:
    """Return one object with the list of traces; ``version`` is that of its fields."""
    document = {
        "version": VERSION,
        "traceq": __version__,
        "traces": [_trace(summary) for summary in summaries],
    }
    return (
        plain_json(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()) + "\n"
    )


def _trace(summary: Summary) -> dict[str, Any]:
    steps = summary.steady.count
    run, rank = summary.run, summary.rank
    return {
        "run": {"command": run.command, "labels": dict(run.labels), "state": run.state}
        if run
        else None,
        "labels": dict(summary.labels),
        "measured_step": to_builtins(rank.step_time)
        if rank and rank.step_time
        else None,
        "trained_parameters": summary.parameters,
        "doubtful_step_ns": summary.doubtful_step_ns,
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
        "phases": [_phase(summary, phase) for phase in summary.phases],
        "gpu_time_ns": summary.gpu_time / steps,
        "gemm_share": summary.gemm_share if summary.facts.gpu else None,
        "launches": summary.launches,
        "replayed": to_builtins(summary.replayed) if summary.replayed else None,
        "serving": serving_data(summary.serving),
        "queued_ns": summary.queued_ns,
        "kernels_under_5_us": summary.small_kernels,
        **_tables(summary),
        "modules": summary.modules.head(_MOST_ROWS)
        .select("module", "inside", time_ns="ns", kernels="kernels")
        .to_dicts()
        if summary.modules.height
        else [],
        "attention": {
            "softmax_ns": summary.attention.softmax_ns / steps,
            "matmul_ns": summary.attention.matmul_ns / steps,
            "softmax_to_matmul": summary.attention.ratio,
        }
        if summary.attention
        else None,
        "tokens": _tokens(summary, summary.tokens) if summary.tokens else None,
        "roofline": asdict(summary.roofline) if summary.roofline else None,
        "critical_path": _path(summary.path) if summary.path else None,
        "host": _host(summary.host) if summary.host else None,
        "gpu": gpu_data(summary.gpu) if summary.gpu else None,
        "memory": asdict(summary.memory) if summary.memory else None,
        "compute": asdict(summary.compute),
    }


def _tables(summary: Summary) -> dict[str, Any]:
    """Return the GPU work by kind, op and kernel, per step."""
    steps = summary.steady.count
    return {
        "kinds": [
            {
                "kind": row["kind"],
                "phase": row["phase"],
                "time_ns": row["time"] / steps,
                "kernels": row["kernels"] / steps,
            }
            for row in summary.kinds.iter_rows(named=True)
        ],
        "non_gemm": [
            {
                "kind": row["kind"],
                "time_ns": row["time"] / steps,
                "share": row["time"] / summary.gpu_time if summary.gpu_time else 0.0,
                "kernels": row["kernels"] / steps,
                "longest": row["longest"],
                "longest_ns": row["longest_time"] / steps,
            }
            for row in summary.non_gemm.iter_rows(named=True)
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
    }


def _tokens(summary: Summary, tokens: Tokens) -> dict[str, Any]:
    return {
        "per_step": tokens.per_step,
        "from": tokens.source,
        "per_second": summary.tokens_per_second,
        "step_from": "measured" if summary.bound.measured else "recorded",
    }


def _phase(summary: Summary, phase_time: PhaseTime) -> dict[str, Any]:
    """Return a phase in nanoseconds per step, as recorded; the last is the step."""
    longest = summary.longest.filter(
        pl.col("phase").cast(pl.String) == phase_time.phase
    )
    steps = summary.steady.count
    return asdict(phase_time) | {
        "share": phase_time.wall_ns / summary.step_time if summary.step_time else 0.0,
        "longest_kernel": {
            "name": longest["name"][0],
            "kind": longest["kind"][0],
            "time_ns": longest["time"][0] / steps,
            "of_gpu_time": longest["time"][0] / longest["all"][0],
        }
        if longest.height and longest["all"][0]
        else None,
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

"""A comparison as JSON, for programs: nanoseconds and bytes, per step."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from traceq import __version__
from traceq.common.safe_text import as_unicode, plain_json
from traceq.report.bound import bound_data
from traceq.report.diff import content as words
from traceq.report.diff import memory as memory_diff_content
from traceq.report.diff import modules as by_module
from traceq.report.lint.json import finding_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.differ.causes import Cause, Used
    from traceq.differ.compare import Diff, Side
    from traceq.differ.findings import FindingChange
    from traceq.differ.limits import Broken

VERSION = 2
KEYS = {
    "step": "step_ns",
    "gpu busy": "gpu_busy_ns",
    "idle": "gpu_idle_ns",
    "memory": "memory_bytes",
    "waiting": "waiting_ns",
    "transfer": "transfer_ns",
}
"""The names of metrics whose unit they have to state."""


def render(diff: Diff, broken: Sequence[Broken] = ()) -> str:
    """Return one object; ``version`` is that of its fields."""
    content = {
        "version": VERSION,
        "traceq": __version__,
        "failed": [
            {"limit": one.limit.text, "reason": text}
            for one, text in zip(broken, words.failures(broken), strict=True)
        ],
        "headline": words.headline(diff),
        "verdict": diff.verdict,
        "change_ns": round(diff.change_ns),
        "before": _side(diff.before),
        "after": _side(diff.after),
        "times_from": "measured" if diff.before.step.measured else "recorded",
        "metrics": {
            KEYS.get(metric.name, metric.name): {
                "before": metric.before,
                "after": metric.after,
            }
            for metric in diff.metrics
        },
        "causes": [_cause(cause, diff) for cause in diff.causes],
        "only_before": dict(diff.calls.before),
        "only_after": dict(diff.calls.after),
        "findings": [change_data(change) for change in diff.findings.changes],
        "findings_as_before": diff.findings.same,
        "rules_run_on_one_side": list(diff.findings.one_sided),
        "memory": memory_diff_content.data(diff.memory) if diff.memory else None,
        "modules": by_module.data(diff.modules) if diff.modules else None,
        "caveats": list(diff.caveats),
    }
    return plain_json(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode()) + "\n"


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": as_unicode(side.name),
        "step": asdict(side.step),
        "bound": bound_data(side.bound),
        "data_loaders": list(side.loaders),
    }


def _cause(cause: Cause, diff: Diff) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "affects": cause.affects,
        "text": words.reason(cause, diff).text,
        "ns": round(cause.ns),
        "sure_ns": round(cause.sure_ns),
        "kernel_kind": cause.kernel_kind,
        "host_kind": cause.host_kind,
        "before": _used(cause.before),
        "after": _used(cause.after),
        "details": [asdict(detail) for detail in cause.details],
    }


def _used(used: Used) -> dict[str, Any]:
    return {
        "ns": round(used.ns),
        "calls": used.calls,
        "kernels": used.kernels,
        "launches": used.launches,
        "syncs": used.syncs,
        "dtype": used.dtype,
        "kernel_names": dict(used.names),
        "ops": list(used.ops),
        "place": asdict(used.place),
    }


def change_data(change: FindingChange) -> dict[str, Any]:
    """Return the change of one finding, for programs."""
    return {
        "state": change.state,
        "before": finding_data(change.before) if change.before else None,
        "after": finding_data(change.after) if change.after else None,
    }

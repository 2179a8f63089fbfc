"""Diff as a function, for tests: what changed between two recordings."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT
from linting import SHARED, bundled_rules

from traceq.diff.compare import Diff, Half, compare, examine
from traceq.lint.config import Config
from traceq.lint.engine import lint
from traceq.loading import load
from traceq.recording import Recording
from traceq.report.diff import content as diff_content
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from traceq.trace import Trace

TRUE_MS = {
    "attn_flash": 9.30,
    "attn_fp32": 67.01,
    "attn_manual": 16.08,
    "attn_mask_cudnn": 9.81,
    "attn_mask_fmha": 12.23,
    "copies": 13.20,
    "copies_fixed": 3.49,
    "graph_record": 62.93,
    "graph_replay": 3.37,
    "graph_rerecord": 54.63,
    "layernorm_autocast": 12.45,
    "moe_batched": 6.02,
    "moe_loop": 53.41,
    "norm_fused": 9.24,
    "norm_mismatch": 12.25,
    "optimizer_fused": 5.78,
    "optimizer_loop_sync": 8.15,
    "vocab_misaligned": 13.47,
    "vocab_padded": 6.79,
}
"""What a step of each case takes without the profiler."""


def half(
    trace: Trace,
    name: str = "drawn",
    step_ms: float | None = None,
    *,
    findings: bool = False,
) -> Half:
    """Look at one trace as diff does; rules look too only if findings are wanted."""
    step_ns = round(step_ms * 1_000_000) if step_ms else None
    recording = Recording(name, trace, None, step_ns)
    rules = bundled_rules()
    # A rule that needs a log finds nothing in a trace.
    select = ("ALL",) if findings else ("LOG001",)
    report = lint([recording], rules, Config(select=select))
    return examine(recording, report.outcomes[0])


def diff_of(
    before: Trace, after: Trace, step_ms: tuple[float, float] | None = None
) -> Diff:
    """Compare two traces."""
    first, second = step_ms or (None, None)
    return compare(half(before, "before", first), half(after, "after", second))


def drawn_diff(
    before: str,
    after: str,
    args: Mapping[str, Mapping[str, Any]] | None = None,
    step_ms: tuple[float, float] | None = None,
) -> Diff:
    """Compare two drawn traces."""
    return diff_of(load_drawn(before, args), load_drawn(after, args), step_ms)


@cache
def shared_half(name: str, *, measured: bool, findings: bool = False) -> Half:
    """Look at a trace of ../shared/traces, or its fixture; or skip without either."""
    places = (
        SHARED / f"{name}.trace.json.gz",
        SHARED / f"{name}.json.gz",
        ROOT / "fixtures" / name / "trace.json.gz",
        ROOT / "fixtures" / "twins" / name / "trace.json.gz",
    )
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        pytest.skip(f"../shared/traces/{name} is not there")
    step_ms = TRUE_MS.get(name) if measured else None
    return half(load(path, cache=False), name, step_ms, findings=findings)


def shared_diff(before: str, after: str, *, measured: bool = False) -> Diff:
    """Compare two of these."""
    return compare(
        shared_half(before, measured=measured), shared_half(after, measured=measured)
    )


def causes(diff: Diff) -> list[str]:
    """Return the causes that are named, in words, biggest first."""
    return [reason.text for reason in diff_content.reasons(diff)]

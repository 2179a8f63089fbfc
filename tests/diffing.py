"""Diff as a function, for tests: what changed between two recordings."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from linting import bundled_rules
from recordings import CAPTURES, loaded, path_of

from traceq.differ.compare import Diff, Half, compare, examine
from traceq.linter.config import Config
from traceq.linter.engine import lint
from traceq.model.recording import Recording
from traceq.report.diff import content as diff_content
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from traceq.model.trace import Trace


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
def half_of(
    path: Path, step_ms: float | None = None, *, findings: bool = False
) -> Half:
    """Look at the trace of a file, once."""
    return half(loaded(path), path.name, step_ms, findings=findings)


def shared_half(name: str, *, measured: bool, findings: bool = False) -> Half:
    """Look at the trace of a capture, or of public/, or skip."""
    ending = ".json.gz" if name.startswith("public/") else ".trace.json.gz"
    step_ms = CAPTURES.step_ms.get(name) if measured else None
    return half_of(path_of(f"{name}{ending}"), step_ms, findings=findings)


def shared_diff(before: str, after: str, *, measured: bool = False) -> Diff:
    """Compare two of these."""
    return compare(
        shared_half(before, measured=measured), shared_half(after, measured=measured)
    )


def causes(diff: Diff) -> list[str]:
    """Return the causes that are named, in words, biggest first."""
    return [reason.text for reason in diff_content.reasons(diff)]

"""Lint as a function, for tests: which findings a recording has."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from traceq.formats.log import log_lines, read_log
from traceq.formats.snapshot import read_snapshot
from traceq.lint.config import Config
from traceq.lint.engine import lint
from traceq.lint.pack import load_rules
from traceq.loading import load
from traceq.recording import Recording
from traceq.testing import load_drawn, load_history

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from traceq.lint import Finding
    from traceq.lint.engine import Outcome
    from traceq.lint.pack import Rules
    from traceq.model.snapshot import Snapshot

SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"
_NANOSECONDS = 1_000_000


@cache
def bundled_rules() -> Rules:
    """Return traceq's own rules."""
    return load_rules()


def outcome(recording: Recording, *codes: str, **config: Any) -> Outcome:  # noqa: ANN401 - what Config takes
    """Return what rules say of one recording; without codes, all rules."""
    wanted = Config(select=codes or ("ALL",), **config)
    return lint([recording], bundled_rules(), wanted).outcomes[0]


def drawn_findings(
    drawing: str,
    *codes: str,
    args: Mapping[str, Mapping[str, Any]] | None = None,
    log: str | None = None,
) -> tuple[Finding, ...]:
    """Return the findings in a drawn trace."""
    recording = Recording(
        "drawn", load_drawn(drawing, args), log_lines(log) if log else None
    )
    return outcome(recording, *codes).findings


def log_findings(log: str, *codes: str) -> tuple[Finding, ...]:
    """Return the findings in a log alone."""
    return outcome(Recording("log", log=log_lines(log)), *codes).findings


def case_findings(
    name: str, *codes: str, step_ms: float | None = None, log: bool = False
) -> tuple[Finding, ...]:
    """Return the findings in a trace of ../shared/traces, or skip without it."""
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"../shared/traces/{name} is not there")
    written = path.with_name(path.name.replace(".trace.json.gz", ".log"))
    return outcome(
        Recording(
            name,
            load(path, cache=False),
            read_log(written) if log else None,
            round(step_ms * _NANOSECONDS) if step_ms else None,
        ),
        *codes,
    ).findings


def case_snapshot(name: str) -> Snapshot:
    """Return a snapshot of ../shared/traces, or skip without it."""
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"../shared/traces/{name} is not there")
    return read_snapshot(path)


def memory_findings(snapshot: Snapshot | str, *codes: str) -> tuple[Finding, ...]:
    """Return the findings in a snapshot, or in a drawn one."""
    known = load_history(snapshot) if isinstance(snapshot, str) else snapshot
    return outcome(Recording("memory", snapshots={0: known}), *codes).findings

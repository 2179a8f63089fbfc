"""Comparison of jobs with their expectations, and of new jobs with known ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from traceq.check.budgets import budgets_for
from traceq.check.check import (
    FixtureResult,
    NewRun,
    as_expected,
    budgets_of,
    expected_findings,
    no_worse,
)
from traceq.check.difference import Difference
from traceq.check.expected import expected
from traceq.check.fixture import read_fixture
from traceq.check.numbers import Numbers
from traceq.check.spread import tidy
from traceq.common.units import NS_PER_MS
from traceq.ranks.findings import lint_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from traceq.linter.config import Config
    from traceq.linter.pack import Rules
    from traceq.model.lint_report import RecordingReport
    from traceq.ranks.analysis import Analysis

_STEP, _SLOWDOWN = "step-ms", "slowdown"


def check_job(
    folder: Path, job: Analysis, rules: Rules, config: Config, *, update: bool = False
) -> FixtureResult:
    """Compare a job with what its folder says to expect; ``update`` writes that."""
    outcome = _linted(folder, job, rules, config)
    return as_expected(read_fixture(folder), outcome, numbers(job), update=update)


def check_job_against(
    folder: Path, before: Analysis, new: Analysis, rules: Rules, config: Config
) -> FixtureResult:
    """Compare a new job with one that is known: only what is worse fails the check.

    What its folder does not say to expect is what is found in its traces.
    """
    findings = expected_findings(folder)
    if findings is None:
        findings = expected(_linted(folder, before, rules, config).findings)
    budgets = budgets_of(folder) or budgets_for(numbers(before))
    incomparable = dict(_incomparable(before, new))
    differences = no_worse(
        folder,
        (findings, budgets),
        NewRun(_linted(folder, new, rules, config), numbers(new), incomparable),
        fail_on=config.fail_on,
    )
    notes = [
        Difference("budget", f"{name} is not compared: {why}", fails=False)
        for name, why in incomparable.items()
    ]
    return replace(differences, differences=(*differences.differences, *notes))


def numbers(job: Analysis) -> Numbers:
    """Return the numbers of a job that budgets limit."""
    values = {_SLOWDOWN: tidy(job.whatifs.slowdown)}
    if step := job.job.measured_step_ns or job.job.step_ns:
        values = {_STEP: tidy(step / NS_PER_MS)} | values
    return Numbers(values)


def _linted(
    folder: Path, job: Analysis, rules: Rules, config: Config
) -> RecordingReport:
    # The cost of a finding depends on the machine; the finding itself does not.
    everything = structs.replace(config, min_cost_us=0)
    return lint_job(str(folder), job, rules, everything).outcomes[0]


def _incomparable(before: Analysis, new: Analysis) -> Iterator[tuple[str, str]]:
    """Yield the budgets that a new job cannot be held to, and why."""
    sides = [analysis.job for analysis in (before, new)]
    ranks, devices, measured = (
        [side.ranks.height for side in sides],
        [side.ranks["device"].unique().sort().to_list() for side in sides],
        [side.measured_step_ns is None for side in sides],
    )
    if ranks[0] != ranks[1]:
        for name in (_STEP, _SLOWDOWN):
            yield name, f"{ranks[1]} ranks, not {ranks[0]}"
    elif devices[0] != devices[1]:
        theirs, text = (
            ", ".join(filter(None, device)) or "no GPU" for device in devices
        )
        yield _STEP, f"{text}, not {theirs}"
    elif measured[0] != measured[1]:
        yield _STEP, "one was measured without the profiler"

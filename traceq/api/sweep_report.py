"""A sweep for its reports: the folder read, its traces linted, curves and growth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from traceq.analysis.base.steady import steady_steps
from traceq.analysis.configurations import MEMORY, MFU, RATE, STEP, sweep_table
from traceq.analysis.sweep_series import (
    Cost,
    charts,
    growths,
    usual_by,
    usual_over,
)
from traceq.analysis.time.mfu import compute
from traceq.api import settings
from traceq.api.lint import lint_files
from traceq.errors import UsageError
from traceq.formats.sweep_folder import read_sweep
from traceq.report.sweeps.shown import ShownSweep

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from traceq.analysis.configurations import Number, SweepTable
    from traceq.model.sweep_run import SweepRun


class ReportOptions(Struct, frozen=True, kw_only=True):
    """Options of a report on a sweep: axes, series, baseline."""

    over: str | None = None
    by: str | None = None
    numbers: Sequence[str] = ()
    baseline: str | None = None
    peak_tflops: float | None = None
    lint: bool = True
    cache: bool = True


def sweep_report(folder: Path, options: ReportOptions) -> ShownSweep:
    """Return a sweep with its curves; traces are linted once and then cached."""
    sweep = read_sweep(folder)
    runs = list(sweep.runs)
    costs: dict[tuple[str, ...], list[Cost]] = {}
    if options.peak_tflops is not None:
        runs = [
            msgspec.structs.replace(run, peak_tflops=options.peak_tflops)
            for run in runs
        ]
    if options.lint:
        runs, costs = _linted(runs, cache=options.cache)
    table = sweep_table(runs, sweep.grid)
    over = _label(table, options.over, "--over") or usual_over(table)
    by = _label(table, options.by, "--by")
    if over is not None and by is None:
        by = usual_by(table, over)
    if over is not None and over == by:
        msg = f"--over and --by are both {over}: name two labels"
        raise UsageError(msg)
    baseline = _baseline(table, options.baseline)
    numbers = _numbers(table, options.numbers)
    drawn = [
        chart
        for number in numbers
        if over is not None
        for chart in charts(table, number, over, by)
    ]
    ratios = [
        chart
        for number in numbers
        if over is not None and baseline
        for chart in charts(table, number, over, by, baseline)
    ]
    return ShownSweep(
        sweep=msgspec.structs.replace(sweep, runs=tuple(runs)),
        table=table,
        over=over,
        by=by,
        baseline=baseline,
        charts=tuple(drawn),
        ratios=tuple(ratios),
        growths=tuple(growths(table, over, costs)) if over is not None else (),
        linted=len(costs),
    )


def _linted(
    runs: Sequence[SweepRun], *, cache: bool
) -> tuple[list[SweepRun], dict[tuple[str, ...], list[Cost]]]:
    """Return the runs with the FLOPs of their traces, and the findings of the first.

    Of several runs of a configuration, the first that was traced is linted.
    """
    keys = list(dict.fromkeys(key for run in runs for key in run.labels))
    costs: dict[tuple[str, ...], list[Cost]] = {}
    flops: dict[tuple[str, ...], float] = {}
    config = settings.configuration(None)
    for run in sorted(runs, key=lambda sweep_run: sweep_run.repeat):
        labels = tuple(run.labels.get(key, "") for key in keys)
        if not run.ok or run.folder is None or labels in costs:
            continue
        load = settings.load_options(config, cache=cache)
        result = lint_files(
            [run.folder], settings.LintOptions(config=config, load=load)
        )
        if not result.report.outcomes:
            continue
        outcome = result.report.outcomes[0]
        costs[labels] = [
            Cost(finding.code, finding.name, finding.saves_ns)
            for finding in outcome.findings
            if finding.saves_ns > 0
        ]
        trace = result.recordings[0].trace if result.recordings else None
        counted = compute(trace, steady_steps(trace)).flops if trace else None
        if counted:
            flops[labels] = counted
    known = []
    for run in runs:
        labels = tuple(run.labels.get(key, "") for key in keys)
        counted = run.flops if run.flops is not None else flops.get(labels)
        known.append(msgspec.structs.replace(run, flops=counted))
    return known, costs


def _label(table: SweepTable, name: str | None, option: str) -> str | None:
    if name is not None and name not in table.keys:
        msg = f"{option} {name}: the labels are {', '.join(table.keys)}"
        raise UsageError(msg)
    return name


def _numbers(table: SweepTable, names: Sequence[str]) -> list[Number]:
    """Return the numbers to draw: what was measured and differs, unless named."""
    if not names:
        drawn = (STEP, MEMORY, RATE, MFU)
        numbers = [item for item in table.numbers if item.own or item.name in drawn]
        return [item for item in numbers if item.name == STEP or _differs(table, item)]
    results = []
    for name in names:
        number = table.number(name)
        if number is None:
            there = ", ".join(item.name for item in table.numbers) or "none"
            msg = f"there is no number {name}; there are {there}"
            raise UsageError(msg)
        results.append(number)
    return results


def _differs(table: SweepTable, number: Number) -> bool:
    means = {
        configuration.values[number.name].mean
        for configuration in table.configurations
        if number.name in configuration.values
    }
    return len(means) > 1


def _baseline(table: SweepTable, text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, sign, value = text.partition("=")
    if not sign or key not in table.keys or value not in table.values_of(key):
        there = ", ".join(
            f"{name}={each}"
            for name in table.different()
            for each in table.values_of(name)
        )
        msg = f"--baseline {text}: name a label and its value: {there}"
        raise UsageError(msg)
    return key, value

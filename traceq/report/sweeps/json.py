"""A sweep as JSON; docs/schemas/sweep.json describes the fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from traceq import __version__
from traceq.analysis.sweep_series import ratio
from traceq.common.safe_text import as_unicode, plain_json
from traceq.report.sweeps import words

if TYPE_CHECKING:
    from traceq.analysis.base.scaling_laws import Fit
    from traceq.analysis.configurations import Configuration, Value
    from traceq.analysis.sweep_series import Growth, Meeting, Series, SweepChart
    from traceq.model.sweep_run import OwnNumber, SweepRun
    from traceq.report.sweeps.shown import ShownSweep

VERSION = 1


def json(shown: ShownSweep) -> str:
    """Return one object; ``version`` is that of its fields, times are ns of a step."""
    sweep, table = shown.sweep, shown.table
    document = {
        "version": VERSION,
        "traceq": __version__,
        "path": as_unicode(str(sweep.folder)),
        "command": list(sweep.command),
        "seed": sweep.seed,
        "planned": sweep.planned,
        "labels": list(table.keys),
        "numbers": [
            {"name": number.name, "unit": number.unit, "own": number.own}
            for number in table.numbers
        ],
        "over": shown.over,
        "by": shown.by,
        "baseline": "=".join(shown.baseline) if shown.baseline else None,
        "configurations": [
            _configuration(shown, configuration)
            for configuration in table.configurations
        ],
        "runs": [_run(run) for run in sweep.runs],
        "charts": [_chart(chart) for chart in (*shown.charts, *shown.ratios)],
        "findings": [_growth(growth) for growth in shown.growths],
        "linted": shown.linted,
        "sentences": words.sentences(shown),
    }
    content = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    return plain_json(content) + "\n"


def _configuration(shown: ShownSweep, configuration: Configuration) -> dict[str, Any]:
    return {
        "labels": dict(configuration.labels),
        "status": configuration.status,
        "reason": configuration.reason,
        "runs": configuration.runs,
        "measured": configuration.measured,
        "values": {name: _value(value) for name, value in configuration.values.items()},
        "ratios": {
            number.name: _value(relative)
            for number in shown.table.numbers
            if shown.baseline
            and (relative := ratio(shown.table, configuration, number, shown.baseline))
        },
    }


def _value(value: Value) -> dict[str, Any]:
    return {"mean": value.mean, "std": value.std, "n": value.n, "of": value.of}


def _run(run: SweepRun) -> dict[str, Any]:
    return {
        "name": as_unicode(run.name),
        "labels": run.labels,
        "repeat": run.repeat,
        "status": run.status,
        "reason": run.reason,
        "step_ns": run.step_ns,
        "step_std_ns": run.step_std_ns,
        "steps": run.steps,
        "peak_bytes": run.peak_bytes,
        "parameters": run.parameters,
        "tokens": run.tokens,
        "flops": run.flops,
        "peak_tflops": run.peak_tflops,
        "numbers": {name: _own(number) for name, number in run.numbers.items()},
        "device": run.device,
    }


def _own(own_number: OwnNumber) -> dict[str, Any]:
    return {
        "last": own_number.last,
        "mean": own_number.mean,
        "std": own_number.std,
        "n": own_number.n,
    }


def _chart(chart: SweepChart) -> dict[str, Any]:
    return {
        "number": chart.number.name,
        "over": chart.over,
        "by": chart.by,
        "fixed": dict(chart.fixed),
        "baseline": chart.baseline or None,
        "series": [_series(series) for series in chart.series],
        "crossings": [_meeting(meeting) for meeting in chart.meetings],
    }


def _series(series: Series) -> dict[str, Any]:
    return {
        "name": series.name,
        "points": [
            {"value": point.text, **_value(point.value)} for point in series.points
        ],
        "fit": _fit(series.fit),
    }


def _fit(fit: Fit | None) -> dict[str, Any] | None:
    if fit is None:
        return None
    return {
        "law": fit.law,
        "base": fit.base,
        "slope": fit.slope,
        "power": fit.power,
        "floor": fit.floor,
        "error": fit.error,
    }


def _meeting(meeting: Meeting) -> dict[str, Any]:
    return {
        "first": meeting.first,
        "second": meeting.second,
        "at": meeting.at.at,
        "extrapolated": meeting.at.extrapolated,
        "fitted": meeting.fitted,
    }


def _growth(growth: Growth) -> dict[str, Any]:
    return {
        "code": growth.code,
        "name": growth.name,
        "over": growth.over,
        "fixed": dict(growth.fixed),
        "values": list(growth.values),
        "saves_ns": list(growth.saves_ns),
        "shares": list(growth.shares),
        "fit": _fit(growth.fit),
        "grows": growth.grows,
    }

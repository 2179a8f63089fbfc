"""A job as JSON, for programs: nanoseconds of the window, bytes and shares of one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import to_builtins

from traceq import __version__
from traceq.common.safe_text import as_unicode, plain_json
from traceq.report.lint.json import finding_data
from traceq.report.ranks.content import verdict

if TYPE_CHECKING:
    from traceq.model.lint_report import Report
    from traceq.ranks.analysis import Analysis, Straggler
    from traceq.ranks.counterfactual import WhatIf

VERSION = 1


def render(analysis: Analysis, report: Report) -> str:
    """Return one object; ``version`` is that of its fields."""
    data = _data(analysis) | {
        "fail_on": report.fail_on.value,
        "failing": len(report.failing),
        "findings": [
            finding_data(finding)
            for each in report.outcomes
            for finding in each.findings
        ],
        "crashed": [
            to_builtins(rule) for each in report.outcomes for rule in each.crashed
        ],
    }
    text = orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()
    return plain_json(text) + "\n"


def _data(analysis: Analysis) -> dict[str, Any]:
    job, whatifs = analysis.job, analysis.whatifs
    numbers = job.ranks["number"].to_list()
    return {
        "version": VERSION,
        "traceq": __version__,
        "verdict": verdict(analysis),
        "step_ns": job.step_ns,
        "steps": analysis.steps,
        "window_ns": job.window_ns,
        "replayed_ns": whatifs.took,
        "all_at_median_ns": whatifs.ideal,
        "slowdown": whatifs.slowdown,
        "matched": {
            "collectives": job.collectives.height,
            "by": dict(job.matched_by),
            "unmatched_parts": job.unmatched,
        },
        "notes": list(job.notices),
        "stragglers": [
            _straggler(straggler, numbers) for straggler in analysis.stragglers
        ],
        "what_if": [
            _whatif(change, numbers) for change in (whatifs.all, *analysis.changes)
        ],
        "ranks": _ranks(analysis),
        "collectives": job.collectives.drop("lane", "token", "first_rank", "soonest")
        .with_columns(late=job.ranks["number"].gather(job.collectives["late"]))
        .to_dicts(),
        "links": analysis.rates.to_dicts(),
        "pipeline": asdict(analysis.pipeline) if analysis.pipeline else None,
        "experts": {
            "layers": analysis.experts.layers.to_dicts(),
            "tokens": analysis.experts.tokens.to_dicts(),
        }
        if analysis.experts
        else None,
    }


def _ranks(analysis: Analysis) -> list[dict[str, Any]]:
    joined = analysis.job.ranks.join(
        analysis.by_rank.drop("number"), on="rank", how="left", maintain_order="left"
    ).drop("rank")
    return [
        row | {"path": as_unicode(row["path"])} for row in joined.iter_rows(named=True)
    ]


def _straggler(straggler: Straggler, numbers: list[int]) -> dict[str, Any]:
    cause = straggler.cause
    return {
        "ranks": sorted(numbers[row] for row in straggler.ranks),
        "saved_ns": straggler.saved_ns,
        "cause": cause.cause,
        "explained": cause.explained,
        "late_ns": cause.late_ns,
        "parts_ns": dict(cause.parts),
        "place": asdict(cause.place),
        "region": cause.region,
        "work": asdict(cause.work) if cause.work else None,
    }


def _whatif(what_if: WhatIf, numbers: list[int]) -> dict[str, Any]:
    return {
        "of": what_if.of,
        "name": what_if.name,
        "ranks": sorted(numbers[row] for row in what_if.ranks),
        "saved_ns": what_if.saved_ns,
    }

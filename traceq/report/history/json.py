"""History as JSON: nanoseconds and bytes, per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from msgspec import to_builtins

from traceq import __version__
from traceq.common.safe_text import plain_json
from traceq.report.history import content as words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.history.bisection import Bisection
    from traceq.history.changes import Amount, Difference
    from traceq.history.jumps import Shift
    from traceq.history.series import Compared, Explained, ExplainedJump, Series
    from traceq.history.store import Run

VERSION = 1


def show(series: Sequence[Series]) -> str:
    """Return the runs by series, with their jumps."""
    return _document(
        {
            "series": [
                {
                    "name": column.runs[0].series,
                    "gpu": column.runs[0].gpu,
                    "ranks": column.runs[0].ranks,
                    "step_from": column.runs[0].step_from or None,
                    "runs": [run_data(run) for run in column.runs],
                    "jumps": [_jump(jump, column) for jump in column.jumps],
                }
                for column in series
            ]
        }
    )


def explain(explained: Explained) -> str:
    """Return what differs between two runs."""
    return _document(
        {
            "before": [run_data(run) for run in explained.before],
            "after": [run_data(run) for run in explained.after],
            "difference": _difference(explained.difference),
        }
    )


def compare(compared: Compared) -> str:
    """Return what a new run changes."""
    difference = compared.difference
    return _document(
        {
            "text": words.headline(compared),
            "run": run_data(compared.run),
            "earlier": [run_data(run) for run in compared.earlier],
            "shifts": [_shift(shift) for shift in compared.shifts],
            "difference": _difference(difference) if difference else None,
        }
    )


def bisect(bisection: Bisection) -> str:
    """Return the commit to measure next."""
    return _document(
        {
            "number": bisection.number,
            "good": to_builtins(bisection.good),
            "bad": to_builtins(bisection.bad),
            "measured": [to_builtins(measured) for measured in bisection.measured],
            "between": list(bisection.between),
            "next": bisection.next or None,
            "again": bisection.again,
            "runs_left": bisection.runs_left,
        }
    )


def _document(content: dict[str, Any]) -> str:
    document = {"version": VERSION, "traceq": __version__, **content}
    return plain_json(orjson.dumps(document).decode()) + "\n"


def run_data(run: Run) -> dict[str, Any]:
    """Return a run as plain data, without what its series has."""
    fields = run._asdict()
    for name in ("series", "gpu", "ranks", "step_from"):
        del fields[name]
    return fields


def _jump(explained_jump: ExplainedJump, series: Series) -> dict[str, Any]:
    jump = explained_jump.jump
    return {
        "run": series.runs[jump.at].id,
        "commit": series.runs[jump.at].commit,
        "confirmed": jump.confirmed,
        "cause": words.main_cause(explained_jump.difference, jump.shifts) or None,
        "shifts": [_shift(shift) for shift in jump.shifts],
        "difference": _difference(explained_jump.difference),
    }


def _shift(shift: Shift) -> dict[str, Any]:
    data: dict[str, Any] = to_builtins(shift)
    return data


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "numbers": [
            {"number": name, **_amount(amount)} for name, amount in difference.numbers
        ],
        "causes": [
            {
                "kind": cause.kind,
                "text": words.cause_text(cause),
                "amount": _amount(cause.amount),
                "count": _amount(cause.count) if cause.count else None,
                "op": cause.op,
                "phase": cause.phase,
                "module": cause.module,
                "where": cause.where,
                "kernels": list(cause.kernels),
            }
            for cause in difference.causes
        ],
        "findings": [
            {
                "state": finding.state,
                "finding": to_builtins(finding.finding),
                "saves_ns": _amount(finding.saves_ns),
                "cost_bytes": _amount(finding.cost_bytes),
                "count": _amount(finding.count),
            }
            for finding in difference.findings
        ],
        "versions": [
            {"name": name, "before": before, "after": after}
            for name, before, after in difference.versions
        ],
    }


def _amount(amount: Amount) -> dict[str, float]:
    return {"before": amount.before, "after": amount.after}

"""Base class of rules on driver calls: the steps that make them, and their time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base.gpu_idle import busy_spans
from traceq.common.words import times
from traceq.linter import (
    Evidence,
    Fix,
    Need,
    Rule,
    Severity,
    dataclass,
    disjoint,
    often,
    overlap,
    spans,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import polars as pl

    from traceq.linter import Finding, Place, View
    from traceq.model.finding import Json

_MOST_OPS = 3


@dataclass(frozen=True)
class DriverCallRule(Rule):
    """A rule on calls that a steady step should not make."""

    needs = frozenset({Need.STEPS, Need.WARM})

    def driver_finding(  # noqa: PLR0913 - what the rules differ in
        self,
        view: View,
        calls: pl.DataFrame,
        caller: str,
        *,
        subject: str,
        place: Place,
        advice: str | None = None,
        blocking: pl.DataFrame | None = None,
        result: str = "",
        evidence: Iterable[Evidence] = (),
        data: Mapping[str, Json] | None = None,
    ) -> Finding:
        """Return the finding that a caller makes these calls.

        ``blocking`` are those that the step waits for; all of them if none are given.
        ``result`` is what comes of it, at the end of the message.
        """
        parts = disjoint(spans(calls))
        took = int((parts["end"] - parts["start"]).sum())
        busy = int(overlap(parts, busy_spans(view.trace.kernels)).sum())
        names = calls.group_by("name").len().sort("len", "name", descending=True)
        host = parts if blocking is None else disjoint(spans(blocking))
        return self.finding(
            f"{caller} calls {_named(names, view.steps)}{result}",
            subject=subject,
            place=place,
            count=calls.height / view.steps,
            fix=Fix(spans=host),
            gpu_idle_ns=(took - busy) / view.steps,
            evidence=[
                Evidence(
                    "calls",
                    value=took / view.steps,
                    unit="ns",
                    note="a step on the host, as recorded",
                ),
                *_op_lines(view, calls),
                *evidence,
            ],
            data={"calls": dict(names.iter_rows()), **(data or {})},
            advice=advice,
            # One step may be an epoch's first, or the one that writes a checkpoint.
            severity=None if view.steps > 1 else Severity.info,
            ops=calls["op"].drop_nulls(),
        )


def _named(names: pl.DataFrame, steps: int) -> str:
    """Return which calls a step makes, and how often."""
    if all(count >= steps for count in names["len"]):
        texts = [f"{name} {times(count / steps)}" for name, count in names.rows()]
        return f"{' and '.join(texts)} a step"
    return " and ".join(
        f"{name} {often(count / steps)}" for name, count in names.rows()
    )


def in_most_steps(view: View, calls: pl.DataFrame) -> bool:
    """Return whether more than half of the steps make such calls."""
    return 2 * calls["step"].n_unique() > view.steps


def _op_lines(view: View, calls: pl.DataFrame) -> list[Evidence]:
    """Return the operators inside of which the calls are made, the most first."""
    ops = calls.drop_nulls("op_name").group_by("op_name").len()
    ops = ops.sort("len", "op_name", descending=[True, False]).head(_MOST_OPS)
    return [
        Evidence("op", name, count=count / view.steps)
        for name, count in ops.iter_rows()
    ]

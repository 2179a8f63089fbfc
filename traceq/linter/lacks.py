"""Missing parts of a recording, with the number of rules that each one skips."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traceq.common.words import counted
from traceq.linter.need import Need, lacking
from traceq.model import lacks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from traceq.model.facts import Facts
    from traceq.model.lint_report import Skipped

_NEEDS: Mapping[str, tuple[Need, ...]] = {
    lacks.NO_GPU_WORK: (Need.GPU,),
    lacks.NO_OPERATORS: (Need.OPS, Need.SHAPES),
    lacks.NO_SHAPES: (Need.SHAPES,),
    lacks.NO_LINES: (Need.STACKS, Need.LINES),
    lacks.NO_STEPS: (Need.STEPS,),
    lacks.NO_VALUES: (Need.VALUES,),
}


def with_counts(facts: Facts, skipped: Iterable[Skipped]) -> Facts:
    """Return facts that say of each missing part how many rules it skips.

    A rule that lacks several parts counts for each of them, but one that no flag of
    the recorder would run counts for that alone. Missing steps and values are only
    named where they skip a rule.
    """
    if not facts.recorder:
        return facts
    reasons = [item.reason for item in skipped]
    hopeless = lacking(Need.VALUES, facts.recorder)

    def count(what: str) -> int:
        wanted = {lacking(need, facts.recorder) for need in _NEEDS.get(what, ())}
        out_of_reach = hopeless not in wanted
        return sum(
            not wanted.isdisjoint(reason.split("; "))
            and not (out_of_reach and hopeless in reason)
            for reason in reasons
        )

    every = dict.fromkeys([*facts.lacks, lacks.NO_STEPS, lacks.NO_VALUES])
    counts = {what: count(what) for what in every}
    shown = [what for what in every if what in facts.lacks or counts[what]]
    # What skips most rules is worth a new recording most.
    ordered = sorted(shown, key=lambda what: -counts[what])
    return replace(
        facts,
        lacks=tuple(
            f"{what}; {counted(counts[what], 'rule')} skipped" if counts[what] else what
            for what in ordered
        ),
    )

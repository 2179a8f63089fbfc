"""Text on the source of the steps, and on their kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.common.units import share, time
from traceq.common.words import counted

if TYPE_CHECKING:
    from traceq.model.facts import Facts
    from traceq.model.lint_report import StepKinds

_MARKED = "ProfilerStep"
_CERTAIN = "certain"
# "1 in 16" is near enough for shares that differ from it by this much of them.
_NEAR = 0.1


def taken(facts: Facts) -> str:
    """Return the source of the steps; nothing where the profiler marked them."""
    if facts.steps_from in {"", _MARKED}:
        return ""
    sure = "" if facts.steps_sure == _CERTAIN else f" ({facts.steps_sure})"
    return f", taken from {printable(facts.steps_from)}{sure}"


def inferred(facts: Facts) -> str:
    """Return the source of the steps, where they are not certain."""
    return "" if facts.steps_sure == _CERTAIN else taken(facts)


def kinds(mixed: StepKinds) -> str:
    """Return the sentence on longer steps: how often, and which were recorded."""
    if mixed.long_share is None or mixed.long_time_share is None:
        return _as_recorded(mixed)
    often, long = one_in(mixed.long_share), time(mixed.long_ns)
    typical, steps = time(mixed.typical_ns), counted(mixed.recorded, "step")
    if mixed.window == "period":
        periods = mixed.recorded // (mixed.period or mixed.recorded)
        whole = "one whole period" if periods <= 1 else f"{periods} whole periods"
        return f"{steps}, {whole}: {often} takes {long}, the others {typical}"
    takes = (
        f"{often} takes {long} instead of {typical},"
        f" {share(mixed.long_time_share, 1)} of the time"
    )
    # Where they come at random, this many steps have one of them on average.
    count = mixed.period or round(1 / mixed.long_share)
    if not mixed.recorded_long:
        return (
            f"{counted(mixed.recorded, 'typical step')}; {takes}: not recorded,"
            f" --active {count} records {'a whole period' if mixed.period else 'one'}"
        )
    if mixed.averaged == mixed.recorded:
        return f"{steps}, {mixed.recorded_long} of them long; {takes}"
    among = f"{mixed.averaged_long} of them" if mixed.averaged_long else "none of them"
    return (
        f"averages are over {mixed.averaged} of {counted(mixed.recorded, 'step')},"
        f" {among} long, since {takes}; --active {count} records"
        f" {'a whole period' if mixed.period else 'more of them'}"
    )


def _as_recorded(mixed: StepKinds) -> str:
    others = mixed.recorded - mixed.recorded_long
    return (
        f"the steps differ: {mixed.recorded_long} of {mixed.recorded}"
        f" {'takes' if mixed.recorded_long == 1 else 'take'} {time(mixed.long_ns)}, the"
        f" other{'s' if others > 1 else ''} {time(mixed.typical_ns)}, as recorded; how"
        " often each comes is not known, so the average may not be typical"
    )


def one_in(part: float) -> str:
    """Write which share of the steps is long.

    >>> one_in(0.0625), one_in(0.4)
    ('1 in 16', '40%')
    """
    every = round(1 / part)
    near = every > 1 and abs(1 / every - part) <= _NEAR * part
    return f"1 in {every}" if near else share(part, 1)

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


def kinds(found: StepKinds) -> str:
    """Return the sentence on longer steps: how often, and which were recorded."""
    if found.long_share is None or found.long_time_share is None:
        return _as_recorded(found)
    often, long = one_in(found.long_share), time(found.long_ns)
    typical, steps = time(found.typical_ns), counted(found.recorded, "step")
    if found.window == "period":
        periods = found.recorded // (found.period or found.recorded)
        whole = "one whole period" if periods <= 1 else f"{periods} whole periods"
        return f"{steps}, {whole}: {often} takes {long}, the others {typical}"
    takes = (
        f"{often} takes {long} instead of {typical},"
        f" {share(found.long_time_share, 1)} of the time"
    )
    # Where they come at random, this many steps have one of them on average.
    count = found.period or round(1 / found.long_share)
    if not found.recorded_long:
        return (
            f"{counted(found.recorded, 'typical step')}; {takes}: not recorded,"
            f" --active {count} records {'a whole period' if found.period else 'one'}"
        )
    if found.averaged == found.recorded:
        return f"{steps}, {found.recorded_long} of them long; {takes}"
    among = f"{found.averaged_long} of them" if found.averaged_long else "none of them"
    return (
        f"averages are over {found.averaged} of {counted(found.recorded, 'step')},"
        f" {among} long, since {takes}; --active {count} records"
        f" {'a whole period' if found.period else 'more of them'}"
    )


def _as_recorded(found: StepKinds) -> str:
    others = found.recorded - found.recorded_long
    return (
        f"the steps differ: {found.recorded_long} of {found.recorded}"
        f" {'takes' if found.recorded_long == 1 else 'take'} {time(found.long_ns)}, the"
        f" other{'s' if others > 1 else ''} {time(found.typical_ns)}, as recorded; how"
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

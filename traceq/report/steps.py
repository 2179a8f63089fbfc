"""Where the steps come from, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.report.base.text import printable

if TYPE_CHECKING:
    from traceq.model.facts import Facts

_MARKED = "ProfilerStep"
_CERTAIN = "certain"


def taken(facts: Facts) -> str:
    """Return what the steps were taken from; nothing where the profiler marked them."""
    if facts.steps_from in {"", _MARKED}:
        return ""
    sure = "" if facts.steps_sure == _CERTAIN else f" ({facts.steps_sure})"
    return f", taken from {printable(facts.steps_from)}{sure}"


def inferred(facts: Facts) -> str:
    """Return what the steps were taken from, where they are not certain."""
    return "" if facts.steps_sure == _CERTAIN else taken(facts)

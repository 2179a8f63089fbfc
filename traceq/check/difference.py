"""Differences that a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceq.check.expected import Expected


@dataclass(frozen=True)
class Difference:
    """One thing that is not as expected."""

    kind: str
    """new, gone, changed, budget, dtype, missing, error or skipped."""
    text: str
    finding: Expected | None = None
    """The finding that it is about."""
    fails: bool = True
    """It fails the check; otherwise it is only reported."""

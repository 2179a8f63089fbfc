"""Rules, and what runs them. This is what a rule imports."""

from __future__ import annotations

from traceq.finding import NOWHERE, Evidence, Finding, Fix, Place, Severity
from traceq.linter.need import Need
from traceq.linter.rule import Bad, Good, Rule, inputs, option
from traceq.linter.snapshot_view import SnapshotView
from traceq.linter.view import View

__all__ = [
    "NOWHERE",
    "Bad",
    "Evidence",
    "Finding",
    "Fix",
    "Good",
    "Need",
    "Place",
    "Rule",
    "Severity",
    "SnapshotView",
    "View",
    "inputs",
    "option",
]

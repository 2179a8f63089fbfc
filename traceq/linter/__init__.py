"""Rules, and what runs them. This is what a rule imports."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceq.linter.need import Need
    from traceq.linter.rule import Bad, Good, Rule, Seen, inputs, option
    from traceq.linter.snapshot_view import SnapshotView
    from traceq.linter.view import View
    from traceq.model.finding import NOWHERE, Evidence, Finding, Fix, Place, Severity

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
    "Seen",
    "Severity",
    "SnapshotView",
    "View",
    "inputs",
    "option",
]

_MODULES = {
    "model.finding": ("NOWHERE", "Evidence", "Finding", "Fix", "Place", "Severity"),
    "linter.need": ("Need",),
    "linter.rule": ("Bad", "Good", "Rule", "Seen", "inputs", "option"),
    "linter.snapshot_view": ("SnapshotView",),
    "linter.view": ("View",),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute can be anything
    # Imported on first use: who reads the configuration need not wait for Polars.
    for module, names in _MODULES.items():
        if name in names:
            found = getattr(import_module(f"traceq.{module}"), name)
            # Every rule asks for it: from now on it is an attribute like any other.
            globals()[name] = found
            return found
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)

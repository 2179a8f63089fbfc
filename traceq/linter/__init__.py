"""Rules, and what runs them. This is what a rule imports."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceq.analysis.base.device import Gpu
    from traceq.analysis.base.ownership import Row, same_place
    from traceq.common.dataclass import dataclass
    from traceq.common.expressions import END, asof, fill_false, nth, rows_where, text
    from traceq.common.words import at_function, counted, listed, often, shape, time
    from traceq.intervals import overlap, spans
    from traceq.linter.evidence import kernel_lines, located_advice, module_line
    from traceq.linter.need import Need
    from traceq.linter.rule import Bad, Good, Rule, Seen, inputs, option
    from traceq.linter.snapshot_view import SnapshotView
    from traceq.linter.view import View
    from traceq.model.dtypes import FLOAT32, HALF, SIZES, dtype_name
    from traceq.model.finding import NOWHERE, Evidence, Finding, Fix, Place, Severity

__all__ = [
    "END",
    "FLOAT32",
    "HALF",
    "NOWHERE",
    "SIZES",
    "Bad",
    "Evidence",
    "Finding",
    "Fix",
    "Good",
    "Gpu",
    "Need",
    "Place",
    "Row",
    "Rule",
    "Seen",
    "Severity",
    "SnapshotView",
    "View",
    "asof",
    "at_function",
    "counted",
    "dataclass",
    "dtype_name",
    "fill_false",
    "inputs",
    "kernel_lines",
    "listed",
    "located_advice",
    "module_line",
    "nth",
    "often",
    "option",
    "overlap",
    "rows_where",
    "same_place",
    "shape",
    "spans",
    "text",
    "time",
]

# The module of each name. Names that rules of three families use are here; others are
# imported from the analysis that they belong to.
_MODULES = {
    name: module
    for module, names in {
        "analysis.base.device": "Gpu",
        "analysis.base.ownership": "Row same_place",
        "common.dataclass": "dataclass",
        "common.expressions": "END asof fill_false nth rows_where text",
        "common.words": "at_function counted listed often shape time",
        "intervals": "overlap spans",
        "linter.evidence": "kernel_lines located_advice module_line",
        "linter.need": "Need",
        "linter.rule": "Bad Good Rule Seen inputs option",
        "linter.snapshot_view": "SnapshotView",
        "linter.view": "View",
        "model.dtypes": "FLOAT32 HALF SIZES dtype_name",
        "model.finding": "NOWHERE Evidence Finding Fix Place Severity",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute can be anything
    # Imported on first use: who reads the configuration need not wait for Polars.
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"traceq.{_MODULES[name]}"), name)
    # Every rule asks for it: from now on it is an attribute like any other.
    globals()[name] = value
    return value

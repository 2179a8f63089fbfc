"""Rule API: the names that a rule imports."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceq.analysis.base.cached import cached_per_trace
    from traceq.analysis.base.device import Gpu
    from traceq.analysis.base.ownership import (
        NOTHING,
        Row,
        has_like,
        has_named,
        named,
        named_like,
        plain,
        same_place,
    )
    from traceq.analysis.base.roofline import roofline_ns
    from traceq.analysis.base.sizes import first_sizes
    from traceq.common.expressions import END, asof, fill_false, nth, rows_where, text
    from traceq.common.intervals import disjoint, merged, overlap, spans
    from traceq.common.words import (
        at_function,
        counted,
        listed,
        often,
        shape,
        size,
        time,
    )
    from traceq.graph.nesting import nearest
    from traceq.linter.evidence import (
        kernel_lines,
        library_module,
        located_advice,
        module_line,
        own_function,
        rewritten,
        share_of_steps,
        tensor,
    )
    from traceq.linter.fused_fix import fused_fixes
    from traceq.linter.need import Need
    from traceq.linter.rule import Bad, Good, Rule, Seen, inputs, option
    from traceq.linter.snapshot_view import SnapshotView
    from traceq.linter.source_calls import made_at
    from traceq.linter.source_gaps import GapCause, gap_causes, gap_lines
    from traceq.linter.source_loops import at_loops, loop_body, loop_lines
    from traceq.linter.source_uses import value_uses
    from traceq.linter.view import View
    from traceq.model.dtypes import FLOAT32, HALF, SIZES, dtype_name
    from traceq.model.finding import NOWHERE, Evidence, Finding, Fix, Place, Severity
    from traceq.model.trace import Trace

__all__ = [
    "END",
    "FLOAT32",
    "HALF",
    "NOTHING",
    "NOWHERE",
    "SIZES",
    "Bad",
    "Evidence",
    "Finding",
    "Fix",
    "GapCause",
    "Good",
    "Gpu",
    "Need",
    "Place",
    "Row",
    "Rule",
    "Seen",
    "Severity",
    "SnapshotView",
    "Trace",
    "View",
    "asof",
    "at_function",
    "at_loops",
    "cached_per_trace",
    "counted",
    "dataclass",
    "disjoint",
    "dtype_name",
    "experts_switch",
    "fill_false",
    "first_sizes",
    "fused_fixes",
    "gap_causes",
    "gap_lines",
    "has_like",
    "has_named",
    "inputs",
    "kernel_lines",
    "library_module",
    "listed",
    "located_advice",
    "loop_body",
    "loop_lines",
    "made_at",
    "merged",
    "module_line",
    "most_of_library",
    "named",
    "named_like",
    "nearest",
    "nth",
    "often",
    "option",
    "overlap",
    "own_function",
    "plain",
    "rewritten",
    "roofline_ns",
    "rows_where",
    "same_place",
    "shape",
    "share_of_steps",
    "size",
    "spans",
    "tensor",
    "text",
    "time",
    "value_uses",
]

# The module of each name. Names that rules of three families use are here; others are
# imported from the analysis that they belong to.
_MODULES = {
    name: module
    for module, names in {
        "analysis.base.cached": "cached_per_trace",
        "analysis.base.device": "Gpu",
        "analysis.base.ownership": (
            "NOTHING Row has_like has_named named named_like plain same_place"
        ),
        "analysis.base.roofline": "roofline_ns",
        "analysis.base.sizes": "first_sizes",
        "common.expressions": "END asof fill_false nth rows_where text",
        "common.intervals": "disjoint merged overlap spans",
        "common.words": "at_function counted listed often shape size time",
        "graph.nesting": "nearest",
        "linter.evidence": (
            "experts_switch kernel_lines library_module located_advice module_line"
            " most_of_library own_function rewritten share_of_steps tensor"
        ),
        "linter.fused_fix": "fused_fixes",
        "linter.need": "Need",
        "linter.rule": "Bad Good Rule Seen inputs option",
        "linter.snapshot_view": "SnapshotView",
        "linter.source_calls": "made_at",
        "linter.source_gaps": "GapCause gap_causes gap_lines",
        "linter.source_loops": "at_loops loop_body loop_lines",
        "linter.source_uses": "value_uses",
        "linter.view": "View",
        "model.dtypes": "FLOAT32 HALF SIZES dtype_name",
        "model.finding": "NOWHERE Evidence Finding Fix Place Severity",
        "model.trace": "Trace",
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

"""Words that findings share, for rule packs; see ``traceq.common.words``."""

from __future__ import annotations

from traceq.common.words import (
    MODULE_LEVEL,
    at_function,
    at_line,
    counted,
    layer_name,
    layer_names,
    listed,
    often,
    rule_name,
    shape,
    share,
    size,
    time,
    times,
)

__all__ = [
    "MODULE_LEVEL",
    "at_function",
    "at_line",
    "counted",
    "layer_name",
    "layer_names",
    "listed",
    "often",
    "rule_name",
    "shape",
    "share",
    "size",
    "time",
    "times",
]

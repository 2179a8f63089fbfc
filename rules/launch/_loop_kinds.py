"""Kinds of loops: those of a sharding library, and those that are most of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base import callers
from traceq.linter import View, has_like

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_SHARDING = r"(^|/)torch/distributed/"
_SOME = 200


def is_most_of_step(row: Mapping[str, Any], view: View) -> bool:
    """Return whether a loop takes most of a host-bound step and has one backward.

    One without a backward goes over batches or tokens, as one that trains in each
    iteration does.
    """
    if not row["back"] or row["kernels"] - row["back"] < row["launched"]:
        return False
    step_ns = view.bound.recorded_step_ns
    most = bool(step_ns) and 2 * row["host_ns"] > step_ns * view.steps
    return most and view.bound.by == "host"


def of_sharding(view: View, row: Mapping[str, Any]) -> bool:
    """Return whether a loop is of FSDP or DDP: its copies are not the program's."""
    if not has_like(view.trace.frames, _SHARDING):
        return False
    # The backward runs on a thread without Python.
    some = view.trace.ops[["thread", "ts"]][[*row["ops"]][:_SOME]]
    inner = callers.innermost_calls(view.trace.frames, some)["inner_file"].drop_nulls()
    return 2 * int(inner.str.contains(_SHARDING).sum()) > len(inner)

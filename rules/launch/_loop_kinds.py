"""Kinds of loops: of a sharding library, most of a step, and one in two modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base import callers
from traceq.linter import View, has_like

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    import polars as pl

_SHARDING = r"(^|/)torch/distributed/"
_SOME = 200
_ADDED = (
    *("iterations", "calls", "kernels", "back", "launched", "gpu_ns", "host_ns"),
    *("idle_ns", "syncs", "gradients"),
)
_LONGEST = ("longest", "called")
_SEVERAL = ("names", "modules", "ops")


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


def one_edit(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return loops, those of one function in several kinds of modules as one.

    An edit changes all of them. What they launch and take adds up.
    """
    loops: dict[object, dict[str, Any]] = {}
    for row in rows:
        key = (row["file"], row["line"], row["function"], row["mark"], row["experts"])
        one = loops.setdefault(key if row["file"] else row["loop"], row)
        if one is row:
            row["loops"] = [row["loop"]]
            continue
        one["loops"].append(row["loop"])
        if row["kernels"] > one["kernels"]:
            one["kernel_median_ns"] = row["kernel_median_ns"]
        for column in _ADDED:
            one[column] = (one[column] or 0) + (row[column] or 0)
        for column in _LONGEST:
            one[column] = max(one[column] or 0, row[column] or 0)
        for column in _SEVERAL:
            one[column] = [*dict.fromkeys([*one[column], *row[column]])]
    return [*loops.values()]


def kernels_of(view: View, row: Mapping[str, Any]) -> pl.Series:
    """Return the kernels that the ops of a loop launch."""
    ran = view.called_ops[view.kernels["op"]]
    return view.kernels["id"].filter(ran.is_in([*row["ops"]]).fill_null(value=False))

"""Ops that only compute a value for the host, which a fix removes with the wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import ownership
from traceq.analysis.replay.simulation import NO_SPANS
from traceq.linter import END, Evidence, Fix, asof, fill_false, merged, named_like

from ._written import COPYING, MASKED_COPY, SPARSE_MATMULS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from traceq.linter import View

    from ._known_waits import KnownWait

# What a distribution computes once, when it is first asked for, is computed anyway.
_KEPT = r"torch/distributions/utils\.py\(\d+\): __get__$"

_MASKED = ("aten::index", "aten::index_put_", "aten::masked_select", MASKED_COPY)
_READS = ("aten::item", *COPYING)
# Values read in a row and step, beside the first, that are worth putting together.
# Heuristic threshold: the op that does so takes as long as reading one or two values.
_IN_A_ROW = 7
AT_ONCE = (
    "copy them at once: torch.stack(tensors).cpu(), or .cpu() of the tensor that they"
    " are parts of, and take it apart on the host",
    "read them at once: torch.stack(values).tolist(), or .tolist() of the tensor that"
    " they are parts of; or only once in many steps",
)
"""Advice on many values that are read in a row: copies, and numbers."""
ONE_COPY = (
    "what is needed at once takes one copy: torch.cat([a.flatten(), b.flatten()])"
    ".cpu(), taken apart on the host; what is only logged can stay on the GPU for many"
    " steps"
)
"""Advice on a few results that are copied in a row."""
_MAKES_RESULT = ("aten::empty", "aten::resize_")


def removed_checks(view: View, wait: KnownWait, row: Mapping[str, Any]) -> list[Fix]:
    """Return what a switch removes beside the waits of a group.

    That is the ops of the functions that wait, or of the check among them, with
    their kernels and the Python between them.
    """
    if not wait.removes():
        return []
    functions = pl.DataFrame(
        row["inner"], schema_overrides={"thread": view.trace.ops["thread"].dtype}
    )
    functions = functions.drop_nulls().sort("start").with_row_index("owner")
    if wait.around:
        return _calls_around(view, wait.around, functions)
    owner = ownership.during(view.trace, functions)
    ops = view.trace.ops[owner.is_not_null().arg_true()]
    part = _part_of_check(view, wait, ops)
    runs = (
        ops.select("id", "ts", END.alias("end"), owner=owner[ops["id"]], part=part)
        .sort("owner", "ts")
        .with_columns(run=pl.struct("owner", "part").rle_id())
        .filter("part")
        .group_by("run", maintain_order=True)
        .agg("id", start=pl.col("ts").min(), end=pl.col("end").max())
    )
    if wait.checks:
        is_row_op = pl.element().is_in(row["ops"])
        runs = runs.filter(pl.col("id").list.eval(is_row_op).list.any())
    if not runs.height:
        return []
    removed = runs["id"].explode()
    kernels = view.kernels.filter(pl.col("op").is_in(removed.implode()))["id"]
    return [Fix(spans=runs.select("start", "end"), kernels=kernels.to_list())]


def _calls_around(view: View, pattern: str, functions: pl.DataFrame) -> list[Fix]:
    """Return the calls that functions are in, which all go."""
    frames = view.trace.frames
    calls = frames.filter(named_like(frames, pattern)).select(
        "thread", since="ts", until=END
    )
    around = asof(functions, calls, "start", "since", by="thread")
    around = around.filter(pl.col("until") >= pl.col("end"))
    spans = around.select(start="since", end="until").unique(maintain_order=True)
    return [Fix(spans=spans)] if spans.height else []


def removed_indices(view: View, row: Mapping[str, Any]) -> list[Fix]:
    """Return what goes with the waits of a group, where a mask is no index any more.

    That is what the op does before its own kernel, which stays as that of
    ``torch.where``, and the whole index of MASKED_COPY. A library's index may need the
    elements alone, and the GPU's time stays as it is: more elements are computed.
    """
    theirs = row["library"] or row["by_inner_file"]
    if row["cause"] not in _MASKED or not row["selects"] or theirs:
        return []
    ops = view.trace.ops
    around = ops["parent"][row["ops"]].drop_nulls().unique()
    removed = fill_false(ops["parent"].is_in(around.implode())) & ~view.ops_named(
        _MAKES_RESULT
    )
    if row["cause"] == MASKED_COPY:
        called = pl.Series(row["called"], dtype=pl.UInt32)
        whole = called.filter(view.ops_named(["aten::index"])[called])
        removed = removed.scatter(whole, values=True)
    return [Fix(spans=ops.filter(removed).select(start="ts", end=END))]


def removed_reads(view: View, row: Mapping[str, Any]) -> list[Fix]:
    """Return what goes of a group's waits, where many values are read in a row.

    Read at once they are one wait and one copy, of what one more op puts together.
    """
    again = pl.Series(row["top"], dtype=pl.UInt32).filter(row["again"])
    reads = row["copies"] == "to host" and row["cause"] in _READS
    theirs = row["library"] or row["by_inner_file"] or row["known"]
    often = _IN_A_ROW * view.steps <= len(again) >= len(row["ops"]) / 2
    if not (reads and often) or theirs or row["method"] == "print":
        return []
    ops = pl.Series(row["ops"], dtype=pl.UInt32).filter(row["again"])
    kernels = view.kernels.filter(pl.col("op").is_in(ops.implode()))["id"]
    spans = view.trace.ops[again].select(start="ts", end=END)
    share = 1 - view.steps / len(again)
    return [Fix(spans=spans, host_share=share, kernels=kernels.to_list())]


def removed_tests(view: View, row: Mapping[str, Any]) -> list[Fix]:
    """Return what goes with a check: the read, and the ops that only compute for it."""
    rows = (row["tests"], row["top"])
    checks = [(tests, top) for tests, top in zip(*rows, strict=True) if tests]
    removed = [op for tests, top in checks for op in (*tests, top)]
    return _whole(view, pl.Series(removed, dtype=pl.UInt32))


def removed_ops(view: View, row: Mapping[str, Any], advice: str) -> list[Fix]:
    """Return what goes with the waits of a group, of ops before them or around them.

    Where a matmul need not coalesce it is the whole op that does.
    """
    if advice == SPARSE_MATMULS[1]:
        return _whole(view, pl.Series(row["called"], dtype=pl.UInt32))
    return removed_indices(view, row) or removed_tests(view, row)


def _whole(view: View, ops: pl.Series) -> list[Fix]:
    """Return what goes with whole ops: all the work that is launched in them."""
    if not len(ops):
        return []
    spans = view.trace.ops[ops].select("thread", start="ts", end=END)
    owner = ownership.during(view.trace, spans.sort("start").with_row_index("owner"))
    kernels = view.kernels[["id", "op"]].drop_nulls()
    inside = owner[kernels["op"]].is_not_null()
    return [Fix(spans=spans, kernels=kernels["id"].filter(inside).to_list())]


def copied_in_a_row(view: View, row: Mapping[str, Any]) -> bool:
    """Return whether two copies or more follow each other in a step, as of results."""
    return sum(row["again"]) >= max(view.steps, len(row["ops"]) / 2)


def host_line(view: View, fix: Fix) -> Evidence:
    """Return how long the host is at what goes with the waits."""
    spans = merged(NO_SPANS if fix.spans is None else fix.spans)
    took = (spans["end"] - spans["start"]).sum() / view.steps
    note = "a step in what goes too, as recorded"
    return Evidence("host", value=took, unit="ns", note=note)


def _part_of_check(view: View, wait: KnownWait, ops: pl.DataFrame) -> pl.Series:
    """Return which of a function's ops are of the check."""
    if wait.checks:
        outermost = view.outermost_ops[ops["id"]]
        return view.ops_named(wait.checks)[outermost]
    frames = view.trace.frames
    retained = frames.filter(named_like(frames, _KEPT))
    inside = ownership.during(
        view.trace,
        retained.select("thread", start="ts", end=END).with_row_index("owner"),
    )
    return inside[ops["id"]].is_null()

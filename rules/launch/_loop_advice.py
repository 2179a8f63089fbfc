"""Loops of tiny kernels: what they are over, and what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.patterns import optimizers
from traceq.linter import (
    Evidence,
    Fix,
    View,
    counted,
    experts_switch,
    listed,
    module_line,
    named_like,
    spans,
    text,
)
from traceq.model import names

from ._gradient_loops import READ, gradient_advice, gradients
from ._loop_bodies import advice_by_body, needs_last
from ._loop_shapes import joined, shapes_line
from ._loop_statistics import STATISTICS, batch_norms
from ._recurrent_layers import recurrent_advice
from ._weight_loops import LERP, averages, together, updates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

# A mixture of experts picks tokens, runs the expert on them, adds the result back.
_PICK = ("aten::where", "aten::nonzero", "aten::index", "aten::masked_select")
_RUN = ("aten::linear", "aten::mm", "aten::addmm", "aten::matmul")
_ADD = tuple(
    f"aten::{op}{in_place}"
    for op in ("index_add", "index_put", "scatter_add", "index_copy")
    for in_place in ("_", "")
)
_COMPILED = (
    '; or replay what each iteration runs as a CUDA graph, with mode="reduce-overhead"'
    " of torch.compile, so that one launch is left of it"
)
# An iteration with this many launches runs a model. Heuristic threshold.
_LAUNCHES_OF_MODEL = 20
_UPDATES = (
    "give the tensors that it goes over as lists to torch._foreach_lerp_,"
    " torch._foreach_mul_ or the like, which take any shapes"
)
_ACTS = (
    "an environment is stepped with what each iteration makes, so that iterations"
    " cannot be stacked: step several environments at once, as a batch, so that an"
    " iteration is worth more"
)
# If calls of a loop are shorter at the mean, they differ.
_SHORTER = 0.9


def over_experts(row: Mapping[str, Any]) -> bool:
    """Return whether a loop picks tokens, runs weights on them, and adds the result."""
    places = [
        [at for at, name in enumerate(row["names"]) if name in some]
        for some in (_PICK, _RUN, _ADD)
    ]
    # What is picked after the weights ran is not what they ran on.
    return all(places) and places[0][0] < places[1][0] < places[2][-1]


def message(row: Mapping[str, Any], *, experts: bool, parameters: bool) -> str:
    mean = round(row["iterations"] / row["calls"])
    up_to = "up to " if mean < _SHORTER * row["longest"] else ""
    loop = f"a loop of {up_to}{row['longest'] if up_to else mean} iterations"
    if experts:
        # An expert that no token chose may be skipped.
        loop = f"a loop over {row['longest']} experts"
    elif parameters:
        loop = f"a loop over {row['longest']} parameters"
    back = row["back"] / row["iterations"]
    launches = row["kernels"] / row["iterations"] - back
    backward = f" and {back:.0f} in its backward" if round(back) else ""
    return (
        f"{loop} launches {counted(round(launches), 'tiny kernel')} in each{backward}"
    )


def fewer_weights(view: View, stacked: int) -> Fix:
    """Return what goes of the optimizer if all experts share one stacked weight.

    Its host time grows with the number of weights, of which this many go.
    """
    weights = gradients(view)
    return Fix(
        spans=spans(optimizers.optimizer_regions(view.trace, view.steady)),
        host_share=stacked / weights if weights else 0.0,
    )


def evidence(
    row: Mapping[str, Any], view: View, lines: Sequence[int], said: str, *, syncs: bool
) -> Iterator[Evidence]:
    """Return what a loop launches and takes; the lines of its loops, if several fit."""
    if len(lines) > 1:
        *first, last = map(str, lines)
        yield Evidence("loops", f"lines {', '.join(first)} and {last}")
    steps = view.steps
    forward, back = row["kernels"] - row["back"], row["back"]
    yield Evidence("launches", value=round(forward / steps), note="kernels a step")
    if back:
        note = "kernels a step in its backward"
        yield Evidence("backward", value=round(back / steps), note=note)
    yield Evidence(
        "kernels", value=row["kernel_median_ns"], unit="ns", note="each at the median"
    )
    yield Evidence("ops", listed(row["names"], 8))
    if row["unequal"] and joined(row) in said:
        yield from shapes_line(row, view, row["unequal"])
    if len(row["modules"]) > 1:
        yield from module_line(row["modules"])
    if syncs:
        yield Evidence("syncs", value=row["syncs"] / steps, note="a step")
    yield Evidence("host", "", row["host_ns"] / steps, "ns", note="a step, as recorded")
    yield Evidence("gpu", "", row["gpu_ns"] / steps, "ns", note="of kernels a step")


def _runs_a_model(row: Mapping[str, Any]) -> bool:
    return bool(row["kernels"] / row["iterations"] >= _LAUNCHES_OF_MODEL)


def acts(view: View, row: Mapping[str, Any], loop: pl.DataFrame) -> bool:
    """Return whether an environment is stepped in most iterations of a loop."""
    frames = view.trace.frames
    steps = frames[["ts", "file"]].filter(named_like(frames, names.ENVIRONMENT_STEP))
    steps = steps.filter(text("file").str.contains(names.ENVIRONMENT_FILE))
    if not steps.height or not loop.height:
        return False
    begin, end = loop.select(pl.col("start").min(), pl.col("end").max()).row(0)
    inside = int(steps["ts"].is_between(begin, end).sum())
    return 2 * inside >= int(row["iterations"])


def acting_advice(row: Mapping[str, Any]) -> str:
    """Return advice on a loop in which an environment is stepped."""
    return _ACTS + (_COMPILED if _runs_a_model(row) else "")


def _batched_experts(row: Mapping[str, Any], view: View, *, syncs: bool) -> str:
    return experts_switch(view, row["ops"]) or (
        "sort the tokens by expert and run all experts at once with"
        " torch.nn.functional.grouped_mm (torch 2.10 on; torch._grouped_mm from 2.8"
        " on), or stack their weights and use"
        " torch.bmm with a fixed capacity"
        + ("; neither needs where or nonzero, which sync" if syncs else "")
    )


def advice(
    row: Mapping[str, Any],
    view: View,
    *,
    experts: bool,
    parameters: bool,
    syncs: bool,
) -> str:
    """Return what to write instead of a loop."""
    special = (
        gradient_advice(row, view)
        or (parameters and together(row, syncs=syncs))
        or (experts and _batched_experts(row, view, syncs=syncs))
        or recurrent_advice(row, view)
        or (averages(row) and LERP)
        or (updates(row) and _UPDATES)
    )
    if special:
        return special
    reads = syncs and bool(set(row["names"]) & set(READ))
    if not needs_last(row) and batch_norms(row, view):
        return STATISTICS
    if by_body := advice_by_body(row, syncs=reads):
        graphed = needs_last(row) and _runs_a_model(row) and _COMPILED not in by_body
        return by_body + (_COMPILED if graphed else "")
    if reads:
        return (
            "if no iteration needs what the one before read on the host, stack what the"
            " loop goes over and run its operators once for all iterations; if it does,"
            " as an action or a token, go through several such sequences at once, as a"
            " batch" + (_COMPILED if _runs_a_model(row) else "")
        )
    unrolled = (
        f", which unrolls all {row['longest']} iterations and may take minutes, or use"
        " a kernel that is made for the recurrence"
        if row["longest"] > assumptions.UNROLLED_ITERATIONS
        else ""
    )
    if row["unequal"]:
        return (
            f"iterations differ in shape and cannot be stacked; {joined(row)}; if an"
            " iteration needs the one before, compile the loop with torch.compile"
            f"{unrolled}"
        )
    return (
        "stack what the loop goes over and run its operators once for all iterations;"
        " if an iteration needs the one before, compile the loop with torch.compile"
        f"{unrolled}"
    )

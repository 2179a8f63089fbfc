"""Advice on a value that the host reads, by what the program does with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.sync_calls import TO_GPU
from traceq.linter import value_uses

from ._conditions import with_tests

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from traceq.linter import View

ACTED = "acted"
"""The use of a value that an environment is stepped with."""
_INDICES = ("aten::index", "aten::masked_select")
_READING = (
    *("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"),
    *("aten::to", "aten::_to_copy", "aten::copy_", "aten::clone"),
)
_LOG = "keep it on the GPU as loss.detach(), and read it only once in many steps"
_ADVICE = {
    ACTED: "",
    "size": "it is a size: take it where the host knows it, as the lengths of a batch"
    " before they are sent to the GPU, or pad to a size that does not depend on values"
    " and mask the rest",
    "index": "it is an index: index with tensors on the GPU, as x.index_select(0,"
    " i.view(1)) or x.gather(…); x[i] with an i of no dimensions reads it, too",
    "finite": "it asks whether values are finite: ask once in many steps, where the"
    " answer only stops the program, since NaN in the weights stays; to skip an update,"
    " GradScaler with an optimizer of fused=True decides on the GPU",
    "checks": "it checks what should always hold: check it once in many steps, or only"
    " while debugging",
    "stops": "it ends a loop: ask in one of several iterations, where more of them do"
    " no harm, or run a fixed number",
    "guards": "it asks whether there is anything to do: leave the condition out where"
    " the operators change nothing for an empty mask, as torch.where and masked_fill",
    "decides": "it decides what runs next: decide on the GPU with torch.where, or ask"
    " less often",
    "looped": "a Python loop goes over the values: use operators on the whole tensor;"
    " or take the values where the host has them, before they are sent to the GPU",
    "metric": "a metric on the host needs it: count on the GPU, as (a == b).sum(), and"
    " read the counts at the end; or collect the tensors, and compute it once for all",
    "computed": "it goes back into operators: keep it a tensor, which most of them take"
    " in place of a number, as x * w and x.mul_(w) do: then nothing is read",
    "added": "it is only added up: add the tensor itself, as loss.detach(), and read"
    " the sum only once in many steps",
    "accumulated": "it is only added up: make what it is added to a tensor on the GPU"
    " (allocated with device=…), add loss.detach() to it, and read it only once in many"
    " steps",
    "logged": f"it is only logged: {_LOG}",
    "collected": "it is only collected: append the tensor itself (x.detach()), where"
    " all of them fit, and copy them at once after the loop, as torch.stack(values)"
    ".tolist() or torch.cat(values).cpu()",
    "unused": "nothing uses the value: leave the line out, unless it is there to wait,"
    " as to time a step",
    "condition": "it most likely decides a branch: take the condition from what the"
    " host knows, as shapes, lengths or a mask before it is sent to the GPU; or do the"
    " work in any case, with masked_fill or torch.where, which change nothing where a"
    " mask is empty",
    "returned": "return the tensor itself (x.detach()), so that the caller reads it"
    " where it is needed: what is logged, only once in many steps; what is needed at"
    " once takes one copy, as of torch.stack((a, b))",
}
"""By use: the first of them that a value has is what the advice has to fit."""
_LOGS = ("added", "accumulated", "logged", "collected", "unused")
_SELDOM = (
    "it is only logged, and not in every step: raise the number of steps between, or"
    " copy it into pinned memory with non_blocking=True and write it a step later"
)
_REPLACED = "replaced"
_SELECTED = {
    _REPLACED: "compute what is assigned for all of x, and choose with x ="
    " torch.where(mask, new, x), with mask[:, None] if x has a dimension more: only the"
    " GPU knows how many elements a mask selects",
    "loss": "instead of loss(x[mask], y[mask]), take the loss of all elements"
    " (reduction='none') and average it with torch.where(mask, loss, 0).sum() /"
    " mask.sum(); cross_entropy leaves out targets of ignore_index itself",
    "reduced": "instead of x[mask].mean(), take torch.where(mask, x, 0).sum() /"
    " mask.sum(): only the GPU knows how many elements a mask selects",
}
_IN_MODEL = (
    "in a model it is often a size, an index or a condition: take sizes where the host"
    " knows them (lengths of a batch before they are sent), index with tensors"
    " (x.index_select), decide with torch.where; what is only logged can stay on the"
    " GPU for many steps"
)
_READ_VALUES = ("aten::item", "aten::_local_scalar_dense")
_UNKNOWN = frozenset({"unknown"})


def with_uses(view: View, waits: pl.DataFrame) -> pl.DataFrame:
    """Return waits with the ``use`` that their value is read for, as far as it is seen.

    Sources show it, and else the ops before a condition. ``asked`` is the last of these
    then, and ``tests`` are those that are there for the read alone.
    """
    own = pl.col("known").is_null() & pl.col("library").is_null() & ~pl.col("of_torch")
    uses = pl.when(own).then(_source_uses(view, waits)).otherwise(pl.lit(""))
    rows = with_tests(view, waits.with_columns(use=uses))
    condition = own & (pl.col("use") == "") & pl.col("asked").is_not_null()
    implied = pl.when("finite").then(pl.lit("finite")).otherwise(pl.lit("condition"))
    use = pl.when(condition).then(implied).otherwise("use")
    return rows.with_columns(use=use).with_columns(
        asked=pl.when(pl.col("use") == "condition").then("asked"),
        tests=pl.when(pl.col("use") == "finite")
        .then("tests")
        # What is compared may be a mask that has other uses.
        .when(pl.col("use") == "checks")
        .then(pl.col("tests").list.tail(1)),
    )


def _source_uses(view: View, waits: pl.DataFrame) -> pl.Series:
    """Return for each wait what its value is read for, as far as sources show it."""
    rows = waits.with_columns(view.trace.ops["call_line"][waits["op"]])
    rows = rows.select(
        pl.col("file", "function", "cause", "method", "copies").cast(pl.String),
        pl.col("line", "call_line", "selects"),
    )
    each = rows.unique(maintain_order=True)
    uses = pl.Series("use", [use_of(view, row) for row in each.rows(named=True)])
    return rows.join(
        each.with_columns(uses.cast(pl.String)),
        on=each.columns,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )["use"]


def use_of(view: View, row: Mapping[str, Any]) -> str:
    """Return what the value of a wait is read for; empty if that is not known."""
    method = row["method"] or ""
    selects = row["cause"] in _INDICES and row["selects"]
    if not selects and (row["cause"] not in _READING or row["copies"] == TO_GPU):
        return ""
    at = (row["file"], row["line"], row["function"], row["call_line"])
    uses = value_uses(view.trace, at, "[]" if selects else method)
    if selects:
        # What one statement assigns through a mask, it may also read through another.
        chosen = uses & {_REPLACED} or uses
        return next((use for use in _SELECTED if chosen == {use}), "")
    rest = [use for use in _ADVICE if use in uses]
    # What is not known may be anything: then only what keeps it on the host counts.
    if not rest or (rest[0] in (*_LOGS, "returned") and uses & _UNKNOWN):
        return ""
    return "seldom" if rest[0] in _LOGS and "seldom" in uses else rest[0]


def advice_by_use(use: str, cause: str, modules: list[str]) -> str:
    """Return advice on a value that is read for this; empty if that is not known."""
    if use in _SELECTED:
        return _SELECTED[use]
    if use == "seldom":
        return _SELDOM
    if not use and cause in _READ_VALUES and modules:
        return _IN_MODEL
    return _ADVICE.get(use, "")

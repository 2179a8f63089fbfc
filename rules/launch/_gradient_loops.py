"""Loops over gradients that torch has a call for: their norms, and clearing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import Fix, named, named_like, text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from traceq.linter import View

READ = ("aten::item", "aten::is_nonzero", "aten::_local_scalar_dense")
_NORMS = {"aten::norm", "aten::linalg_vector_norm"}
_SQUARES = {"aten::pow", "aten::square"}
# What a norm or a sum of squares may be computed with besides.
_BESIDE = {f"aten::{op}" for op in ("sum", "add", "add_", "sqrt", "detach", "to")}
_NORM = (
    "if one norm of all tensors is meant, call torch.nn.utils.get_total_norm (torch 2.6"
    " on) and read its result alone, only in steps that log it; otherwise give the"
    " tensors as a list to torch._foreach_norm, which takes any shapes, and read the"
    " results once after the loop, as with torch.stack(results).tolist()"
)
_ZERO = "aten::zero_"
_DETACHES = {"aten::detach_", "aten::requires_grad_"}
_CLEAR = (
    "call optimizer.zero_grad(set_to_none=True), or set p.grad = None in the loop,"
    " unless something reads these gradients before the backward makes new ones"
)
_GRADIENT = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def gradients(view: View) -> int:
    """Return how many gradients of weights are accumulated in all steps."""
    return int(named_like(view.ops, rf"{_GRADIENT}$").sum())


def reads_norms(row: Mapping[str, Any], view: View) -> bool:
    """Return whether each iteration only computes a norm of a tensor and reads it."""
    ops = set(row["names"])
    squares = ops & _SQUARES
    if row["back"] or not ops & set(READ) or not (ops & _NORMS or squares):
        return False
    if ops - _NORMS - _SQUARES - _BESIDE - set(READ):
        return False
    return not squares or ("aten::sum" in ops and _are_squares(row, view))


def _are_squares(row: Mapping[str, Any], view: View) -> bool:
    """Return whether no power in a loop is another one than 2, as far as known."""
    ops = view.trace.ops[[*row["ops"]]]
    powers = view.with_inputs(ops.filter(named(ops, ["aten::pow"])))
    exponents = powers["values"].list.get(1, null_on_oob=True).drop_nulls()
    return bool(exponents.is_in(["", "2", "2.0", "2."]).all())


def clears(row: Mapping[str, Any]) -> bool:
    """Return whether a loop fills gradients with zeros, as ``zero_grad`` once did."""
    ops = set(row["names"])
    if _ZERO not in ops or ops - _DETACHES - {_ZERO, "aten::detach"}:
        return False
    return bool(ops & _DETACHES) or "zero_grad" in (row["function"] or "")


def gradient_advice(row: Mapping[str, Any], view: View) -> str:
    """Return which call does what a loop over gradients does, if it is one."""
    if clears(row):
        return _CLEAR
    return _NORM if reads_norms(row, view) else ""


def gradient_fixes(row: Mapping[str, Any], view: View) -> list[Fix]:
    """Return what that call removes besides the host's time in the loop.

    Of norms these are the waits for each. Without gradients to add to, the backward
    takes over those that it makes, and adds nothing.
    """
    if clears(row):
        fills = _within(view.kernels["op"], pl.Series(row["ops"]), view)
        added = _added(row, view)
        return [Fix(kernels=pl.concat([view.kernels["id"].filter(fills), added]))]
    if reads_norms(row, view):
        waits = view.runtime.filter(text("call") == "sync").drop_nulls("op")
        reads = _reads(row, view)
        return [Fix(syncs=waits["id"].filter(_within(waits["op"], reads, view)))]
    return []


def _within(ops: pl.Series, outermost: pl.Series, view: View) -> pl.Series:
    """Return which of these ops are called in one of some outermost ops."""
    roots = view.outermost_ops[ops]
    return roots.is_in(outermost.implode()).fill_null(value=False)


def _reads(row: Mapping[str, Any], view: View) -> pl.Series:
    """Return the reads of a loop, and others at their lines.

    An iteration that waits long, as the first for the backward, is cut short.
    """
    line = ("file", "function", "call_line")
    ops = view.ops
    reads = ops[["id", *line]].filter(ops["parent"].is_null() & named(ops, READ))
    rows = reads.filter(pl.col("id").is_in([*row["ops"]]))
    lines = rows.select(line).drop_nulls().unique()
    there = reads.join(lines, on=line, how="semi")["id"]
    return pl.concat([rows["id"], there]).unique()


def _added(row: Mapping[str, Any], view: View) -> pl.Series:
    """Return the kernels that add gradients to zeros: where each is added once."""
    kernels = view.kernels
    if view.distributed or gradients(view) != row["iterations"]:
        return kernels["id"].clear()
    ops = view.trace.ops
    accumulate = view.outermost_ops.filter(named_like(ops, rf"{_GRADIENT}$")).unique()
    adds = named(ops, ["aten::add_"])[kernels["op"]].fill_null(value=False)
    return kernels["id"].filter(adds & _within(kernels["op"], accumulate, view))

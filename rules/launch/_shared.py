"""Shared code of the rules on optimizers: a drawn step, its kernels, evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    END,
    Evidence,
    at_function,
    has_like,
    listed,
    made_at,
    named_like,
    overlap,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding, View


_STEP = r"^torch/optim/[a-z]+\.py\(\d+\): step$"
_STEP_OF_ADAM = r"^torch/optim/adamw?\.py\(\d+\): step$"
# What a subclass of Adam calls, in torch's own step() inside of its own.
_OF_ADAM = ("aten::_foreach_lerp_", "aten::_foreach_addcmul_", "aten::_foreach_sqrt")
_FUNCTION = ("file", "function")
ONLY_NAMED = (
    "; only the name of its class was recorded, without stacks: check that it is of"
    " torch.optim"
)


def step_of_adamw(op: str, calls: int) -> str:
    """Draw a step of AdamW that calls an op this many times."""
    numbers = range(1, calls + 1)
    span = f"[{op.ljust(24)}]"
    width = len(span) * calls
    return "\n".join(
        (
            f"host  [ProfilerStep#1{' ' * (width + 20)}]",
            f"host   [Optimizer.step#AdamW.step{' ' * (width - 8)}]",
            f"host    {span * calls}",
            "host     " + "".join(f"[cuLaunchKernel>{n}]        " for n in numbers),
            "gpu 7          " + "".join(f"[k<{n}]{' ' * 21}" for n in numbers).rstrip(),
        )
    )


def of_torch(view: View, spans: pl.DataFrame) -> bool | None:
    """Return whether the steps of an optimizer are torch's own; None if nobody knows.

    Without stacks only the name of its class is recorded, which others have, too.
    """
    frames = view.trace.frames
    if not has_like(frames, r"^torch/optim/optimizer\.py"):
        return None
    steps = frames.filter(named_like(frames, _STEP))
    return bool(overlap(spans, steps.select(start="ts", end=END)).sum())


def like_adam() -> pl.Expr:
    """Return whether the operators of an optimizer are those of Adam."""
    names = pl.col("names")
    return pl.all_horizontal(names.list.contains(op) for op in _OF_ADAM)


def is_adam(view: View, spans: pl.DataFrame) -> bool:
    """Return whether steps of an optimizer of any name are those of torch's Adam."""
    if not has_like(view.trace.frames, _STEP_OF_ADAM):
        return False
    steps = view.trace.frames.filter(named_like(view.trace.frames, _STEP_OF_ADAM))
    return bool((overlap(spans, steps.select(start="ts", end=END)) > 0).all())


def at_constructor(finding: Finding, view: View, name: str) -> Finding:
    """Return a finding on an argument of an optimizer where that is made.

    The line of its ``step`` comes after it. Where the constructor is not in the
    program's source, or is one of several, it is the line of the step alone.
    """
    place = finding.place
    ops = view.trace.ops[[*_FUNCTION, "call_line", "dur"]][[*finding.ops]]
    here = [text(name).eq_missing(getattr(place, name)) for name in _FUNCTION]
    lines = (
        ops.filter(*here)
        .drop_nulls("call_line")
        .group_by("call_line")
        .agg(pl.col("dur").sum())
        .sort("dur", "call_line", descending=[True, False])["call_line"]
    )
    made = made_at(view.trace, name, place.file, lines.to_list(), "step")
    if not made:
        return finding
    first, others = made[0], len(made) - 1
    line = lines[0] if len(lines) else place.line
    called = at_function(place.file, line, place.function)
    return replace(
        finding,
        place=replace(first, other_lines=others),
        evidence=(Evidence("step", called), *finding.evidence),
    )


def launched(view: View, ops: list[int]) -> pl.Series:
    """Return the kernels of the steps that these outermost ops launch."""
    roots = view.outermost_ops[view.kernels["op"]]
    of_ops = pl.Series([ops], dtype=pl.List(roots.dtype))
    return view.kernels["id"].filter(roots.is_in(of_ops))


def evidence(row: Mapping[str, Any], host_ns: int, steps: int) -> Iterator[Evidence]:
    """Return what an optimizer calls and launches, and what that takes."""
    yield Evidence("ops", listed(row["names"], 8))
    yield Evidence("launches", value=row["kernels"] / steps, note="kernels a step")
    yield Evidence("host", "", host_ns / steps, "ns", note="a step, as recorded")
    yield Evidence("gpu", "", row["gpu_ns"] / steps, "ns", note="of kernels a step")

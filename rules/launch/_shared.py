"""Shared code of the rules on optimizers: a drawn step, its kernels, evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import END, Evidence, has_like, listed, named_like, overlap

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import View


_STEP = r"^torch/optim/[a-z]+\.py\(\d+\): step$"
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

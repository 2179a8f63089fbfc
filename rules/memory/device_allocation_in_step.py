"""MEM001: the caching allocator goes to the driver in the steps themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.gpu_idle import busy_spans
from traceq.analysis.patterns.driver_allocations import calls_named, growth
from traceq.intervals import disjoint, overlap, spans
from traceq.lint import Bad, Good, Need, Rule, Severity, View
from traceq.model.names import DEVICE_ALLOC, DEVICE_FREE
from traceq.words import listed, size, time, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

_LEAST_GROWTH = 1 << 20
_STABLE = "give all steps the same shapes: pad to a few fixed sizes, or to the longest"
_ADVICE = {
    "empty_cache": "remove torch.cuda.empty_cache() from the loop: it gives back to the"
    " driver what the next step takes again, and waits for the GPU each time",
    "growing": "look for what keeps tensors from one step to the next: a list of losses"
    " or outputs that are not detached, a cache, a hook; a memory snapshot names the"
    " lines",
    "full": "memory is so full that the allocator gives blocks back to find room: use"
    " less (smaller batch, checkpointing), or set"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation",
    "expandable": f"{_STABLE}; segments expand and shrink with every step",
    "shapes": f"{_STABLE}; or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,"
    " which fits blocks of any size",
}


@dataclass(frozen=True)
class DeviceAllocationInStep(Rule):
    """The allocator asks the driver for GPU memory, or gives it back, in most steps.

    ## What it does

    Looks for ``cudaMalloc``, ``cudaFree`` and, with expandable segments,
    ``cuMemCreate``, ``cuMemMap`` and ``cuMemUnmap`` in more than half of the steady
    steps. While compiling or recording a CUDA graph they are to be expected and do not
    count.

    ## Why is this bad?

    torch keeps freed memory to use it again, so that a steady step needs nothing from
    the driver. These calls take a hundred times longer than the allocator itself, and
    ``cudaFree`` waits until the GPU has done all it was given.

    ## How to fix it

    Calls that only take memory mean that steps need ever more of it (something keeps
    tensors), or blocks of ever new sizes (shapes change: pad them, or turn on
    ``expandable_segments``). Calls that also give it back mean that memory is full, or
    that the program calls ``torch.cuda.empty_cache()`` in the loop.

    ## When it is wrong

    In the first steps of a run the allocator still collects what it needs: record
    later ones. The line shown is where memory ran short, not always what holds it.
    """

    code = "MEM001"
    since = "0.1.0"
    needs = frozenset({Need.STEPS})

    examples = (
        Bad(
            """
            host   [ProfilerStep#1               ] [ProfilerStep#2               ]
            host    [aten::empty ]                  [aten::empty ]
            host     [cudaMalloc]                    [cudaMalloc]
            """,
            finds=("the allocator calls cudaMalloc once a step",),
        ),
        Good(
            """
            host   [ProfilerStep#1               ] [ProfilerStep#2               ]
            host    [aten::empty ]                  [aten::empty ]
            host     [cudaMalloc]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Make one finding of all calls: which op runs short of memory is chance."""
        calls = calls_named(view.trace, view.runtime, DEVICE_ALLOC, DEVICE_FREE)
        if 2 * calls["step"].n_unique() <= view.steps:
            return
        parts = disjoint(spans(calls))
        took = int((parts["end"] - parts["start"]).sum())
        busy = int(overlap(parts, busy_spans(view.trace.kernels)).sum())
        by_name = calls.group_by("name").len().sort("len", "name", descending=True)
        said = [
            f"{name} {times(count / view.steps)}" for name, count in by_name.iter_rows()
        ]
        cause, grown = _cause(view, calls)
        leaves = f", and each step leaves {size(grown)} more allocated" if grown else ""
        yield self.finding(
            f"the allocator calls {' and '.join(said)} a step{leaves}",
            subject=cause,
            place=view.place(_most_time(calls)),
            count=calls.height / view.steps,
            host_ns=took / view.steps,
            gpu_ns=(took - busy) / view.steps,
            evidence=[
                ("calls", f"{time(took / view.steps)} a step on the host"),
                ("op", _ops(calls)),
            ],
            data={
                "cause": cause,
                "calls": dict(by_name.iter_rows()),
                "grown_bytes": grown,
            },
            advice=_ADVICE[cause],
            # One step may be an epoch's first, or the one that writes a checkpoint.
            severity=None if view.steps > 1 else Severity.info,
            ops=calls["op"].drop_nulls(),
            spans=parts,
        )


def _cause(view: View, calls: pl.DataFrame) -> tuple[str, int]:
    """Return why the allocator goes to the driver, and how much each step leaves."""
    emptied = view.trace.frames.filter(pl.col("function") == "empty_cache")
    gives = calls.filter("gives")
    least = growth(view.trace)["grown"].min()
    grown = least if isinstance(least, int) and least >= _LEAST_GROWTH else 0
    if overlap(spans(gives), spans(emptied)).sum() > 0:
        return "empty_cache", grown
    if grown:
        return "growing", grown
    if calls["name"].str.starts_with("cuMem").any():
        return "expandable", 0
    return ("full" if gives.height else "shapes"), 0


def _most_time(calls: pl.DataFrame) -> dict[str, object]:
    where = ("file", "line", "function", "module")
    found = calls.group_by(where).agg(pl.col("dur").sum())
    return found.sort("dur", *where, descending=[True, *[False] * 4]).row(0, named=True)


def _ops(calls: pl.DataFrame) -> str:
    found = calls.drop_nulls("op_name").group_by("op_name").len()
    found = found.sort("len", "op_name", descending=[True, False])
    return listed([f"{name} ×{count}" for name, count in found.iter_rows()])

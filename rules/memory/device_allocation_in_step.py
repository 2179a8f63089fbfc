"""MEM001: the caching allocator calls the driver in steady steps."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl

from traceq.analysis.base.profiler_overhead import recorder_keeps
from traceq.linter import Bad, Good, Seen, View, dataclass, overlap, size, spans
from traceq.model import names

from ._driver_allocations import driver_calls, growth, shapes_change
from ._driver_calls import DriverCallRule, in_most_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

# A step that leaves less than this more than the one before does not leak.
_SMALLEST_LEAK = 1 << 20
_STABLE = "give all steps the same shapes: pad to a few fixed sizes, or to the longest"
_PERHAPS = (
    "if shapes differ from step to step, pad them to a few fixed sizes, or to the"
    " longest"
)
_KEPT = (
    "find what keeps tensors from one step to the next: a list of losses or outputs"
    " that are not detached, a cache, a hook; a memory snapshot names its line"
)
_USE_LESS = (
    "memory is so full that the allocator frees cached blocks to find room: use less"
    " (smaller batch, activation checkpointing)"
)
_EXPANDABLE = "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_ADVICE = {
    "empty_cache": "remove torch.cuda.empty_cache() from the loop: it frees memory that"
    " the next step allocates again, and it blocks until the GPU is idle",
    "leak": _KEPT,
    "same shapes": "all steps have the same shapes: record later ones, as the first of"
    f" a run fill the cache; if these allocate too, {_KEPT}",
    "full": f"{_USE_LESS}, or {_EXPANDABLE} against fragmentation",
}
# Of these, that fewer and fewer calls are made is a cache that fills.
_ONLY_ALLOCATED = ("same shapes", "shapes")


@dataclass(frozen=True)
class DeviceAllocationInStep(DriverCallRule):
    """The allocator calls cudaMalloc or cudaFree in most steps.

    ## What it does

    Looks for ``cudaMalloc``, ``cudaFree`` and, with expandable segments,
    ``cuMemCreate``, ``cuMemMap`` and ``cuMemUnmap`` in more than half of the steady
    steps. Calls made while compiling or capturing a CUDA graph are expected and do not
    count.

    ## Why is this bad?

    The caching allocator keeps freed memory and reuses it, so a steady step needs
    nothing from the driver. These calls take a hundred times longer than an allocation
    from the cache, and ``cudaFree`` blocks until the GPU has finished all its work.

    ## How to fix it

    If memory is only allocated, either every step leaks (something keeps tensors) or
    block sizes keep changing (pad the shapes, or set ``expandable_segments:True``).
    Where all steps have large tensors of the same shapes, it is not the shapes. If
    memory is also freed, either it is full or the program calls
    ``torch.cuda.empty_cache()`` in the loop.

    ```diff
      for batch in loader:
          train(batch)
    -     torch.cuda.empty_cache()
    ```

    ## When it is wrong

    In the first steps of a run the allocator still fills its cache: record later ones.
    If steps call it less and less, nothing is reported. With ``record_shapes=True`` the
    profiler itself keeps the tensors that ``vmap`` and ``grad`` of ``torch.func`` wrap,
    until it ends: nothing is reported either, unless memory is freed too. The reported
    line is where memory ran short, not necessarily what holds it.
    """

    code = "MEM001"
    several_fixes = True
    since = "0.1.0"
    see = ("PYTORCH_ALLOC_CONF", "torch.cuda.empty_cache")

    seen = Seen(
        of="fixtures/twins/graph_rerecord",
        text="""
        MEM001 device-allocation-in-step  saves 508 µs/step (<1%)
          the allocator calls cudaMalloc 3.5 times a step
          in     step (dev_cases.py:65)
          calls  833 µs a step on the host, as recorded
          op     aten::_log_softmax ×1
          op     aten::_log_softmax_backward_data ×1
          op     aten::nll_loss_backward ×1
          fix    give all steps the same shapes: pad to a few fixed sizes, or to the
                 longest; or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,
                 with which free memory fits blocks of any size
        """,
    )

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
        calls = driver_calls(
            view.trace, view.runtime, names.DEVICE_ALLOC, names.DEVICE_FREE
        )
        if not in_most_steps(view, calls):
            return
        change = shapes_change(view.trace, view.ops)
        cause, leaked = _cause(view, calls, change=change)
        if cause in _ONLY_ALLOCATED and _falls(view, calls):
            return
        if not calls["frees"].any() and recorder_keeps(view.trace):
            return
        yield self.driver_finding(
            view,
            calls,
            "the allocator",
            subject=cause,
            place=view.place(_most_time(calls)),
            advice=_advice(cause, change=change),
            result=f", and each step leaks {size(leaked)}" if leaked else "",
            data={"cause": cause, "leaked_bytes": leaked},
        )


def _falls(view: View, calls: pl.DataFrame) -> bool:
    """Return whether steps make fewer and fewer calls, the last half or less."""
    steps = view.steady.windows["step"].sort()
    by_step = dict(calls["step"].drop_nulls().value_counts().iter_rows())
    counts = [by_step.get(step, 0) for step in steps]
    falling = all(later <= before for before, later in pairwise(counts))
    return falling and 2 * counts[-1] <= counts[0]


def _advice(cause: str, *, change: bool | None) -> str:
    """Return what to do: shapes are to be the same where they are seen to change."""
    same = _STABLE if change else _PERHAPS
    if cause == "shapes":
        return (
            f"{same}; or {_EXPANDABLE}, with which free memory fits blocks of any size"
        )
    if cause == "expandable":
        less = _USE_LESS if change is False else same
        return f"{less}; segments grow and shrink in every step"
    return _ADVICE[cause]


def _cause(view: View, calls: pl.DataFrame, *, change: bool | None) -> tuple[str, int]:
    """Return why the allocator calls the driver, and how much each step leaks."""
    frames = view.trace.frames
    emptied = frames[["ts", "dur"]].filter(frames["function"] == "empty_cache")
    frees = calls.filter("frees")
    lowest = growth(view.trace)["growth"].min()
    leaked = lowest if isinstance(lowest, int) and lowest >= _SMALLEST_LEAK else 0
    if overlap(spans(frees), spans(emptied)).sum() > 0:
        return "empty_cache", leaked
    if leaked:
        return "leak", leaked
    if change is False and not frees.height:
        return "same shapes", 0
    if calls["name"].str.starts_with("cuMem").any():
        return "expandable", 0
    return ("full" if frees.height else "shapes"), 0


def _most_time(calls: pl.DataFrame) -> dict[str, Any]:
    place = ("file", "line", "function", "module")
    by_place = calls.group_by(place).agg(pl.col("dur").sum())
    return by_place.sort(-pl.col("dur"), *place).row(0, named=True)

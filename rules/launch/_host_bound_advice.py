"""Advice on a host-bound step, and the evidence for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.time import host_activity
from traceq.linter import (
    Evidence,
    Fix,
    View,
    counted,
    fill_false,
    has_like,
    often,
    time,
)

from ._graphed_model import graphed_model
from ._host_bound_fixes import (
    OF_OPS,
    around_ns,
    gaps_between,
    replayed,
    uncompiled,
)
from ._idle_entries import (
    at_hottest,
    entries_of_waits,
    longest_functions,
    outside_of_model,
)
from ._obstacle import HARD, UNCOMPILED
from ._obstacle_words import FORBIDS, first_of
from ._trainers import trainer_of
from ._whole_update import only_passes, update_line, whole_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ._obstacle import Obstacle
    from ._whole_update import WholeUpdate

# A smaller fraction outside of the model is usually the loss. Heuristic threshold.
_MUCH_AROUND = 0.1
# A backward that takes less of the host's time is not worth naming. Heuristic.
_MUCH_BACKWARD = 0.2
_ALONE = (
    'mode="reduce-overhead" of torch.compile, with a graph of each model, would'
    " overwrite what several backward passes a step, which are not alike, still need"
)
_GRAPHED = (
    "torch.cuda.make_graphed_callables(model, (batch,)) replays a CUDA graph for each"
    " {passes}, for batches of one size; or give each launch more to do with a larger"
    " batch"
)
_FUNCTION = (
    'torch.compile(mode="reduce-overhead") of the function that calls the modules, each'
    " too small alone, replays a CUDA graph"
)
_COMPILED = (
    'the model is compiled already: pass mode="reduce-overhead" to that torch.compile,'
    " which replays a CUDA graph; or compile what runs eagerly between compiled parts"
)
_DISTRIBUTED = (
    "give each launch more to do, with a larger batch a GPU, and see the entries under"
    " waits; CUDA graphs of steps with collectives (DDP, FSDP) were not tried: measure"
    ' mode="reduce-overhead" before you rely on it'
)
_TOO_SMALL = (
    "give each launch more to do, with a larger batch: a call of a compiled model would"
    " take the host as long as the few kernels of this one do"
)


def message(view: View, launches: float) -> str:
    likely = "" if view.bound.sure else "likely "
    kinds = view.waits.lasting
    largest = kinds["kind"][0]
    main = 2 * kinds["time"][0] >= kinds["time"].sum()
    name = host_activity.work_name(largest)
    most = f"mostly {name}" if main else f"{name} most of all"
    if replayed(view):
        return f"the GPU {likely}waits for the host around CUDA graphs: {most}"
    of_ops = kinds.filter(pl.col("kind").is_in(OF_OPS))["time"].sum()
    mostly = largest in OF_OPS or of_ops > view.waits.idle_ns / 2
    if mostly and launches:
        kernels = counted(round(launches) or launches, "kernel")
        return f"the GPU {likely}waits for the host to launch {kernels} a step"
    return f"the GPU {likely}waits for the host: {most}"


def evidence(
    view: View,
    obstacles: Sequence[Obstacle],
    fixes: Sequence[Fix],
    update: WholeUpdate | None = None,
) -> Iterator[Evidence]:
    waits, step_ns = view.waits, view.bound.step_ns
    lasting = waits.lasting["kind"].to_list()
    share = min(1.0, waits.idle_ns / step_ns)
    if view.fixed:
        note = "of the step is idle once the other findings are fixed"
        yield Evidence("remains", value=share, unit="share", note=note)
    else:
        yield Evidence("idle", value=share, unit="share", note="of the step")
    for kind, ns, what in entries_of_waits(view):
        passes = "" if kind in lasting else ", which passes by itself"
        yield Evidence("waits", value=ns, unit="ns", note=f"in {what}{passes}")
    gaps, gaps_ns = gaps_between(view.trace, view.host_account)
    if gaps:
        often = counted(gaps / view.steps, "gap")
        longest = time(assumptions.MOST_BETWEEN_OPS_NS)
        note = f"a step in {often} of over {longest}, unrecorded"
        yield Evidence("gaps", value=gaps_ns / view.steps, unit="ns", note=note)
    # CUPTI may have lost those of the steps, and have others.
    if not view.kernels.is_empty():
        median = float(view.kernels.select(pl.col("dur").median()).item())
        yield Evidence("kernels", value=median, unit="ns", note="each at the median")
    if update:
        yield update_line(view, update)
    yield from () if fixes else _backward_line(view)
    stays_ns = around_ns(view) if fixes else 0.0
    if stays_ns > _MUCH_AROUND * step_ns:
        note = "in operators outside of modules, which compiling the model leaves"
        yield Evidence("around", value=stays_ns, unit="ns", note=note)
    for obstacle in obstacles:
        where = (obstacle.file, obstacle.line, obstacle.function)
        place = at_hottest(view, *where, name=obstacle.name)
        place = f" in {place}" if place else ""
        of = f"most in {obstacle.name}{place}" if obstacle.name else ""
        about = ", ".join(filter(None, (of, _often(obstacle))))
        label = "forbids" if obstacle.reason in HARD else "needs"
        if obstacle.reason in UNCOMPILED:
            label = "compile"
        yield Evidence(label, f"{FORBIDS[obstacle.reason]} ({about})")
    if not view.bound.sure:
        stacks = "recording stacks makes the host 1.5 to 3 times slower"
        without = "recording makes the host slower: give --step-ms to be sure"
        yield Evidence("caveat", stacks if view.trace.frames.height else without)


def _backward_line(view: View) -> Iterator[Evidence]:
    """Yield the share of the host's time that is in backward passes, if it is much."""
    segments = view.host_account.of(
        pl.col("kind").is_not_null(), "op", "kind", "estimated"
    )
    back = fill_false(view.trace.ops["phase"] == "backward")[segments["op"]]
    engine = segments["kind"] == host_activity.ENGINE
    chosen = segments.filter(fill_false(back) | engine)["estimated"].sum()
    share = float(chosen) / max(1.0, float(segments["estimated"].sum()))
    if share >= _MUCH_BACKWARD:
        note = "of the host's time is the backward of the operators that these call"
        yield Evidence("backward", value=share, unit="share", note=note)


def _often(obstacle: Obstacle) -> str:
    """Return how often there is an obstacle, in words."""
    if obstacle.reason == "launches":
        return f"by up to {counted(obstacle.count, 'kernel')}"
    if obstacle.reason == "loop":
        return counted(obstacle.count, "iteration")
    return often(obstacle.count)


def trains(view: View) -> bool:
    """Return whether there is a backward pass or an update: not a forward alone."""
    seen = view.ops["phase"].is_in(["backward", "optimizer"]).any()
    return bool(seen) or has_like(view.trace.frames, "run_backward")


def _without_graph(view: View, obstacles: Sequence[Obstacle]) -> str:
    """Return the advice where no graph of a model can be replayed."""
    less = (
        "do less on the host while the GPU waits, which is mostly in"
        f" {longest_functions(view)}"
    )
    if only_passes(obstacles) and not (
        view.distributed or view.compiled or replayed(view)
    ):
        return f"{whole_step(view)}; {_ALONE}; or {less}"
    reason = next(item.reason for item in obstacles if item.reason in HARD)
    return f"{less}: no CUDA graph can be replayed with {FORBIDS[reason]}"


def advice_for(
    view: View,
    obstacles: Sequence[Obstacle],
    fixes: Sequence[Fix],
    update: WholeUpdate | None,
) -> str:
    compiled = view.compiled
    if any(obstacle.reason in HARD for obstacle in obstacles):
        cure = f"{update.advice}; {_ALONE}" if update else ""
        cure = cure or _without_graph(view, obstacles)
    elif view.distributed:
        cure = _DISTRIBUTED
    elif uncompiled(obstacles):
        passes = "forward and backward pass" if trains(view) else "forward pass"
        cure = _GRAPHED.format(passes=passes)
    elif replayed(view):
        cure = "capture what is still launched one by one in the CUDA graph as well"
    elif compiled:
        cure = _COMPILED
    elif not fixes:
        cure = _TOO_SMALL
    else:
        graph = 'model.compile(mode="reduce-overhead") replays a CUDA graph'
        if graphed_model(view.trace, view.steady).is_function:
            graph = _FUNCTION
        elif trainer := trainer_of(view):
            graph = trainer[0]
        larger = "; or give each launch more to do with a larger batch"
        # What a function calls beside its modules is compiled with them.
        whole = graph == _FUNCTION
        stays = "" if whole else outside_of_model(view)
        also = f"; or {update.advice}" if update else ""
        cure = f"{graph} instead{stays}{also}{larger}"
    first = "; ".join(filter(None, map(first_of, obstacles)))
    return f"{cure}; first {first}" if first else cure

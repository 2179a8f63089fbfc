"""A function that calls several models, as the update of an agent: one graph of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.replay.simulation import NO_SPANS, Change
from traceq.analysis.time import host_activity
from traceq.linter import (
    Evidence,
    Fix,
    at_function,
    fill_false,
    has_like,
    named_like,
)
from traceq.model import names

from ._host_bound_fixes import OF_OPS, replayed, uncompiled
from ._model_callers import apart, callers_of_models, calls_of, copies_in, during
from ._obstacle import HARD
from ._trainers import trainer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.linter import View

    from ._obstacle import Obstacle

# What a graph of a whole function replaces: operators, and all Python between them.
_REPLAYED = (*OF_OPS, *host_activity.INTERRUPTED)
# Steps of one kind differ by less. Heuristic threshold.
_OTHER_STEPS = 0.1


class WholeUpdate(NamedTuple):
    """One graph of a function that calls several models."""

    function: str
    """The function, and where it is."""
    advice: str
    fixes: list[Fix]


def _whole_update(view: View) -> WholeUpdate | None:
    """Return how one graph replays a function with several models, if there is one.

    It has their passes and the optimizers: what the host does between the models goes,
    too. What was seen that a graph cannot have is named. A function that loops over
    steps has to be taken apart.
    """
    places = callers_of_models(view)
    if not places or not has_like(view.trace.frames, "run_backward"):
        return None
    place = places[0]
    calls = calls_of(view, place)
    is_loop = 2 * calls.height <= view.steps
    windows = view.steady.windows.select("start", "end") if is_loop else calls
    others = [] if is_loop else apart(view, calls, places[1:])
    windows = pl.concat([windows, *(theirs for _, theirs in others)]).sort("start")
    needs = _needs(view)
    if _waits_in(view, windows):
        needs.append("no value that the host reads in between (SYN001)")
    if copies := copies_in(view, place):
        needs.append(f"the copies from the host before it ({copies})")
    function = at_function(*place)
    what = f"all that {function} runs"
    if is_loop:
        what = f"a step of {function}, put into a function without loading and logging"
    for other, _ in others:
        function += f" and of {(name := at_function(*other))}"
        what += f" and one of all that {name} runs"
    what += ", passes of several models and optimizers"
    return WholeUpdate(function, _graph_of(what, needs), _fixes(view, windows))


def whole_step(view: View) -> str:
    """Return how one graph replays a step whose passes no function of one file calls.

    Each model as a graph of its own would overwrite what the next pass needs.
    """
    return _graph_of("the whole step, all of its passes and optimizers", _needs(view))


def _needs(view: View) -> list[str]:
    """Return what a graph of passes and optimizers needs."""
    needs = ["inputs that each step copies into the same tensors"]
    if has_like(view.annotations, r"^Optimizer\.step#Adam"):
        needs.insert(0, "capturable=True of Adam")
    if _steps_differ(view):
        needs.append("a graph for each kind of step")
    return needs


def _graph_of(what: str, needs: Sequence[str]) -> str:
    *most, last = needs
    return (
        f"replay one CUDA graph of {what}, with torch.cuda.graph: it needs"
        f" {', '.join(most)}{' and ' if most else ''}{last}"
    )


def update_of(view: View, obstacles: Sequence[Obstacle]) -> WholeUpdate | None:
    """Return the graph of a whole update of several models, if it can be replayed."""
    hard = any(obstacle.reason in HARD for obstacle in obstacles)
    eager = not (view.compiled or replayed(view) or uncompiled(obstacles))
    possible = eager and not view.distributed and not trainer_of(view)
    if not possible or (hard and not only_passes(obstacles)):
        return None
    return _whole_update(view)


def only_passes(obstacles: Sequence[Obstacle]) -> bool:
    """Return whether nothing but several passes forbids a graph of each model.

    They overwrite each other's gradients where each is a graph of its own. What the
    host reads between their modules a graph of all of them forbids as well: it goes.
    """
    hard = {obstacle.reason for obstacle in obstacles} & {*HARD}
    return "passes" in hard and hard <= {"passes", "between"}


def update_line(view: View, update: WholeUpdate) -> Evidence:
    """Return what a step takes with one graph of the update, after other fixes."""
    changes = [
        Change(
            kernels=frozenset(fix.kernels),
            kernel_share=fix.kernel_share,
            spans=fix.spans if fix.spans is not None else NO_SPANS,
            host_share=fix.host_share,
        )
        for fix in update.fixes
    ]
    after = view.replay.run([*view.fixed, *changes], view.calibration.likely)
    note = f"a step, estimated, with one graph of {update.function}"
    return Evidence("update", value=after.step_ns, unit="ns", note=note)


def _fixes(view: View, windows: pl.DataFrame) -> list[Fix]:
    """Return what goes from the host in these windows, and the gaps between kernels."""
    launched = view.kernels.drop_nulls("launch")
    at = view.trace.runtime["ts"][launched["launch"]]
    inside = launched.filter(during(windows, at))
    if not inside.height:
        return []
    rows = view.host_account.of(
        pl.col("kind").is_in(list(_REPLAYED)), "start", "end", "op"
    )
    sent = inside["op"].filter(named_like(inside, names.HTOD)).drop_nulls()
    paused = pl.col("end") - pl.col("start") > assumptions.MOST_BETWEEN_OPS_NS
    spans = rows.filter(
        during(windows, rows["start"]),
        ~paused,
        ~fill_false(pl.col("op").is_in(sent.implode())),
    )
    calls = assumptions.COMPILED_CALL_KERNELS * windows.height / inside.height
    host_share = max(0.0, 1 - assumptions.GRAPH_LAUNCH_SHARE - calls)
    gaps_ns = float(view.replay.work["gap"].sum())
    share = min(
        1 - assumptions.COMPILED_GPU_SHARE, gaps_ns / max(1, view.steady.gpu_busy)
    )
    return [
        Fix(spans=spans.select("start", "end"), host_share=host_share),
        Fix(kernels=inside["id"], kernel_share=share),
    ]


def _waits_in(view: View, windows: pl.DataFrame) -> bool:
    waits = view.runtime.filter(pl.col("call") == "sync")
    return bool(during(windows, waits["ts"]).any())


def _steps_differ(view: View) -> bool:
    counts = view.kernels["step"].value_counts(name="kernels")["kernels"]
    least, most = counts.min(), counts.max()
    if not isinstance(least, int) or not isinstance(most, int):
        return False
    return most - least > _OTHER_STEPS * most

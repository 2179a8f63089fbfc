"""TRC002: the trace has no steps, or only one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceq.analysis.base.profiler_overhead import recorder_overhead
from traceq.linter import (
    Bad,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    dataclass,
    overlap,
    time,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_SCHEDULE = "schedule=torch.profiler.schedule(wait=5, warmup=2, active=3)"
_MARK = (
    'put torch.profiler.record_function("traceq: step") around an iteration, and record'
    " with --steps-by mark; if there is a loop in this trace, --steps-by repeats finds"
    " it without a landmark"
)
_WITH_NSYS = (
    "call torch.cuda.nvtx.range_push('step') and range_pop() around each step, and"
    " record three with nsys profile --capture-range=cudaProfilerApi"
)
# What the profiler takes itself is worth a word from this share of the time on.
_WORTH = 0.05


@dataclass(frozen=True)
class TooFewSteps(Rule):
    """The trace has no steps, or only one.

    ## What it does

    Counts the steps: the regions that the profiler opens when ``prof.step()`` is
    called, or else those of an engine or of the optimizer, or else what repeats.

    ## Why is this bad?

    Without steps, start-up and warm-up are part of every number, and nothing can be
    given per step. A single step may be the one that loads kernels, compiles or writes
    a checkpoint; two that look alike are evidence. When the profiler has just started,
    it holds the first launches up itself, often for longer than a small step takes.
    traceq leaves that time out of its estimates, where the profiler recorded it.

    ## How to fix it

    Give the profiler a schedule with a few steps of warm-up and three to record, and
    call ``prof.step()`` at the end of each step.

    ```diff
    - with profile() as prof:
    + with profile(schedule=schedule(wait=1, warmup=2, active=3)) as prof:
          for batch in loader:
              train(batch)
    +         prof.step()
    ```

    ## When it is wrong

    A trace of something that is done once has no steps. Where a loop was not found,
    ``--steps-by repeats`` looks for it without asking for a sign that it is one. Of a
    window of time, which ``traceq collect`` records where it sees no steps, the
    iterations that are whole count.
    """

    code = "TRC002"
    since = "0.1.0"
    see = ("torch.profiler.schedule",)
    severity = Severity.info
    needs = frozenset({Need.OPS})
    priced = False

    seen = Seen(
        of="fixtures/twins/moe_loop",
        text="""
        TRC002 too-few-steps
          only one step was recorded, and it may not be typical
          fix  record three: profile(schedule=torch.profiler.schedule(wait=5,
               warmup=2, active=3))
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1        ]
            host    [aten::mm            ]
            """,
            finds=("only one step was recorded, and it may not be typical",),
        ),
        Bad(
            """
            host   [aten::mm            ]
            """,
            finds=(
                "the trace has no steps: all of it counts as one, with its warm-up",
            ),
        ),
        Good(
            """
            host   [ProfilerStep#1        ] [ProfilerStep#2        ]
            host    [aten::mm            ]   [aten::mm            ]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Count the steps without warm-up."""
        if not view.meets(Need.WARM):
            return  # TRC003 tells more
        by_nsys = bool(view.trace.facts.recorder)
        if not view.trace.steps.height and _is_window(view):
            yield self.finding(
                "no steps were counted, and nothing that repeats was found in the"
                " recorded window: all of it counts as one" + _held_up(view),
                subject="no steps",
                advice=_MARK,
                example="",
            )
        elif not view.trace.steps.height:
            yield self.finding(
                "the trace has no steps: all of it counts as one, with its warm-up"
                + _held_up(view),
                subject="no steps",
                advice=_WITH_NSYS
                if by_nsys
                else f"record with profile({_SCHEDULE}) and call prof.step() in the"
                " loop",
                example="" if by_nsys else None,
            )
        elif view.steps == 1:
            yield self.finding(
                "only one step was recorded, and it may not be typical"
                + _held_up(view),
                subject="one step",
                advice=_WITH_NSYS if by_nsys else f"record three: profile({_SCHEDULE})",
                example="" if by_nsys else None,
            )


def _is_window(view: View) -> bool:
    """Return whether ``traceq collect`` recorded a time, since it saw no steps."""
    rank = view.trace.rank
    return rank is not None and rank.steps_by == "time"


def _held_up(view: View) -> str:
    """Return how long the profiler's own start took, if that is much."""
    held = int(overlap(view.steady.windows, recorder_overhead(view.trace)).sum())
    if held < _WORTH * view.bound.recorded_step_ns:
        return ""
    return f"; the profiler itself held the host up for {time(held)} of it"

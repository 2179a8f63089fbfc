"""TRC003: the recorded window includes the start, compilation or warm-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.start_up import start_up
from traceq.analysis.patterns import iteration_marks
from traceq.analysis.patterns.iterations import iterations
from traceq.linter import (
    Bad,
    Evidence,
    Good,
    Need,
    Rule,
    Seen,
    Severity,
    View,
    counted,
    dataclass,
    disjoint,
    listed,
    spans,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_ADVICE = "record later steps, as with schedule(wait=5, warmup=2, active=3)"
_LOOP = "if there is a loop in this trace, --steps-by repeats finds its later steps"


@dataclass(frozen=True)
class WarmUpInWindow(Rule):
    """The recorded window includes the start, compilation or warm-up.

    ## What it does

    Looks for the call that makes the GPU's context in the only step, or in a trace
    without steps, where it is 5% of the time or more; for steps in which torch.compile
    compiles while others do not, for a compilation in a trace with one step or none,
    and for steps at the start that take far longer than the rest. Compilation in most
    steps is not warm-up: that is JIT002. Nor is a long first step if a later one is as
    long, or if it is the prefill before a loop that decodes, or if ``traceq collect``
    recorded it, which waits for the warm-up to end.

    ## Why is this bad?

    A program starts and compiles once and runs for days. Averages over a window that
    includes the start describe the start, not the rest of the run: its first call makes
    the GPU's context, and the first use of each kernel and library loads it. On an H200
    with torch 2.11 the first step of a small model takes 306 ms and the third 2 ms,
    both as recorded. Rules that judge the host's time and its allocations are skipped
    then.

    ## How to fix it

    Let the program run a few steps before the profiler records: ``wait`` and ``warmup``
    of its schedule.

    ```diff
    - with profile(schedule=schedule(wait=0, warmup=0, active=3)) as prof:
    + with profile(schedule=schedule(wait=5, warmup=2, active=3)) as prof:
    ```

    ## When it is wrong

    If the start is what you want to look at. Steps that are marked as warm-up are left
    out of all averages already, so the other findings hold.
    """

    code = "TRC003"
    since = "0.1.0"
    see = ("torch.profiler.schedule",)
    needs = frozenset({Need.OPS})
    priced = False

    seen = Seen(
        of="tests/data/kernels/index.trace.json.gz",
        text="""
        TRC003 warm-up-in-window
          step 1 takes far longer than the others and is left out of the averages
          fix  record later steps, as with schedule(wait=5, warmup=2, active=3)
        """,
    )

    examples = (
        Bad(
            """
            host   [ProfilerStep#1                     ] [ProfilerStep#2   ]
            host    [_compile.compile_inner (dynamo_timed)][aten::mm      ]
            """,
            finds=("step 1 compiles and is part of the averages",),
        ),
        Good(
            """
            host   [ProfilerStep#1                     ] [ProfilerStep#2   ]
            host    [Torch-Compiled Region: 0/0       ]   [aten::mm      ]
            """
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Name the steps that are not steady, and whether they are left out."""
        yield from self._started(view)
        ops = view.trace.ops
        compiling = ops[["step", "ts", "dur"]].filter(ops["compiling"])
        if not view.trace.steps.height:
            yield from self._without_steps(view, compiling)
            return
        steps = view.trace.steps
        compiled = steps.filter(pl.col("step").is_in(compiling["step"].implode()))
        spoiled = compiled.filter(~pl.col("warmup"))
        if spoiled.height and (2 * spoiled.height <= view.steps or view.steps == 1):
            where = _numbered(spoiled)
            yield self.finding(
                f"{where} {_verb(spoiled, 'compile')} and {_verb(spoiled, 'is')} part"
                " of the averages",
                subject="compilation",
                evidence=[Evidence("steps", value=view.steps, note="in the averages")],
                data={"steps": spoiled["step"].to_list()},
                advice=_ADVICE,
            )
        left_out = _warm_up(view)
        if left_out.height:
            yield self.finding(
                f"{_numbered(left_out)} {_verb(left_out, 'take')} far longer than the"
                f" others and {_verb(left_out, 'is')} left out of the averages",
                subject="warm-up",
                data={"steps": left_out["step"].to_list()},
                advice=_ADVICE,
                severity=Severity.info,
            )

    def _started(self, view: View) -> Iterator[Finding]:
        start = start_up(view.trace)
        if start is None:
            return
        stepped = view.trace.steps.height > 0
        what = "step" if stepped else "trace"
        verb = "is" if stepped else "begins with"
        others = counted(start.loading_calls, "other call")
        share = (start.context_ns + start.loading_ns) / view.steady.time
        yield self.finding(
            f"the recorded {what} {verb} the first use of the GPU: its time tells"
            " nothing of later steps",
            subject="start",
            evidence=[
                Evidence(
                    "context", start.call, start.context_ns, "ns", note="as recorded"
                ),
                Evidence(
                    "loading",
                    value=start.loading_ns,
                    unit="ns",
                    note=f"in {others} of over 1 ms, as recorded",
                ),
                Evidence("share", value=share, unit="share", note=f"of the {what}"),
            ],
            data={"context_ns": start.context_ns, "loading_ns": start.loading_ns},
            advice=_ADVICE if stepped else f"{_ADVICE}; {_LOOP}",
        )

    def _without_steps(self, view: View, compiling: pl.DataFrame) -> Iterator[Finding]:
        parts = disjoint(spans(compiling))
        took = (parts["end"] - parts["start"]).sum()
        if took:
            yield self.finding(
                "the trace has no steps, so compilation is part of the averages",
                subject="compilation",
                evidence=[
                    Evidence("compiled", value=took, unit="ns", note="as recorded"),
                    Evidence(
                        "share",
                        value=took / view.steady.time,
                        unit="share",
                        note="of the trace",
                    ),
                ],
                advice=_ADVICE,
            )


def _warm_up(view: View) -> pl.DataFrame:
    """Return the steps at the start that are longer than the others for no reason.

    A prefill is longer than the decodes behind it, and no warm-up.
    """
    left_out = view.trace.steps.filter("warmup")
    if not left_out.height:
        return left_out
    phases = iterations(view.trace).select("step", "phase")
    steady = phases.join(view.steady.windows, on="step", how="semi")["phase"]
    other = phases.filter(
        pl.col("phase").is_in([iteration_marks.PREFILL, iteration_marks.MIXED]),
        ~pl.col("phase").is_in(steady.unique().implode()),
    )
    return left_out.join(other, on="step", how="anti", maintain_order="left")


def _numbered(steps: pl.DataFrame) -> str:
    numbers = [str(number) for number in steps["step"]]
    return f"{'step' if len(numbers) == 1 else 'steps'} {listed(numbers)}"


def _verb(steps: pl.DataFrame, verb: str) -> str:
    if verb == "is":
        return "is" if steps.height == 1 else "are"
    return f"{verb}s" if steps.height == 1 else verb

"""HST004: the host stops in a few steps, in one call or for no known reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    dataclass,
    option,
    share_of_steps,
    time,
)

from ._pause_calls import advice, plain
from ._pauses import pauses

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

# The same pause without the profiler, which slows Python down, is this share of it or
# more. Heuristic threshold.
_AS_LONG = 0.5
_ADVICE = (
    "see whether steps without the profiler have it as well, and whether gc.disable()"
    " removes it: then it is Python's garbage collector; call gc.freeze() after setting"
    " up, or gc.collect() once in many steps yourself"
)
_WORK = (
    "see what these steps do there that the others do not, as to reset an environment,"
    " to log or to save: do it in fewer steps, or in a thread or process of its own, if"
    " the next step does not need it"
)
_LOOK = "; with stacks, profile(with_stack=True), the trace shows what else it may be"
_USUAL = "[aten::sum] [aten::sum]"


def _drawn(*pauses: int) -> str:
    """Draw a step for each pause, which is given in µs, before its last op."""
    steps, ops = "", ""
    for number, pause in enumerate(pauses, 1):
        inside = f"{_USUAL}{' ' * (1 + pause)}[aten::mul]"
        ops += f"   {inside}  "
        steps += f"[ProfilerStep#{number}".ljust(len(inside) + 3) + "] "
    return f"""
            host   {steps.rstrip()}
            host   {ops.rstrip()}
            gpu 7   [sum]
    """


@dataclass(frozen=True)
class HostPause(Rule):
    """The host stalls between operators in some steps, for a long call or unexplained.

    ## What it does

    Looks for a stretch of Python between two operators, of at least 5 ms and a tenth of
    a step, in fewer than half of the steps, at a place that takes less than a fifth of
    it in most of them. If most of it is a single built-in call, as ``fork`` or
    ``read``, or a function, as an environment's ``reset``, that is named. What a
    DataLoader takes to start and end its workers is left to DAT002. Other findings are
    priced without these pauses. Where steps were timed without the profiler, the saving
    is at most what their mean is above their median, and a pause that none of them has
    is not reported.

    ## Why is this bad?

    Nothing is launched meanwhile, and the place where it happens is not to blame: the
    optimizer, whose lists it may happen to interrupt, looks as if it took half of the
    time. With several ranks, all others wait for the one that stops.

    On an H200, two programs stopped for 73 and 127 ms in one of three and of five
    steps, in the optimizer. The first took 29.0 ms a step without the profiler; 53.6
    were estimated with the pause, and 29.1 without it. Of the second these are 13.7,
    44.0 and 18.6. Both were recorded for the second time in one process; that it was
    the collector is a guess. Of a third it is known, which keeps 6,000 more objects in
    each step: it stopped for 427 ms, and without the profiler in about one of 25
    steps.

    ## How to fix it

    Where a call or a function is named, run it in fewer steps, before the loop, or in a
    thread or a process of its own.

    Else it may be Python's garbage collector, which looks at all objects of the program
    now and then: with ``gc.disable()`` the pause is gone if so. ``gc.freeze()`` after
    setting up takes those that stay out of its sight; or collect when it suits:

    ```diff
    + gc.collect()
    + gc.freeze()  # once, before the loop
    + gc.disable()
      for number, batch in enumerate(loader):
          train(batch)
    +     if number % 500 == 0:
    +         gc.collect()
    ```

    ## When it is wrong

    The profiler makes objects, too: a program that is recorded twice, or for long, has
    many more of them, and collecting them takes longer. Time a few hundred steps
    without it: if none is slower than the others, there is no such pause. Without
    stacks, what a program does once in many steps looks the same: a checkpoint, an
    evaluation, the next epoch's loader.
    """

    code = "HST004"
    since = "0.3.0"
    see = ("torch.utils.data.DataLoader",)
    needs = frozenset({Need.GPU, Need.OPS, Need.STEPS, Need.WARM})

    min_share: float = option(
        0.1, "Pauses that take a smaller share of a step are not reported."
    )

    seen = Seen(
        text="""
        HST004 host-pause  saves 2.00 ms/step (99%), 1.40 ms to 2.00 ms
          the host stops for 6.00 ms in 1 of 3 steps, as recorded
          at     Python between operators (stacks were not recorded)
          total  2.00 ms a step, as recorded
          usual  1.00 µs at this place, as recorded
          fix    see whether steps without the profiler have it as well, and whether
                 gc.disable() removes it: then it is Python's garbage collector;
                 call gc.freeze() after setting up, or gc.collect() once in many
                 steps yourself; with stacks, profile(with_stack=True), the trace
                 shows what else it may be
        """,
    )

    examples = (
        Bad(
            _drawn(0, 6000, 0),
            finds="the host stops for 6.00 ms in 1 of 3 steps, as recorded",
        ),
        Good(_drawn(6000, 6000, 6000)),
        Good(_drawn(0, 300, 0)),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the pauses by what the host is at."""
        least = self.min_share * view.steady.time / view.steps
        for row in pauses(view, least).iter_rows(named=True):
            share = _seen_without_profiler(view, row)
            if share > 0:
                yield self._finding(view, row, share)

    def _finding(self, view: View, row: Mapping[str, Any], share: float) -> Finding:
        spans, call = pl.DataFrame(row["spans"]), row["call"]
        often = f" {spans.height} times" if spans.height > 1 else ""
        steps = share_of_steps(view, row["steps"])
        look = "" if view.trace.frames.height else _LOOK
        stopping = plain(call) if call else row["work"]
        return self.finding(
            f"{f'`{stopping}` stops the host' if stopping else 'the host stops'}{often}"
            f" for {time(row['length'])}{' in all' * bool(often)} in {steps},"
            " as recorded",
            subject=stopping or row["kind"],
            place=view.place(row),
            count=spans.height / view.steps,
            fix=Fix(spans=spans, host_share=share),
            gpu_idle_ns=row["idle"] / view.steps,
            evidence=[
                Evidence("at", call or row["work"] or row["kind"]),
                *(
                    Evidence(label, value=value, unit="ns", note=note)
                    for label, value, note in (
                        ("total", row["length"] / view.steps, "a step, as recorded"),
                        ("usual", row["usual"], "at this place, as recorded"),
                    )
                ),
            ],
            advice=_advice(row) or _ADVICE + look,
            example="" if _advice(row) else None,
        )


def _advice(row: Mapping[str, Any]) -> str:
    """Return what to do about the call or the work that a pause is, if it is either."""
    return advice(row["call"]) if row["call"] else _WORK if row["work"] else ""


def _seen_without_profiler(view: View, row: Mapping[str, Any]) -> float:
    """Return the share of the pauses that steps timed without the profiler have.

    Of a few recorded steps one may happen to stop, or the profiler makes it.
    """
    timed = view.trace.rank.step_time if view.trace.rank else None
    if timed is None or view.step_ns is None:
        return 1.0
    in_a_step = row["length"] / row["steps"]
    if timed.max_ns - timed.median_ns < _AS_LONG * in_a_step:
        return 0.0
    above = max(0, view.step_ns - timed.median_ns)
    return min(1.0, above * view.steps / row["length"])

"""HST004: the host stops in a few steps, and nothing says why."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.time import host_activity
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
    rows_where,
    share_of_steps,
    time,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

# Python, in which the interpreter may stop for something else.
_KINDS = (
    host_activity.PYTHON,
    host_activity.WITH_LIBRARIES,
    host_activity.LIBRARY,
    host_activity.MODULES,
    host_activity.OPTIMIZER,
    host_activity.ENGINE,
    host_activity.NO_STACKS,
)
_AT = ("kind", *host_activity.PLACE)
# A pause is this many times as long as the usual one at its place, and at least this
# long. Heuristic thresholds: pauses of 73 and 127 ms were recorded.
_UNUSUAL = 5
_SHORTEST_NS = 5_000_000
# The same pause without the profiler, which slows Python down, is this share of it or
# more. Heuristic threshold.
_AS_LONG = 0.5
_ADVICE = (
    "see whether steps without the profiler have it as well, and whether gc.disable()"
    " removes it: then it is Python's garbage collector; call gc.freeze() after setting"
    " up, or gc.collect() once in many steps yourself"
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
    """The host stalls between operators in some steps, and the trace does not show why.

    ## What it does

    Looks for a stretch of Python in which nothing at all is recorded, of at least 5 ms
    and a tenth of a step, in fewer than half of the steps, at a place that takes less
    than a fifth of it in most of them. Where steps were timed without the profiler, the
    saving is at most what their mean is above their median, and a pause that none of
    them has is not reported.

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

    It may be Python's garbage collector, which looks at all objects of the program now
    and then: with ``gc.disable()`` the pause is gone if so. ``gc.freeze()`` after
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
        HST004 host-pause  saves 2.00 ms/step (99%), 1.40 ms to 2.01 ms
          the host stops for 6.00 ms in 1 of 3 steps, as recorded
          at     Python between operators (stacks were not recorded)
          usual  3.00 µs at this place, as recorded
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
        least = max(_SHORTEST_NS, self.min_share * view.steady.time / view.steps)
        for row in _pauses(view, least).iter_rows(named=True):
            share = _seen_without_profiler(view, row)
            if share > 0:
                yield self._finding(view, row, share)

    def _finding(self, view: View, row: Mapping[str, Any], share: float) -> Finding:
        spans = pl.DataFrame(row["spans"])
        return self.finding(
            f"the host stops for {time(row['length'] / len(row['spans']))} in"
            f" {share_of_steps(view, row['steps'])}, as recorded",
            subject=row["kind"],
            place=view.place(row),
            count=len(row["spans"]) / view.steps,
            fix=Fix(spans=spans, host_share=share),
            gpu_idle_ns=row["idle"] / view.steps,
            evidence=[
                Evidence("at", row["kind"]),
                Evidence(
                    "usual",
                    value=row["usual"],
                    unit="ns",
                    note="at this place, as recorded",
                ),
            ],
            advice=_ADVICE + ("" if view.trace.frames.height else _LOOK),
        )


def _seen_without_profiler(view: View, row: Mapping[str, Any]) -> float:
    """Return the share of the pauses that steps timed without the profiler have.

    Of a few recorded steps one may happen to stop, or the profiler makes it.
    """
    timed = view.trace.rank.step_time if view.trace.rank else None
    if timed is None or view.step_ns is None:
        return 1.0
    longest = row["length"] / len(row["spans"])
    if timed.max_ns - timed.median_ns < _AS_LONG * longest:
        return 0.0
    above = max(0, view.step_ns - timed.median_ns)
    return min(1.0, above * view.steps / row["length"])


def _pauses(view: View, least: float) -> pl.DataFrame:
    """Return where the host stops in a few steps: place, ``steps`` and ``spans``."""
    account, windows = view.host_account, view.steady.windows
    spans, activities = account.spans, account.described.activities
    # Times are whole: to compare all of them with a fraction takes twice as long.
    long = spans[rows_where(spans["end"] - spans["start"] >= ceil(least))]
    # Where the first step begins and the last one ends, the profiler itself is at work.
    edge = (pl.col("start") == windows["start"].min()) | (
        pl.col("end") == windows["end"].max()
    )
    python = activities["kind"][long["activity"]].is_in(_KINDS)
    long = long.filter(python, ~edge)
    if not long.height:
        return long
    # Of a long recording there are millions of spans: only those at these places.
    places = activities.select(_AT).with_row_index("activity")
    paused = places[long["activity"].unique()].select(_AT)
    here = places.join(paused, on=_AT, how="semi", nulls_equal=True)
    at_these = pl.int_range(pl.len()).is_in(here["activity"].implode())
    near = account.of(at_these, "start", "end", "activity", "step", "recorded")
    near = near.filter(~edge).join(here, on="activity")
    most = near.group_by(*_AT, "step").agg(most=pl.col("recorded").max())
    usual = most.group_by(_AT).agg(
        usual=pl.col("most").median(), seen=pl.col("step").n_unique()
    )
    pauses = (
        account.describe(long, "start", "end", "step", "recorded", *_AT)
        .join(usual, on=_AT, nulls_equal=True, maintain_order="left")
        .filter(
            pl.col("recorded") > _UNUSUAL * pl.col("usual"),
            2 * pl.col("seen") > view.steps,
        )
    )
    if not pauses.height:
        return pauses
    return (
        pauses.hstack(account.describe(pauses, "idle"))
        .group_by(*_AT, "usual", maintain_order=True)
        .agg(
            pl.col("idle").sum(),
            length=pl.col("recorded").sum(),
            steps=pl.col("step").n_unique(),
            spans=pl.struct("start", "end"),
        )
        .filter(2 * pl.col("steps") < view.steps)
    )

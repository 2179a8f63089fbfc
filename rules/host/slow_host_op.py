"""HST002: operators that take the host far longer than usual."""

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
    Severity,
    View,
    counted,
    dataclass,
    listed,
    module_line,
    often,
    option,
    share_of_steps,
)

from ._shared import own_time
from ._slow_calls import (
    LOADING,
    SPREAD,
    UNKNOWN,
    contention,
    median,
    slow_calls,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from traceq.linter import Finding

_MOST_OPS = 4
_WHY = {
    LOADING: "loads the code of kernels",
    UNKNOWN: "takes the host far longer than usual",
}
_PASSES = (
    "it passes by itself once each kernel has been used: record later (traceq"
    " collect --warmup), or run a few steps before those that count"
)
_NOT_SHOWN = "what it does is not in the trace"
_MEDIAN = "at the median, as recorded"
_SAME = "of calls that do the same, as recorded"
_USUAL, _SLOW = "[aten::sum          ]" * 3, f"[aten::sum {' ' * 130}]"
_CALLS = " [cudaLaunchKernel]  " * 4
_STEP = f"""
            host   [ProfilerStep#1 {" " * 195}] [ProfilerStep#2 {" " * 195}]
            host    {_USUAL}{_SLOW}      {_USUAL}{_SLOW}
            host    {_CALLS}{" " * 127}{_CALLS}
            gpu 7   [sum]
"""


@dataclass(frozen=True)
class SlowHostOp(Rule):
    """Calls of an operator take the host far longer than others that do the same.

    ## What it does

    Looks for operator calls whose own time on the host, without the ops, launches and
    waits inside, is far beyond what calls that do the same usually take, those of the
    same operator on the same inputs: in most steps at one place, or in several steps
    all over the program. A slow call inside of another is one with it. An operator that
    asks nothing of the GPU takes as long as its tensors are large: without another call
    on the same inputs, or without recorded shapes, nothing is said of it, nor of large
    tensors, which HST005 is about: the first write to fresh memory is slow. If the code
    of a kernel is loaded meanwhile, that is the reason. Where steps were timed without
    the profiler, what slow calls cost one recorded step more than another counts only
    as far as the mean of the timed steps is above their median. New shapes are left to
    HST001, memory from the driver to MEM001, waits to SYN001 and SYN002, copies to
    CPY003, compiling and capturing to the JIT rules.

    ## Why is this bad?

    The GPU gets nothing to do for as long as the host takes. Slow calls of many
    operators at random places mean that the thread did not run: something else took the
    processor or Python's lock.

    ## How to fix it

    Loading passes by itself once every kernel has been used. Against a busy processor:
    fewer DataLoader workers or threads, no other jobs on the machine, pinned cores
    (``taskset``, ``numactl``). Python's garbage collector stops the program as well:
    ``gc.freeze()`` after setting up, or ``gc.collect()`` at a time of your choice.

    ```diff
      model, loader = build()
    + gc.collect()
    + gc.freeze()
      for batch in loader:
    ```

    ## When it is wrong

    The recorder writes its buffers now and then, which looks the same. A short
    recording on a machine that was busy for a moment shows what the next one will not.
    """

    code = "HST002"
    several_fixes = True
    since = "0.2.0"
    see = ("torch.set_num_threads", "torch.utils.data.DataLoader")
    needs = frozenset({Need.GPU, Need.OPS, Need.STEPS, Need.WARM})

    seen = Seen(
        text="""
        HST002 slow-host-op  saves 62.2 µs/step (55%), 43.5 µs to 87.6 µs
          aten::sum takes the host far longer than usual once a step
          slow   124 µs as recorded
          usual  3.00 µs as recorded
          fix    what it does is not in the trace; look for what takes the processor
                 away: more threads of libraries than cores (OMP_NUM_THREADS,
                 torch.set_num_threads), other processes on the machine, a thread
                 that holds Python's lock, Python's garbage collector (gc.freeze()
                 after setting up)
        """,
    )

    examples = (
        Bad(_STEP, finds="aten::sum takes the host far longer than usual once a step"),
        Good(_STEP.replace(f"{_USUAL}[aten::sum", f"{_USUAL}[aten::mul")),
        # On the host a sum takes as long as its tensor is large.
        Good(_STEP.replace("cudaLaunchKernel", "aten::sum_kernel")),
    )

    min_share: float = option(
        0.02, "Slow calls at one place that take a smaller share are not reported."
    )
    min_spread_share: float = option(
        0.05, "The same for slow calls all over the program."
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group slow calls by op and line, and look at the others together."""
        slow = view.host_account.calls.filter(
            pl.col("excess") > 0, ~(pl.col("new") & pl.col("planned"))
        ).with_columns(pl.col("own", "excess") - pl.col("unseen"))
        # Mostly all of them together take too little.
        least = min(self.min_share, self.min_spread_share) * view.steady.time
        if not slow.height or int(slow["excess"].sum()) < least:
            return
        slow = slow_calls(view, slow)
        if not slow.height:
            return
        rows = view.by_place(
            slow,
            "name",
            "why",
            steps=pl.col("step").n_unique(),
            **{item: pl.col(item).sum() for item in ("excess", "own", "idle")},
            usual=pl.col("usual").median(),
            ops=pl.col("ops").explode(),
        )
        regular = (pl.col("steps") > 1) & (2 * pl.col("steps") > view.steps)
        large = pl.col("excess") >= self.min_share * view.steady.time
        slow_ops = rows.filter(regular & large).sort("excess", descending=True)
        for row in slow_ops.iter_rows(named=True):
            yield self._at_one_place(view, row)
        claimed = slow_ops["ids"].explode()
        yield from self._spread(
            view, slow.filter(~pl.col("id").is_in(claimed.implode()))
        )

    def _at_one_place(self, view: View, row: Mapping[str, Any]) -> Finding:
        calls = len(row["ids"]) / view.steps
        loading = row["why"] == LOADING
        return self.finding(
            f"{row['name']} {_WHY[row['why']]} {often(calls)}",
            subject=f"{row['name']}, {row['why']}",
            place=view.place(row),
            count=calls,
            fix=_fix(view, row["ops"], row["excess"] / row["own"]),
            gpu_idle_ns=row["idle"] / view.steps,
            ops=row["ops"],
            evidence=[
                Evidence(
                    "slow",
                    value=row["own"] / len(row["ids"]),
                    unit="ns",
                    note="as recorded",
                ),
                Evidence("usual", value=row["usual"], unit="ns", note="as recorded"),
                *module_line(row["modules"]),
            ],
            advice=_PASSES if loading else f"{_NOT_SHOWN}; {contention(view)}",
            severity=Severity.info if loading else None,
        )

    def _spread(self, view: View, slow: pl.DataFrame) -> Iterator[Finding]:
        """Yield that calls of many ops are slow for no reason that is seen."""
        slow = slow.filter(pl.col("why") == UNKNOWN)
        ops = slow.group_by("name").agg(pl.col("excess").sum())
        excess = int(ops["excess"].sum())
        steps = slow["step"].n_unique()
        large = excess >= self.min_spread_share * view.steady.time
        if ops.height < SPREAD or steps <= 1 or not large:
            return
        names = ops.sort("excess", "name", descending=[True, False])["name"].to_list()
        calls = slow.height / view.steps
        ops_inside = slow["ops"].explode()
        yield self.finding(
            f"{counted(ops.height, 'operator')} at random places take the host far"
            f" longer than usual, {often(calls)}",
            subject="operators at random places",
            count=calls,
            fix=_fix(view, ops_inside.to_list(), excess / int(slow["own"].sum())),
            gpu_idle_ns=int(slow["idle"].sum()) / view.steps,
            ops=ops_inside,
            evidence=[
                Evidence("ops", listed(names, _MOST_OPS)),
                Evidence("slow", value=median(slow["own"]), unit="ns", note=_MEDIAN),
                Evidence("usual", value=median(slow["usual"]), unit="ns", note=_SAME),
                *turns(slow["excess"]),
                Evidence("steps", share_of_steps(view, steps)),
            ],
            advice=contention(view),
        )


def _fix(view: View, ops: list[int], share: float) -> Fix:
    return Fix(spans=own_time(view, ops), host_share=share)

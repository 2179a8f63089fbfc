"""LCH002: the GPU waits for the host, which launches kernels one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.compilation import REGION
from traceq.analysis.time.launch_overhead import launching_ops
from traceq.lint import Bad, Good, Need, Rule, View, option
from traceq.words import counted, listed, share, time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

_LOOP = 8


def _drawn(launches: int, kernel: str) -> str:
    """Draw a step of so many ops, each with a launch and a kernel."""
    numbers = range(1, launches + 1)
    width = 21 * launches
    return "\n".join(
        (
            f"host  [ProfilerStep#1{' ' * (width - 10)}]",
            "host   " + "[aten::add          ]" * launches,
            "host    " + "".join(f"[cuLaunchKernel>{n}]".ljust(21) for n in numbers),
            "gpu 7          " + "".join(kernel.format(n=n).ljust(21) for n in numbers),
        )
    )


@dataclass(frozen=True)
class LaunchBoundStep(Rule):
    """The GPU waits for the host, which launches its kernels one by one.

    ## What it does

    In steps that wait for the host, adds up the time in which the GPU idles while the
    host is inside of operators that launch kernels. What other rules name is left
    out: compiling, recording CUDA graphs, loops of tiny kernels, optimizers that
    update one parameter at a time, waits, allocations, loading data. Python between
    the operators is left out as well, so that the cost is rather too low. And there
    have to be enough launches to explain it: a host that is slow for another reason is
    not reported.

    ## Why is this bad?

    Each operator costs the host 5 to 15 µs, whatever its size. Where kernels are
    shorter than that, a faster GPU or a better kernel does not help: the step takes as
    long as the host needs to call its operators.

    ## How to fix it

    Launch less: ``torch.compile(model, mode="reduce-overhead")`` fuses operators and
    replays what is left as one CUDA graph. Or give each launch more to do, with a
    larger batch.

    ## When it is wrong

    Recording stacks makes the host 1.5 to 3 times slower, and a step that waits for the
    GPU may look as if it waited for the host. Where even a host three times as fast
    would be too slow the rule says "likely", and where it would not, nothing. Give the
    true time of a step with ``--step-ms``, or record without stacks.
    """

    code = "LCH002"
    since = "0.1.0"
    residual = True
    needs = frozenset({Need.GPU, Need.OPS})

    min_share: float = option(0.2, "Smaller parts of the step are not reported.")
    launch_us: float = option(
        12.0, "What the host needs for an operator that launches."
    )

    examples = (
        Bad(
            _drawn(8, "[k<{n}]"),
            finds=("the GPU waits for the host, which launches 8 kernels a step",),
        ),
        Good(_drawn(8, "[k<{n}                 ]")),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Add up the GPU's idle time in operators that launch kernels."""
        if view.bound.by != "host":
            return
        ops = launching_ops(view.trace, view.steady, _LOOP)
        launches = int(ops["launches"].sum()) / view.steps
        idle = int(ops["idle"].sum()) / view.steps
        recorded = view.steady.time / view.steps
        explained = launches * self.launch_us * 1000 / view.host_scale
        if min(idle, explained) < self.min_share * recorded:
            return
        sure = view.bound.measured or not view.trace.facts.stacks
        most = (1 - view.bound.busy) * view.bound.step_ns
        yield self.finding(
            f"the GPU {'' if sure else 'likely '}waits for the host, which launches"
            f" {counted(round(launches), 'kernel')} a step",
            subject="launches",
            count=launches,
            gpu_ns=idle * view.host_scale,
            host_ns=min(idle, most / view.host_scale) if view.bound.measured else idle,
            evidence=[
                ("idle", f"{share(idle, recorded)} of the step as recorded"),
                ("kernels", f"{_median(view.kernels)} each at the median"),
                ("ops", f"{_median(ops)} of the host each at the median"),
                ("most", _where(ops, view.steps)),
                ("note", "" if sure else "stacks make the host 1.5 to 3 times slower"),
            ],
            data={"launches": launches},
            advice=_advice(view),
            ops=ops["id"],
        )


def _median(table: pl.DataFrame) -> str:
    return time(table.select(pl.col("dur").median()).item())


def _where(ops: pl.DataFrame, steps: int) -> str:
    """Say which functions launch the most, or which ops where there are no stacks."""
    parts = [pl.col(part).cast(pl.String) for part in ("function", "file", "line")]
    named = ops.with_columns(
        where=pl.coalesce(
            pl.format("{} ({}:{})", *parts), pl.col("name").cast(pl.String)
        )
    )
    most = (
        named.group_by("where")
        .agg(pl.col("launches").sum())
        .sort("launches", "where", descending=[True, False])
    )
    return listed([f"{where} {n / steps:.0f}" for where, n in most.head(3).iter_rows()])


def _advice(view: View) -> str:
    compiled = view.ops["name"].cast(pl.String).str.contains(REGION).any()
    replayed = (view.runtime["call"] == "graph launch").any()
    if replayed:
        return "record what is still launched one by one in the CUDA graph as well"
    if compiled:
        return 'compile with mode="reduce-overhead", to replay a CUDA graph instead'
    return (
        'torch.compile(model, mode="reduce-overhead") replays a CUDA graph instead; or'
        " give each launch more to do with a larger batch"
    )

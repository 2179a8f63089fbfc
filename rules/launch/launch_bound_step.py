"""LCH002: the GPU waits for launches that no other finding explains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns.compilation import REGION
from traceq.analysis.time.launch_overhead import launching_ops
from traceq.expressions import text
from traceq.intervals import disjoint, spans
from traceq.lint import Bad, Evidence, Fix, Good, Need, Rule, View, option
from traceq.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

# Loops and optimizers from this size on are left to LCH001 and LCH003: their defaults.
_MIN_ITERATIONS = 8
_MOST_PLACES = 3


def _drawn(launches: int, kernel: str) -> str:
    """Draw a step of this many ops, each with a launch and a kernel."""
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
    """The GPU waits for launches that no other finding explains.

    ## What it does

    Reports what remains after the other findings: in a host-bound step, the time in
    which the GPU idles while the host runs operators that launch kernels. What other
    rules report is left out: compiling, capturing CUDA graphs, loops of tiny kernels,
    optimizers that update parameters one by one, syncs, allocations, loading data.
    Python between operators is left out too, so the saving is an underestimate. Nothing
    is reported if there are too few launches to explain the idle time: then the host is
    slow for another reason.

    ## Why is this bad?

    Each operator costs the host 5 to 15 µs, whatever its size. If kernels are shorter
    than that, a faster GPU or a better kernel does not help: the step takes as long as
    the host needs to call its operators.

    ## How to fix it

    First fix the findings above it. Then launch less:
    ``torch.compile(model, mode="reduce-overhead")`` fuses operators and replays the
    remaining kernels as one CUDA graph. Or give each launch more to do, with a larger
    batch.

    ## When it is wrong

    Recording stacks makes the host 1.5 to 3 times slower, so a GPU-bound step may look
    host-bound. The rule reports "likely" if even a host three times as fast would be
    too slow, and nothing if it would not. Give the true step time with ``--step-ms``,
    or record without stacks.
    """

    code = "LCH002"
    since = "0.1.0"
    residual = True
    needs = frozenset({Need.GPU, Need.OPS})

    # Chosen by judgement: less is not what bounds the step.
    min_share: float = option(0.2, "Smaller shares of the step are not reported.")
    # Operators take 26 to 46 µs for each launch as recorded with stacks in host-bound
    # pairs of benchmarks/ (H200, torch 2.11), so 9 to 15 µs without the profiler.
    launch_us: float = option(
        12.0, "How long the host takes for an operator that launches a kernel."
    )

    examples = (
        Bad(
            _drawn(8, "[k<{n}]"),
            finds=("the GPU waits for the host to launch 8 kernels a step",),
        ),
        Good(_drawn(8, "[k<{n}                 ]")),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Add up the GPU's idle time in operators that launch kernels."""
        if view.bound.by != "host":
            return
        ops = launching_ops(view.trace, view.steady, _MIN_ITERATIONS)
        launches = int(ops["launches"].sum())
        idle = int(ops["idle"].sum())
        explained = launches * self.launch_us * 1000 / view.host_scale
        if min(idle, explained) < self.min_share * view.steady.time:
            return
        certain = view.bound.measured or not view.trace.facts.stacks
        yield self.finding(
            f"the GPU {'' if certain else 'likely '}waits for the host to launch"
            f" {counted(round(launches / view.steps), 'kernel')} a step",
            subject="launches",
            count=launches / view.steps,
            fix=Fix(ops=ops["id"], host_share=_removed_share(view, ops)),
            gpu_idle_ns=idle / view.steps,
            evidence=_evidence(view, ops, certain=certain),
            data={"launches": launches / view.steps},
            advice=_advice(view),
        )


def _removed_share(view: View, ops: pl.DataFrame) -> float:
    """Return the share of the ops' host time that goes: that in which the GPU idles.

    It is not more than the time in which the GPU has no work in the measured step.
    """
    own = disjoint(spans(ops))
    host = int((own["end"] - own["start"]).sum())
    removed = float(ops["idle"].sum())
    if view.bound.measured:
        idle = view.bound.gpu_idle * view.bound.step_ns * view.steps
        removed = min(removed, idle / view.host_scale)
    return min(1.0, removed / host) if host else 0.0


def _evidence(view: View, ops: pl.DataFrame, *, certain: bool) -> Iterator[Evidence]:
    yield Evidence(
        "idle",
        value=int(ops["idle"].sum()) / view.steady.time,
        unit="share",
        note="of the step as recorded",
    )
    yield Evidence(
        "kernels", value=_median(view.kernels), unit="ns", note="each at the median"
    )
    yield Evidence(
        "ops", value=_median(ops), unit="ns", note="of host time each at the median"
    )
    yield from _places(ops, view.steps)
    if not certain:
        yield Evidence(
            "caveat", "recording stacks makes the host 1.5 to 3 times slower"
        )


def _median(events: pl.DataFrame) -> float:
    return float(events.select(pl.col("dur").median()).item())


def _places(ops: pl.DataFrame, steps: int) -> Iterator[Evidence]:
    """Yield the functions that launch the most; without stacks, the ops."""
    source = pl.format("{} ({}:{})", text("function"), text("file"), text("line"))
    most = (
        ops.group_by(where=pl.coalesce(source, text("name")))
        .agg(pl.col("launches").sum())
        .sort("launches", "where", descending=[True, False])
    )
    for where, launches in most.head(_MOST_PLACES).iter_rows():
        yield Evidence("launches", where, count=launches / steps)


def _advice(view: View) -> str:
    compiled = view.ops["name"].cast(pl.String).str.contains(REGION).any()
    replayed = (view.runtime["call"] == "graph launch").any()
    if replayed:
        return "capture what is still launched one by one in the CUDA graph as well"
    if compiled:
        return 'compile with mode="reduce-overhead", which replays a CUDA graph'
    return (
        'torch.compile(model, mode="reduce-overhead") replays a CUDA graph instead; or'
        " give each launch more to do with a larger batch"
    )

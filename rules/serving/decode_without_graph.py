"""SRV001: decode iterations launch their kernels one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
from traceq.analysis.patterns import iteration_marks, kv_cache
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Need,
    Rule,
    Seen,
    View,
    counted,
    dataclass,
    option,
)

from ._eager_decode import advice, first_module, removed_spans
from ._shared import loop, searches_beams, steady_iterations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_LAUNCHES = 6
_WIDTH = 21 * _LAUNCHES + 4


def _eager(kernel: str) -> str:
    ops = "[aten::add          ]" * _LAUNCHES
    launches = "".join(f"[cuLaunchKernel>#{n}]".ljust(21) for n in range(_LAUNCHES))
    kernels = "".join(kernel.format(n=n).ljust(21) for n in range(_LAUNCHES))
    return loop(
        2, _WIDTH, ("host", f" {ops}"), ("host", f"  {launches}"), ("gpu 7", kernels)
    )


@dataclass(frozen=True)
class DecodeWithoutGraph(Rule):
    """Decode iterations launch their kernels one by one while the GPU waits.

    ## What it does

    Looks at the decode iterations of a serving or generation trace that no CUDA graph
    runs, and in which the GPU idles for at least ``min-idle`` of the time. The saving
    is the host's time for operators, launches and the Python of the model, less what a
    graph's launch takes. What the host does between iterations stays, and where modules
    were recorded all that is in none, as choosing the token. Where a step of
    the profiler is a whole generation, its iterations are counted by the ids that are
    embedded, if shapes were recorded.

    ## Why is this bad?

    A decode does little work for each kernel: one token a request. The kernels take
    2 to 10 µs each, while the host needs 5 to 15 µs to launch one from Python. The GPU
    then waits for the host in every layer of every token.

    ## How to fix it

    Replay the decode step as a CUDA graph. With transformers a static cache does it:

    ```diff
    - model.generate(**inputs)
    + model.generate(**inputs, cache_implementation="static")  # compiled and graphed
    ```

    Engines have it on by default: leave out vLLM's ``--enforce-eager`` and SGLang's
    ``--disable-cuda-graph``. In a loop of your own, write keys and values into a cache
    of a fixed size and capture the step with ``torch.cuda.graph`` for each batch size.

    A graph replays the same launches on the same memory: a cache that grows by ``cat``
    (SRV007) and syncs inside of the model must go first; they are listed.

    With transformers only greedy search and sampling are compiled; beam search is left
    to LCH002, which promises nothing for a cache that grows.

    ## When it is wrong

    Where batches and lengths change in every iteration and no padding is possible. What
    a graph saves is an estimate from the host's time as recorded; recording slows the
    host down, so it may be too high.
    """

    code = "SRV001"
    since = "0.2.0"
    see = ("torch.cuda.graph", "torch.compile")
    needs = frozenset({Need.GPU, Need.OPS, Need.STEPS})
    several_fixes = True

    min_idle: float = option(
        0.2, "Less idle time of the GPU in decode iterations is not reported."
    )

    seen = Seen(
        of="tests/data/serving/graph_32_for_20.capture.json.gz",
        text="""
        SRV001 decode-without-graph  saves 3.59 ms/step (53%), 2.51 ms to 5.21 ms
          2 of 2 decode iterations run without a CUDA graph, 176 launches each
          idle     92% of decode
          kernels  2.46 µs each at the median
          fix      run decode as a CUDA graph: write the KV cache in place at a
                   fixed size and capture the step with torch.cuda.graph for each
                   batch size, or model.compile(mode="reduce-overhead"); in vLLM
                   leave out --enforce-eager, in SGLang --disable-cuda-graph
        """,
    )

    examples = (
        Bad(
            _eager("    [k<#{n}]"),
            finds="2 of 2 decode iterations run without a CUDA graph, 6 launches each",
        ),
        Good(_eager("    [k<#{n}              ]")),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Report the decodes that are eager, if the GPU idles in them."""
        decodes = steady_iterations(view, iteration_marks.DECODE)
        if not decodes.height or searches_beams(view):
            return
        eager = decodes.filter(pl.col("run") == "eager")
        steps = view.trace.steps.join(eager, on="step", how="semi")
        whole = int(steps["time"].sum())
        idle = int(steps["gpu_idle"].sum())
        if not whole or idle < self.min_idle * whole:
            return
        launches = float(steps["launches"].sum()) / steps.height
        kernels = view.kernels.join(eager, on="step", how="semi")
        grows = kv_cache.cache_cats(view.trace).height > 0
        yield self.finding(
            _message(decodes, eager, round(launches)),
            subject="decode",
            count=eager.height / view.steps,
            fix=Fix(
                spans=removed_spans(view, eager.select("step")),
                host_share=assumptions.GRAPH_HOST_SAVED,
            ),
            gpu_idle_ns=idle / view.steps,
            evidence=[
                Evidence("idle", value=idle / whole, unit="share", note="of decode"),
                Evidence(
                    "kernels",
                    value=float(kernels.select(pl.col("dur").median()).item() or 0),
                    unit="ns",
                    note="each at the median",
                ),
                *first_module(view, eager, grows=grows),
            ],
            data={"launches": launches, "decodes": decodes.height},
            advice=advice(view, grows=grows),
        )


def _message(decodes: pl.DataFrame, eager: pl.DataFrame, launches: int) -> str:
    """Say how many decode iterations are eager, if that is known, and what they launch.

    A step may be a whole generation, its prefill included.
    """
    each = counted(launches, "launch")
    if decodes["decodes"].null_count():
        steps = f"{eager.height} of {counted(decodes.height, 'step')}"
        return f"decode runs without a CUDA graph in {steps}, {each} a step"
    times, whole = (int(table["decodes"].sum()) for table in (eager, decodes))
    runs = "runs" if whole == 1 else "run"
    subject = f"{times:,} of {counted(whole, 'decode iteration')} {runs}"
    several = bool((decodes["decodes"] > 1).any())
    return f"{subject} without a CUDA graph, {each} {'a step' if several else 'each'}"

"""HST005: operators work on tensors in host memory while the GPU waits."""

from __future__ import annotations

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
    counted,
    dataclass,
    inputs,
    module_line,
    often,
    option,
)

from ._cpu_advice import ADVICE, advice_on, op_lines
from ._cpu_tensors import InputTensor, by_chain, on_cpu, with_chains
from ._sent_tensors import sending
from ._shared import own_time, settled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from traceq.linter import Finding

# Calls that only launch GPU work take less. Heuristic threshold: with the profiler, the
# slowest of them take 50 µs.
_LONG_NS = 100_000
# Host time of the launch if the GPU does the work instead. Heuristic.
_LAUNCHED_NS = 20_000
_WIDTH = 203
_CALL = f"[aten::rand{' ' * 160}] [aten::to            ]".ljust(_WIDTH)
_INSIDE = f" [aten::uniform_{' ' * 150}]       [cudaMemcpyAsync>1]".ljust(_WIDTH)
_SENT = f"{' ' * 190}[Memcpy<1]".ljust(_WIDTH)
_STEP = f"""
            host   [ProfilerStep#1 {" " * 185}] [ProfilerStep#2 {" " * 185}]
            host    {_CALL}{_CALL}
            host    {_INSIDE}{_INSIDE.replace(">1", ">2")}
            gpu 7   {_SENT}{_SENT.replace("<1", "<2")}
"""


@dataclass(frozen=True)
class WorkOnCpuTensors(Rule):
    """An operator works on tensors in host memory, and the GPU waits for it.

    ## What it does

    Looks for operators that ask nothing of the GPU and take the host long in most
    steps, since they compute on tensors in host memory: random numbers that are drawn
    there, rows that are picked out of a data set by hand, images that are scaled before
    they are sent. Operators that run one after another, with no call to the GPU between
    them, are one finding. What a DataLoader does is left to DAT001, the optimizer's
    state to LCH004, and calls that are slower than others alike to HST002.

    ## Why is this bad?

    The host takes milliseconds for what takes the GPU microseconds, and launches
    nothing meanwhile: unless the GPU still has work to do, it idles as long. What comes
    out is copied to the GPU then, which takes time again.

    ## How to fix it

    Draw random numbers where they are needed:

    ```diff
    - noise = torch.randn(batch, 4, 64, 64).to("cuda")
    + noise = torch.randn(batch, 4, 64, 64, device="cuda")
    ```

    Keep a data set that fits on the GPU there:

    ```diff
    + images = images.to("cuda")  # once, before the loop
      for index in batches:
    -     x = images[index].to("cuda")
    +     x = images[index.to("cuda")]
    ```

    Send other tensors first and compute afterwards: images of uint8 are a quarter of
    the bytes of the floats that the host makes of them. Make once what is the same in
    every step. What is about the next batch, workers of a DataLoader can do.

    ## When it is wrong

    A benchmark draws numbers in place of data that the real program reads. Where a
    tensor is, is not recorded: an operator counts if no runtime call is inside it, and
    if it is none that only makes views.
    """

    code = "HST005"
    since = "0.3.0"
    see = ("torch.randn", "torch.Tensor.to")
    needs = frozenset({Need.GPU, Need.OPS, Need.STEPS, Need.WARM})
    advice = ADVICE

    seen = Seen(
        text="""
        HST005 work-on-cpu-tensors  saves 106 µs/step (71%), 73.9 µs to 127 µs
          aten::rand draws a float32 [16,3,224,224] on the CPU once a step
          op      aten::uniform_
          takes   166 µs each, as recorded
          tensor  9.19 MiB
          fix     draw the numbers on the GPU: give device="cuda" to the call,
                  instead of .to("cuda") after it; from the same seed other numbers
                  are drawn there
        """,
    )

    examples = (
        Bad(
            _STEP,
            finds="aten::rand draws a float32 [16,3,224,224] on the CPU once a step",
            args={"aten::uniform_": inputs([[16, 3, 224, 224]], ["float"])},
        ),
        Good(_STEP.replace("aten::uniform_", "cudaMallocHost")),
    )

    min_share: float = option(
        0.02, "Operators that take a smaller share of the step are not reported."
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group long calls that ask nothing of the GPU by operator and line."""
        calls = view.host_account.calls
        calls = calls.filter(calls["usual"] >= _LONG_NS)
        least = self.min_share * view.bound.step_ns * view.steps
        if int(calls["own"].sum()) < least or view.trace.runtime.is_empty():
            return
        calls = on_cpu(view, settled(view, calls))
        if not calls.height:
            return
        rows = view.by_place(
            with_chains(view, calls),
            "name",
            "called",
            steps=pl.col("step").n_unique(),
            own=pl.col("own").sum(),
            usual=(pl.col("own") - pl.col("excess")).sum(),
            idle=pl.col("idle").sum(),
            inputs=pl.col("inputs").sort_by("own").last(),
            kinds=pl.col("inputs").drop_nulls().n_unique(),
            chains=pl.col("chain").unique(),
            first=pl.col("ts").min(),
        )
        regular = (pl.col("steps") > 1) & (2 * pl.col("steps") > view.steps)
        chains = [
            (sum(row["usual"] for row in chain), chain)
            for chain in by_chain(rows.filter(regular))
        ]
        for usual, chain in sorted(chains, key=lambda one: -one[0]):
            ids = [op for row in chain for op in row["ids"]]
            spans = own_time(view, ids).filter(pl.col("kind") != host_activity.DATA)
            if usual >= least and spans.height:
                yield self._finding(view, chain, spans)

    def _finding(
        self, view: View, chain: Sequence[Mapping[str, Any]], spans: pl.DataFrame
    ) -> Finding:
        count = sum(len(row["ids"]) for row in chain)
        own, usual, idle = (
            sum(row[key] for row in chain) for key in ("own", "usual", "idle")
        )
        longest = max(chain, key=lambda row: int(row["usual"]))
        shape, size, _ = InputTensor.of(view, longest["inputs"], 0)
        advice, ops = advice_on(view, chain), [op for row in chain for op in row["ids"]]
        message = (
            f"{longest['called']} {advice.does} on the CPU {often(count / view.steps)}"
        )
        if len(chain) > 1:
            message = (
                f"{counted(count / view.steps, 'operator')} a step work on the CPU one"
                f" after another, the longest is {longest['called']}"
                + (f" on {shape}" if shape else "")
            )
        return self.finding(
            message,
            subject=longest["called"],
            place=view.place(chain[0]),
            count=count / view.steps,
            # What is slower than usual is HST002's.
            fix=[
                Fix(spans=spans, host_share=(usual - _LAUNCHED_NS * count) / own),
                *(sending(view, ops) if advice.is_edit else ()),
            ],
            gpu_idle_ns=idle / view.steps,
            ops=ops,
            evidence=[
                *op_lines(view, chain),
                *([Evidence("tensor", value=size, unit="bytes")] if size else []),
                *module_line(longest["modules"]),
            ],
            advice=advice.text,
            effort="edit" if advice.is_edit else None,
            example="" if advice.example is None else self.example(advice.example),
        )

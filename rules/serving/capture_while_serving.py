"""SRV006: CUDA graphs are captured while requests are served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import iteration_marks
from traceq.analysis.patterns.iterations import iterations
from traceq.linter import (
    END,
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
    text,
    time,
)
from traceq.model import names

from ._shared import DECODE as DRAWN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_REPLAYED = f"""
    host   [{DRAWN}       ][{DRAWN}       ]
    host    [cudaGraphLaunch>1]                             [cudaGraphLaunch>2]
    gpu 7              [gemm<1      ]                                  [gemm<2      ]
"""
_CAPTURED = f"""
    host   [{DRAWN}       ][{DRAWN}       ]
    host    [cudaStreamBeginCapture]                        [cudaGraphLaunch>2]
    host                            [cudaStreamEndCapture]
    gpu 7                                                              [gemm<2      ]
"""


@dataclass(frozen=True)
class CaptureWhileServing(Rule):
    """CUDA graphs are captured while requests are served.

    ## What it does

    Looks for captures of CUDA graphs in the iterations of a serving or generation
    trace, by the program itself or its engine. Those of ``torch.compile`` are left to
    JIT001. It states how long the iterations with a capture take, beside the others.

    ## Why is this bad?

    A capture runs the model once or twice to warm up and once to record its launches,
    while nothing is computed for the requests. The first request of each batch size
    pays for it.

    ## How to fix it

    Capture before the first request, for all batch sizes that may occur. In vLLM and
    SGLang that is the default: give the sizes, and wait for the start to end.

    ```diff
    + for size in sizes:            # before the server listens
    +     graphs[size] = capture(size)
      while requests:
    -     graphs.setdefault(n, capture(n)).replay()
    +     graphs[smallest_at_least(n)].replay()
    ```

    ## When it is wrong

    If the trace is of the start on purpose. Such iterations are mostly left out of the
    averages as warm-up, so no saving is stated.
    """

    code = "SRV006"
    since = "0.2.0"
    see = ("torch.cuda.graph", "torch.compile")
    needs = frozenset({Need.GPU, Need.STEPS})
    priced = False
    advice = "capture graphs for all batch sizes before the first request"

    seen = Seen(
        of="tests/data/serving/graph_32_for_20.capture.json.gz",
        text="""
        SRV006 capture-while-serving
          host 3.06 ms/step as recorded, but a fix saves nothing: it is not on the
            critical path
          a CUDA graph is captured in 1 of 3 iterations
          takes  10.6 ms such an iteration, as recorded; a decode 12.1 ms
          fix    capture graphs for all batch sizes before the first request
        """,
    )

    examples = (
        Bad(_CAPTURED, finds="a CUDA graph is captured in 1 of 2 iterations"),
        Good(_REPLAYED),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Report the iterations in which the program captures graphs."""
        every = iterations(view.trace)
        if not every.height:
            return
        spans = _captures(view).join(every, on="step", how="semi")
        if not spans.height:
            return
        rows = every.join(spans, on="step", how="semi")
        others = every.join(spans, on="step", how="anti")
        usual = others.filter(pl.col("phase") == iteration_marks.DECODE)[
            "time"
        ].median()
        graphs = counted(spans.height, "CUDA graph").removeprefix("1 ")
        verb = "a CUDA graph is" if spans.height == 1 else f"{graphs} are"
        yield self.finding(
            f"{verb} captured in {rows.height} of {counted(every.height, 'iteration')}",
            subject="capture",
            count=spans.height / every.height,
            fix=Fix(spans=spans.select("start", "end")),
            evidence=[
                Evidence(
                    "takes",
                    value=float(rows["time"].max() or 0),  # type: ignore[arg-type]  # a number
                    unit="ns",
                    note="such an iteration, as recorded"
                    + (f"; a decode {time(usual)}" if isinstance(usual, float) else ""),
                ),
            ],
            data={"steps": rows["step"].to_list()},
        )


def _captures(view: View) -> pl.DataFrame:
    """Return when the program captured graphs: ``step``, ``start`` and ``end``.

    What torch.compile captures is inside of ops.
    """
    calls = view.trace.runtime.filter(
        pl.col("call") == "capture", pl.col("op").is_null()
    ).sort("ts")
    name = text("name")
    begins = calls.filter(name.str.contains(names.BEGIN_CAPTURE)).select(
        "step", start="ts"
    )
    ends = calls.filter(name.str.contains(names.END_CAPTURE)).select(end=END)
    return (
        begins.drop_nulls("step")
        .sort("start")
        .join_asof(
            ends.sort("end"), left_on="start", right_on="end", strategy="forward"
        )
        .drop_nulls("end")
    )

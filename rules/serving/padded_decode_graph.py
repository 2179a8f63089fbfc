"""SRV004: decode graphs are captured for more requests than they run for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.patterns import attention, iteration_marks, matmul
from traceq.analysis.time.roofline import roofline
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
    nth,
    option,
)

from ._shared import DECODE as DRAWN
from ._shared import steady_iterations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding

_BF16 = "c10::BFloat16"
_SECOND_NS = 1e9
# Attention gets faster by this much of the padding, where that is removed. Measured on
# an H200 (torch 2.11, 2026-11-16): 0.60 from 32 rows to 20, 0.92 from 256 to 144.
_OF_ATTENTION = 0.6


def _drawn(requests: int) -> str:
    name = DRAWN.replace("16(16)", f"{requests}({requests})")
    rows = (
        ("host", f"[{name}{' ' * 52}]"),
        ("host", f" [cudaStreamBeginCapture]{' ' * 21}[cudaStreamEndCapture]"),
        ("host", f"{' ' * 25}[aten::mm          ]"),
        ("host", f"{' ' * 26}[cudaLaunchKernel]"),
        ("host", f"{' ' * 71}[cudaGraphLaunch>2]"),
        ("gpu 7", f"{' ' * 78}[gemm<2]"),
    )
    return "\n".join(f"{lane:8}{drawn}" for lane, drawn in rows)


@dataclass(frozen=True)
class PaddedDecodeGraph(Rule):
    """Decode graphs are captured for more requests than they run for.

    ## What it does

    Compares the requests of decode iterations, as the engine's annotation states them,
    with the batch size of the CUDA graph that runs them, as the ops of its capture
    tell. It reports iterations that are padded by more than ``max-padding`` of the
    graph's batch. It needs the capture (``--capture FILE``, or a run of ``traceq
    collect``) and annotations with the requests.

    The saving is by the roofline of each op at the real batch: a matmul that only reads
    its weights takes as long for fewer rows, attention over a dense cache less.

    ## Why is this bad?

    Padded rows are computed and thrown away. For small batches that is nearly free,
    since the weights are read anyway; from some hundred rows on, or with a long dense
    cache, it is not.

    ## How to fix it

    Capture more batch sizes around those that occur: vLLM's
    ``--cuda-graph-sizes``/``cudagraph_capture_sizes``, SGLang's ``--cuda-graph-bs``.

    ```diff
    - sizes = [1, 8, 16, 32, 64, 128, 256]
    + sizes = [1, 2, 4, *range(8, 264, 8)]
    ```

    ## When it is wrong

    Each graph takes memory and time to capture. Engines give padded rows an empty
    context, so that attention costs nothing for them; attention on packed tokens is not
    counted for that reason.
    """

    code = "SRV004"
    since = "0.2.0"
    see = ("torch.cuda.graph",)
    needs = frozenset({Need.GPU, Need.STEPS, Need.SHAPES})
    advice = (
        "capture graphs for batch sizes closer to those that occur: vLLM's"
        " cudagraph_capture_sizes, SGLang's --cuda-graph-bs"
    )

    max_padding: float = option(0.25, "Padding up to this share is not reported.")

    seen = Seen(
        of="tests/data/serving/graph_32_for_20_vllm.json.gz"
        " --capture tests/data/serving/graph_32_for_20.capture.json.gz",
        text="""
        SRV004 padded-decode-graph  saves 98.0 µs/step (9%), 87.5 µs to 188 µs
          a decode graph for a batch of 32 runs for 20 requests
          padding  38% of the batch
          runs     8 iterations
          fix      capture graphs for batch sizes closer to those that occur: vLLM's
                   cudagraph_capture_sizes, SGLang's --cuda-graph-bs
        """,
    )

    examples = (
        Bad(
            _drawn(20),
            finds="a decode graph for a batch of 32 runs for 20 requests",
            args={"aten::mm": inputs([[32, 4096], [4096, 4096]], [_BF16, _BF16])},
        ),
        Good(
            _drawn(30),
            args={"aten::mm": inputs([[32, 4096], [4096, 4096]], [_BF16, _BF16])},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the padded iterations by the size of their graph."""
        decodes = steady_iterations(view, iteration_marks.DECODE)
        if not decodes.height:
            return
        padded = (
            decodes.filter(pl.col("known_by") == "annotation", pl.col("run") != "eager")
            .with_columns(padding=1 - pl.col("requests") / pl.col("graph_batch"))
            .filter(pl.col("padding") > self.max_padding)
        )
        for (size,), rows in padded.group_by("graph_batch", maintain_order=True):
            yield self._finding(view, int(str(size)), rows)

    def _finding(self, view: View, size: int, rows: pl.DataFrame) -> Finding:
        least, most = int(rows["requests"].min() or 0), int(rows["requests"].max() or 0)  # type: ignore[arg-type]  # integers
        real = str(least) if least == most else f"{least} to {most}"
        requests = counted(most, "request").partition(" ")[2]
        return self.finding(
            f"a decode graph for a batch of {size} runs for {real} {requests}",
            subject=f"graph for {size}",
            count=rows.height / view.steps,
            fix=_fixes(view, rows),
            evidence=[
                Evidence(
                    "padding",
                    value=float(rows["padding"].mean() or 0),  # type: ignore[arg-type]  # a number
                    unit="share",
                    note="of the batch",
                ),
                Evidence("runs", value=rows.height, note="iterations"),
            ],
            data={"batch": size, "requests": [least, most]},
        )


def _fixes(view: View, rows: pl.DataFrame) -> list[Fix]:
    """Return by which share each op's kernels get shorter with the real batch."""
    peak = view.gpu.peak
    if peak is None:
        return []
    ops = view.with_inputs(roofline(view.trace).ops)
    step = view.trace.ops["step"].gather(ops["op"])
    joined = ops.with_columns(step=step).join(
        rows.select("step", "padding", "requests", "graph_batch"), on="step"
    )
    attends = pl.col("name").is_in(list(attention.FUSED_ARGUMENTS)) & (
        nth("dims", 0).list.get(0, null_on_oob=True) == pl.col("graph_batch")
    )
    rate = pl.col("dtype").replace_strict(
        peak.flops, default=None, return_dtype=pl.Float64
    )
    left, right = nth("dims", 0), nth("dims", 1)
    fewer = (pl.col("graph_batch") - pl.col("requests")) * (
        left.list.last() + right.list.last()
    )
    memory = (pl.col("bytes") - 2.0 * fewer) / peak.bandwidth
    compute = pl.col("flops") * (1 - pl.col("padding")) / rate
    then = pl.max_horizontal(memory, compute.fill_null(0.0)) * _SECOND_NS
    multiplies = pl.col("name").is_in(list(matmul.MATMULS))
    share = (
        pl.when(pl.col("bound") == "latency")
        .then(0.0)
        .when(attends)
        .then(_OF_ATTENTION * pl.col("padding"))
        .when(multiplies)
        .then(1 - then / pl.col("least"))
        .otherwise(0.0)
        .clip(0.0, 1.0)
        .round(2)
    )
    shares = joined.with_columns(share=share).filter(pl.col("share") > 0)
    return [
        Fix(kernels=part["kernels"].explode().to_list(), kernel_share=float(str(share)))
        for (share,), part in shares.group_by("share", maintain_order=True)
    ]

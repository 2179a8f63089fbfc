"""KRN007: a norm or softmax has a block of threads for each row, and few rows."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import assumptions
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
    dtype_name,
    fill_false,
    inputs,
    nth,
    often,
    option,
    shape,
    text,
)

from ._shared import evidence, groups, judged, saved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

_BATCH_NORM = r"^aten::(cudnn|native)_batch_norm(_backward)?$"
_LAYER_NORM = r"^aten::native_layer_norm(_backward)?$"
_SOFTMAX = r"^aten::_(log_)?softmax(_backward_data)?$"
# A softmax along another dimension than the last.
_OUTER = "SpatialSoftMax"
# With more rows than this, two stages gain nothing that is sure.
_FEW_ROWS = 8
_IMAGES = 4
_DRAWN = """
    host   [ProfilerStep#1                                                            ]
    host    [model.py(9): forward                                                    ]
    host     [aten::_softmax        ]
    host      [cudaLaunchKernel>1]
    gpu 7                  [cunn_SpatialSoftMaxForward<1                           ]
"""


@dataclass(frozen=True)
class WorkOnFewBlocks(Rule):
    """A norm or softmax launches too few blocks to fill the SMs.

    ## What it does

    Finds norms and softmaxes that reach less than ``max-efficiency`` of the memory's
    bandwidth, take at least ``min-share`` of a step, and whose shape leaves most of the
    GPU idle: batch norms in NCHW with fewer channels than the GPU has multiprocessors;
    softmaxes along another dimension than the last; layer norms and softmaxes of at
    most 8 rows.

    ## Why is this bad?

    These kernels give each channel, column or row to one block of threads. With three
    channels, three of 132 multiprocessors work.

    ## How to fix it

    Batch norms: channels_last, whose kernels share the work. Softmax: bring the
    dimension to the end. Few long rows: in two stages, over parts of a row and then
    over the parts.

    ```diff
    - weights = scores.softmax(0)
    + weights = scores.t().contiguous().softmax(-1).t()
    - images = images.cuda()
    + images = images.cuda().to(memory_format=torch.channels_last)
    ```

    ## When it is wrong

    Two stages are more ops, for the host too: with a busy host they gain nothing. Sums
    have another order: compare the results once, in 16-bit dtypes keep statistics in
    float32. Batch norms that LAY001 or another finding names are left out.
    """

    code = "KRN007"
    several_fixes = True
    since = "0.2.0"
    see = ("torch.memory_format",)
    residual = True
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.VALUES})

    min_share: float = option(0.03, "Less of a step is not reported.")
    max_efficiency: float = option(
        0.1, "What reaches more of the GPU's bandwidth is not reported."
    )

    seen = Seen(
        of="tests/data/kernels/few_channels.trace.json.gz",
        text="""
        KRN007 work-on-few-blocks  saves 6.69 ms/step (58%), 6.29 ms to 7.53 ms
          a batch norm in NCHW with 3 channels runs on few blocks, once a step
          in      <lambda> (kernels.py:558) of Program_0
          gpu     7.53 ms a step
          peak    83.9 µs at the GPU's peaks
          input   float32 [64,3,256,256]
          kernel  cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>
                  ×1
          module  Program_0
          fix     use channels_last for the input, better for the whole model:
                  .to(memory_format=torch.channels_last)
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds="a softmax along dimension 0 of [4096,8], not the last one, runs on"
            " few blocks, once a step",
            args={
                "aten::_softmax": inputs(
                    [[4096, 8], [], []],
                    ["float", "Scalar", "Scalar"],
                    values=["", "0", "False"],
                )
            },
        ),
        Good(
            _DRAWN.replace("Spatial", ""),
            args={
                "aten::_softmax": inputs(
                    [[4096, 8], [], []],
                    ["float", "Scalar", "Scalar"],
                    values=["", "1", "False"],
                )
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group them by place, kind and shape, with their gradients."""
        gpu = view.gpu
        ops = judged(view, f"{_BATCH_NORM}|{_LAYER_NORM}|{_SOFTMAX}", self.min_share)
        if not ops.height:
            return
        dims, strides = nth("dims", 0), nth("strides", 0)
        channels = dims.list.get(1, null_on_oob=True)
        images = (dims.list.len() == _IMAGES) & (channels < (gpu.sms or 0))
        last = strides.list.get(1, null_on_oob=True) == 1
        rows = dims.list.eval(pl.element().product()).list.first() / dims.list.last()
        one = pl.col("name").str
        ops = ops.with_columns(
            what=pl.when(
                fill_false(
                    one.contains(_BATCH_NORM) & images & ~last.fill_null(value=False)
                )
            )
            .then(pl.lit("batch norm"))
            .when(text("kernel").str.contains(_OUTER))
            .then(pl.lit("softmax"))
            .when(
                fill_false(
                    one.contains(f"{_LAYER_NORM}|{_SOFTMAX}") & (rows <= _FEW_ROWS)
                )
            )
            .then(pl.lit("rows"))
        ).filter(
            pl.col("what").is_not_null(),
            ~pl.col("kernels")
            .list.eval(pl.element().is_in(list(view.named)))
            .list.any(),
        )
        sizes = dims.cast(pl.List(pl.String)).list.join(",")
        ops = ops.with_columns(size=sizes)
        for row in groups(view, ops, self.min_share, ("what", "size")):
            if row["least_ns"] < self.max_efficiency * row["gpu_ns"]:
                yield self._finding(view, row)

    def _finding(self, view: View, row: Row) -> Finding:
        calls, dims = row["calls"] / view.steps, row["dims"][0]
        message, advice = _words(row)
        share = (
            saved(row, assumptions.FEW_CHANNELS_EFFICIENCY, 2)
            if row["what"] == "batch norm"
            else saved(row, assumptions.STAGED_EFFICIENCY, assumptions.STAGED_KERNELS)
        )
        kind = dtype_name(row["types"][0])
        return self.finding(
            f"{message}, {often(calls)}",
            subject=row["what"],
            place=view.place(row),
            count=calls,
            fix=Fix(kernels=row["kernels"], kernel_share=share),
            evidence=evidence(view, row, Evidence("input", f"{kind} {shape(dims)}")),
            data={"op": row["name"], "dims": dims, "dtype": kind},
            advice=advice,
        )


def _words(row: Row) -> tuple[str, str]:
    """Return what is seen, and what to do about it."""
    dims, name = row["dims"][0], row["name"]
    back = "the gradient of " if "backward" in name else ""
    if row["what"] == "batch norm":
        return (
            f"{back}a batch norm in NCHW with {counted(dims[1], 'channel')} runs on few"
            " blocks",
            "use channels_last for the input, better for the whole model:"
            " .to(memory_format=torch.channels_last)",
        )
    if row["what"] == "softmax":
        at = 2 if back else 1
        dimension = (row["values"] or [])[at : at + 1]
        along = (
            int(dimension[0]) % len(dims)
            if dimension and dimension[0].lstrip("-")
            else 0
        )
        return (
            f"{back}a softmax along dimension {along} of {shape(dims)}, not the last"
            " one, runs on few blocks",
            f"bring it to the end: x.transpose({along}, -1).contiguous().softmax(-1)"
            f".transpose({along}, -1)",
        )
    what = "softmax" if "softmax" in name else "layer norm"
    rows = prod(dims[:-1])
    return (
        f"{back}a {what} of {counted(rows, 'row')} with {dims[-1]:,} values runs on few"
        " blocks",
        "compute the statistics in two stages, over parts of a row and then over the"
        " parts, in float32; compare the results once",
    )

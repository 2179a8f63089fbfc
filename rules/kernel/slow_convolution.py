"""KRN005: a convolution runs on kernels that are slow for its shape."""

from __future__ import annotations

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
    option,
    shape,
    text,
)

from ._convolutions import SEARCH, images, may_search, transformed
from ._shared import evidence, groups, judged, saved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

# torch's own kernels, which it takes where cuDNN has none for images in NCHW, and
# cuDNN's.
_KERNEL = "conv_depthwise2d_"
_OF_CUDNN = "c1_k1_nchw|wgrad2d_shmem|2d_grouped_direct"
# In float32, larger windows are slower in channels_last.
_FLOAT32_WINDOW = 5
# Smaller patches were not measured.
_PATCH = 8
_CHANNELS_LAST = (
    "channels_last for the model and its input: .to(memory_format=torch.channels_last)"
)
_DRAWN = """
    host   [ProfilerStep#1                                                            ]
    host    [model.py(9): forward                                                    ]
    host     [aten::convolution     ]
    host      [cudaLaunchKernel>1]
    gpu 7                  [conv_depthwise2d_forward_kernel<1                      ]
"""
_VALUES = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "64"]
_TYPES = ["c10::BFloat16", "c10::BFloat16", ""] + [""] * 6


@dataclass(frozen=True)
class SlowConvolution(Rule):
    """A convolution runs on kernels that are slow for its shape.

    ## What it does

    Finds convolutions that reach less than ``max-efficiency`` of what the GPU can do
    and take at least ``min-share`` of a step, with their gradients:

    - depthwise ones of images in NCHW on torch's own kernels (``conv_depthwise2d_…``),
      in 16-bit dtypes, and in float32 up to 5 by 5;
    - those of 3 by 3 and 5 by 5 on cuDNN's kernels for NCHW (``…_c1_k1_nchw…``);
    - those that cuDNN does by Fourier transforms (``fft2d_…``), where its search for
      the fastest algorithm is off and sizes stay the same;
    - those that cut an image into patches, whose stride is as large as their window, in
      16-bit dtypes.

    ## Why is this bad?

    torch's kernels for depthwise convolutions are simple: a thread computes a value,
    and reads all that it needs from memory. cuDNN has faster ones for channels_last. A
    convolution over patches is a matmul, and has the kernels of neither.

    ## How to fix it

    Depthwise: ``channels_last`` for the model and its input, as LAY001 says. Fourier
    transforms: ``torch.backends.cudnn.benchmark = True``, with which cuDNN measures its
    algorithms; ``traceq try`` tells what that gains. Patches: a matmul on the patches.

    ```diff
    - x = self.patch(images).flatten(2).transpose(1, 2)
    + patches = F.unfold(images, 16, stride=16).transpose(1, 2)
    + x = F.linear(patches, self.patch.weight.flatten(1), self.patch.bias)
    ```

    ## When it is wrong

    Layers that do not keep channels_last bring transposes back. In channels_last a
    depthwise convolution in float32 of 7 by 7 took 2.8 times as long. The savings of
    cuDNN's own kernels assume what others of these sizes reached. Depthwise
    convolutions of sequences (``conv1d``) are not reported: nothing in torch was faster
    for up to 31 places.
    """

    code = "KRN005"
    several_fixes = True
    since = "0.2.0"
    see = ("torch.memory_format", "torch.nn.functional.unfold")
    needs = frozenset({Need.GPU, Need.OPS, Need.SHAPES, Need.VALUES})

    min_share: float = option(0.03, "Less of a step is not reported.")
    max_efficiency: float = option(
        0.2, "What reaches more of the GPU's peaks is not reported."
    )

    seen = Seen(
        of="tests/data/kernels/depthwise.trace.json.gz",
        text="""
        KRN005 slow-convolution  saves 357 µs/step (8%), 317 µs to 554 µs
          1 depthwise NCHW convolution a step runs on slow kernels
          in      run (kernels.py:645) of Program_0
          gpu     549 µs a step
          peak    15.1 µs at the GPU's peaks
          shapes  bfloat16 [64,480,14,14], weight [480,1,5,5]
          kernel  conv_depthwise2d_grad_weight_kernel<BFloat16, unsigned int> ×1
          module  Program_0
          fix     use channels_last for the model and its input:
                  .to(memory_format=torch.channels_last)
        """,
    )

    examples = (
        Bad(
            _DRAWN,
            finds="1 depthwise NCHW convolution a step runs on slow kernels",
            args={
                "aten::convolution": inputs(
                    [[8, 64, 28, 28], [64, 1, 3, 3], *[[]] * 7], _TYPES, values=_VALUES
                )
            },
        ),
        Good(
            _DRAWN,
            args={
                "aten::convolution": inputs(
                    [[8, 64, 28, 28], [64, 1, 7, 7], *[[]] * 7],
                    ["float", "float", "", *[""] * 6],
                    values=_VALUES,
                )
            },
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group them by place, forward and backward together."""
        if view.gpu.amd:
            return
        ops = judged(view, r"^aten::convolution", self.min_share)
        if not ops.height:
            return
        ops = images(ops)
        window = pl.col("window")
        kernel, narrow = text("kernel"), window <= _FLOAT32_WINDOW
        depthwise = kernel.str.contains(_KERNEL) & (pl.col("half") | narrow)
        of_cudnn = (
            kernel.str.contains(_OF_CUDNN)
            & (pl.col("weight").list.get(1, null_on_oob=True) == 1)
            & window.is_in([*assumptions.DEPTHWISE_EFFICIENCY])
        )
        sizes = pl.col("weight").list.slice(2).cast(pl.List(pl.String)).list.join(", ")
        patches = (
            (pl.col("stride") == "[" + sizes + "]")
            & (window >= _PATCH)
            & pl.col("half")
        )
        kinds = (
            (depthwise, self._depthwise),
            (of_cudnn, self._of_cudnn),
            (transformed(view), self._transformed),
            (patches, self._patches),
        )
        for chosen, finding in kinds:
            alike = ("half", "window") if chosen is of_cudnn else ("half",)
            convolutions = ops.filter(fill_false(chosen))
            for row in groups(view, convolutions, self.min_share, alike):
                if row["least_ns"] < self.max_efficiency * row["gpu_ns"]:
                    yield finding(view, row)

    def _of_cudnn(self, view: View, row: Row) -> Finding:
        reached = (
            assumptions.DEPTHWISE_EFFICIENCY
            if row["half"]
            else assumptions.FLOAT32_DEPTHWISE_EFFICIENCY
        )
        share = saved(row, reached[row["window"]])
        advice = f"try {_CHANNELS_LAST}"
        if may_search(view):
            advice += f", or {SEARCH}; measure both"
        return self._finding(view, row, "depthwise NCHW", share, advice)

    def _transformed(self, view: View, row: Row) -> Finding:
        share = saved(row, assumptions.WITHOUT_TRANSFORMS_EFFICIENCY)
        advice = f"set {SEARCH}: cuDNN then measures its algorithms in the first step"
        return self._finding(view, row, "FFT", share, advice)

    def _depthwise(self, view: View, row: Row) -> Finding:
        share = (
            assumptions.DEPTHWISE_SAVED
            if row["half"]
            else assumptions.FLOAT32_DEPTHWISE_SAVED
        )
        advice = f"use {_CHANNELS_LAST}"
        return self._finding(view, row, "depthwise NCHW", share, advice)

    def _patches(self, view: View, row: Row) -> Finding:
        return self._finding(
            view,
            row,
            "patch",
            assumptions.PATCHES_SAVED,
            "cut the image by F.unfold(x, size, stride=size).transpose(1, 2), and"
            " multiply: F.linear(patches, weight.flatten(1), bias)",
        )

    def _finding(
        self, view: View, row: Row, what: str, share: float, advice: str
    ) -> Finding:
        calls = row["calls"] / view.steps
        kind = dtype_name(row["types"][0])
        image, weight = row["dims"][row["name"].endswith("_backward") :][:2]
        return self.finding(
            f"{counted(calls, f'{what} convolution')} a step"
            f" {'runs' if calls == 1 else 'run'} on slow kernels",
            subject=what,
            place=view.place(row),
            count=calls,
            fix=Fix(kernels=row["kernels"], kernel_share=share),
            evidence=evidence(
                view,
                row,
                Evidence(
                    "shapes",
                    f"{kind} {shape(image)}, weight {shape(weight)}",
                ),
            ),
            data={"kind": what, "dtype": kind},
            advice=advice,
        )

"""LAY001: convolutions transpose their inputs from NCHW to NHWC and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base.device import Gpu, used_gpu
from traceq.analysis.base.ownership import same_place
from traceq.lint import Bad, Good, Need, Rule, View, inputs, option
from traceq.lint.evidence import kernel_lines, module_line
from traceq.words import counted, shape, time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.lint import Finding

# From this compute capability on, float32 convolutions use tensor cores as well.
_TF32 = (8, 0)
_ADVICE = (
    "model = model.to(memory_format=torch.channels_last) once, and the images"
    " with images.to(device, memory_format=torch.channels_last)"
)
_ON_AMD = "; older torch for ROCm also needs PYTORCH_MIOPEN_SUGGEST_NHWC=1"
_NCHW = inputs(
    [[8, 64, 56, 56], [64, 64, 3, 3]],
    ["c10::Half", "c10::Half"],
    [[200704, 3136, 56, 1], [576, 9, 3, 1]],
)
_NHWC = inputs(
    [[8, 64, 56, 56], [64, 64, 3, 3]],
    ["c10::Half", "c10::Half"],
    [[200704, 1, 3584, 64], [576, 1, 192, 64]],
)


@dataclass(frozen=True)
class ConvolutionTransposes(Rule):
    """Convolutions transpose their inputs from NCHW to NHWC and back.

    ## What it does

    Adds up the transposes that cuDNN (``nchwToNhwcKernel``, ``nhwcToNchwKernel``) or
    MIOpen (``batched_transpose``) run around convolutions of images in NCHW order,
    where the convolutions use tensor cores. Images that are in channels_last already
    are left out.

    ## Why is this bad?

    Tensor cores want the channels last. Each convolution turns its input, its
    weight and its result around, forward and backward.

    ## How to fix it

    ``model.to(memory_format=torch.channels_last)`` once, and the same for the input.
    All layers between then keep that order.

    ## When it is wrong

    Layers that do not keep the order, such as a ``view`` or an op of your own, bring
    the transposes back at that place. Few channels gain little.
    """

    code = "LAY001"
    needs = frozenset({Need.GPU, Need.OPS})

    min_share: float = option(
        0.01, "Share of the GPU's time from which transposes matter."
    )

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                                      ]
            host   [aten::cudnn_convolution                           ]
            host    [cudaLaunchKernel>1] [cudaLaunchKernel>2]
            gpu 7              [nchwToNhwcKernel<1 ][sm80_xmma_fprop<2]
            """,
            finds=("1 kernel a step transposes NCHW for a convolution",),
            args={"aten::cudnn_convolution": _NCHW},
        ),
        Good(
            """
            host  [ProfilerStep#1                                      ]
            host   [aten::cudnn_convolution                           ]
            host    [cudaLaunchKernel>1] [cudaLaunchKernel>2]
            gpu 7              [nchwToNhwcKernel<1 ][sm80_xmma_fprop<2]
            """,
            args={"aten::cudnn_convolution": _NHWC},
        ),
    )

    def check(self, view: View) -> Iterator[Finding]:
        """Group the transposes by place, all layers of a model together."""
        gpu = used_gpu(view.trace)
        strides = pl.col("dst_strides").list.get(1, null_on_oob=True)
        channels = pl.col("dims").list.get(1, null_on_oob=True)
        last = (strides == 1) & (channels > 1)
        turned = view.copies.filter(
            pl.col("part") == "conv layout",
            pl.col("caller").str.contains("conv"),
            _on_tensor_cores(gpu),
            ~last.fill_null(value=False),
        )
        busy = int(view.kernels["dur"].sum())
        groups = (
            turned.sort("dur", "id", descending=[True, False])
            .group_by(*same_place(), maintain_order=True)
            .agg(
                "id",
                "op",
                pl.col("dims").drop_nulls().first(),
                pl.col("module").cast(pl.String).unique(maintain_order=True),
                time=pl.col("dur").sum(),
            )
            .filter(pl.col("time") >= self.min_share * busy)
        )
        for row in groups.iter_rows(named=True):
            count = len(row["id"]) / view.steps
            ends = ("s", "a convolution") if count == 1 else ("", "convolutions")
            convolutions = len(set(row["op"])) / view.steps
            yield self.finding(
                f"{counted(count, 'kernel')} a step transpose{ends[0]} NCHW for"
                f" {ends[1]}",
                subject="NCHW",
                place=view.place_of_group(row),
                count=count,
                gpu_ns=row["time"] / view.steps,
                evidence=[
                    ("time", f"{time(row['time'] / view.steps)} a step"),
                    (
                        "ops",
                        f"{counted(convolutions, 'op')} a step, forward and backward",
                    ),
                    ("shapes", f"as {shape(row['dims'])}" if row["dims"] else ""),
                    *kernel_lines(view, row["id"]),
                    *module_line(row["module"]),
                ],
                data={"kernels": round(count), "convolutions": round(convolutions)},
                advice=_ADVICE + (_ON_AMD if gpu.amd else ""),
                ops=row["op"],
                kernels=row["id"],
            )


def _on_tensor_cores(gpu: Gpu) -> pl.Expr:
    """Return of which kernels the convolution may use tensor cores."""
    if gpu.amd or gpu.capability >= _TF32:
        return pl.lit(value=True)
    return pl.col("dtype").cast(pl.String).is_in(["fp16", "bf16"])

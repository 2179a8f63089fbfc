"""LAY001: convolutions transpose their inputs from NCHW to NHWC and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceq.analysis.base import ownership
from traceq.linter import (
    Bad,
    Evidence,
    Fix,
    Good,
    Gpu,
    Need,
    Rule,
    Seen,
    View,
    counted,
    dataclass,
    fill_false,
    inputs,
    kernel_lines,
    module_line,
    option,
    shape,
    text,
)

from ._batch_norms import nchw_batch_norms
from ._convolutions import (
    faster,
    group,
    model_of,
    norm_lines,
    of_one_dimension,
    of_volumes,
    on_tensor_cores,
    one_switch,
)
from ._layers import advice_for, in_nchw, of_instance_norms
from ._weight_norms import advice_with, with_images

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceq.linter import Finding, Row

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
    MIOpen (``batched_transpose``) runs around convolutions of NCHW images that use
    tensor cores. Images that are channels_last already are left out, and convolutions
    of one dimension, which have no such format, or next to a layer whose kernels take
    NCHW only (instance norm, group norm, reflection and replication padding): there the
    tensors would be copied back. Batch norms on kernels for NCHW, of torch or cuDNN,
    count with what those for channels_last take less.

    ## Why is this bad?

    Tensor cores need the channels last. Each convolution transposes its input, its
    weight and its result, in the forward and in the backward. In 16-bit dtypes batch
    norms are slower too: in NCHW their kernels reach 7 to 27% of the bandwidth, in
    channels_last 12 to 48%.

    ## How to fix it

    ``model.to(memory_format=torch.channels_last)`` once, and the same for the input.
    The layers in between keep that order.

    ```diff
    - model = model.cuda()
    - images = images.cuda()
    + model = model.cuda().to(memory_format=torch.channels_last)
    + images = images.cuda().to(memory_format=torch.channels_last)
    ```

    ## When it is wrong

    Layers that do not keep the order, such as a custom op, bring the transposes back
    at that place, and a ``view`` that flattens images fails: write ``flatten(1)``.
    Weights of ``weight_norm`` are computed in NCHW and transposed all the same. With
    few channels there is little to gain. What batch norms save is a roofline with the
    efficiency that was measured on an H200: on another GPU trust the transposes.
    Convolutions themselves are taken to be as fast as before, and so is pooling, which
    gained 0.2 ms below.
    """

    code = "LAY001"
    effort = "edit"
    since = "0.1.0"
    see = ("torch.memory_format",)
    needs = frozenset({Need.GPU, Need.OPS})

    min_share: float = option(
        0.01, "Report only if transposes take at least this share of the GPU's time."
    )

    seen = Seen(
        of="benchmarks/models/loader_alone.trace.json.gz",
        text="""
        LAY001 convolution-transposes
          GPU 2.68 ms/step, but a fix saves nothing: it is not on the critical path
          157 kernels a step transpose NCHW tensors for convolutions, and 20 batch
            norms in NCHW
          in       loss (programs.py:557) via forward
                   (torchvision/models/resnet.py:89)
          time     1.27 ms of transposes a step
          norms    2.05 ms of batch norms a step
          then     643 µs of them in channels_last, estimated
          ops      39 a step, forward and backward
          shapes   [32,64,112,112]
          kernel   cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float,
                   false, true, (cudnnKernelDataType_t)0> ×83
          kernel   cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float,
                   false, true, (cudnnKernelDataType_t)2> ×26
          kernel   cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float,
                   true, false, (cudnnKernelDataType_t)0> ×48
          modules  ResNet_0/Conv2d_0 and 19 more
          fix      call model = model.to(memory_format=torch.channels_last) once,
                   and images.to(device, memory_format=torch.channels_last) for the
                   images
        """,
    )

    examples = (
        Bad(
            """
            host  [ProfilerStep#1                                      ]
            host   [aten::cudnn_convolution                           ]
            host    [cudaLaunchKernel>1] [cudaLaunchKernel>2]
            gpu 7              [nchwToNhwcKernel<1 ][sm80_xmma_fprop<2]
            """,
            finds=("1 kernel a step transposes NCHW tensors for convolutions",),
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
        """Group the transposes by model: one call of channels_last is the fix."""
        if not (view.copies["part"] == "conv layout").any():
            return
        gpu = view.gpu
        strides = pl.col("dst_strides").list.get(1, null_on_oob=True)
        channels = pl.col("dims").list.get(1, null_on_oob=True)
        turned = view.copies.filter(
            pl.col("part") == "conv layout",
            pl.col("caller").str.contains("conv"),
            on_tensor_cores(gpu),
            ~fill_false((strides == 1) & (channels > 1)),
            ~of_one_dimension(),
        )
        turned = turned.filter(~in_nchw(view)[turned["op"]])
        if not turned.height:
            return
        busy = int(view.kernels["dur"].sum())
        groups = (
            with_images(view, turned)
            .with_columns(ownership.WHATEVER_LIBRARY)
            .with_columns(model=model_of("module"), volumes=of_volumes())
            .sort("dur", "id", descending=[True, False])
            .group_by(*one_switch(), maintain_order=True)
            .agg(
                "id",
                "op",
                pl.col("file", "line", "function", "via", "model", "volumes").first(),
                pl.col("dims").drop_nulls().first(),
                text("module").unique(maintain_order=True),
                pl.col("normed").sum(),
                time=pl.col("dur").sum(),
                goes=(pl.col("dur") * pl.col("images")).sum(),
            )
            .filter(pl.col("time") > 0, pl.col("time") >= self.min_share * busy)
        )
        if not groups.height:
            return
        norms = nchw_batch_norms(view.trace, view.kernels, gpu)
        norms = norms.filter(~of_instance_norms(view, norms["op"]))
        norms = norms.with_columns(group(groups, norms)).filter(not gpu.amd)
        for row in groups.with_row_index("group").iter_rows(named=True):
            norms_of_group = norms.filter(pl.col("group") == row["group"])
            yield self._finding(view, row, gpu, norms_of_group)

    def _finding(self, view: View, row: Row, gpu: Gpu, norms: pl.DataFrame) -> Finding:
        count = len(row["id"]) / view.steps
        convolutions = len(set(row["op"])) / view.steps
        time = row["time"] / view.steps
        forward = norms.filter(~pl.col("back"))["op"].n_unique() / view.steps
        ops = pl.Series(row["op"], dtype=pl.UInt32)
        advice, fits = advice_for(view, ops, volumes=row["volumes"])
        return self.finding(
            f"{counted(count, 'kernel')} a step"
            f" {'transposes' if count == 1 else 'transpose'} NCHW tensors for"
            " convolutions"
            + (f", and {counted(forward, 'batch norm')} in NCHW" if forward else ""),
            subject="NCHW",
            place=view.place_of_group(row),
            count=count,
            fix=[
                Fix(kernels=row["id"], kernel_share=row["goes"] / row["time"]),
                *faster(norms),
            ],
            evidence=[
                Evidence("time", value=time, unit="ns", note="of transposes a step"),
                *norm_lines(norms, view.steps),
                Evidence(
                    "ops", value=convolutions, note="a step, forward and backward"
                ),
                *([Evidence("shapes", shape(row["dims"]))] if row["dims"] else []),
                *kernel_lines(view, row["id"]),
                *module_line(row["module"]),
            ],
            data={"kernels": round(count), "convolutions": round(convolutions)},
            advice=advice_with(row, advice) + (_ON_AMD if gpu.amd else ""),
            example=None if fits and not row["normed"] else "",
            ops=row["op"],
        )

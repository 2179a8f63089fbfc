"""LAY: transposes around convolutions, on real traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from linting import (
    case_findings,
    findings_of,
    mentions,
    outcome,
)

from traceq.linter import inputs
from traceq.model.recording import Recording
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from traceq.linter import Finding

IMAGES = [8, 64, 56, 56]
STRIDES = [64 * 56 * 56, 56 * 56, 56, 1]
H200 = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0}
MI300 = {"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4}
DRAWN = """
    host  [ProfilerStep#1                                                              ]
    host   [aten::cudnn_convolution ] [aten::native_batch_norm                        ]
    host    [cuLaunch>1][cuLaunch>2]   [cuLaunch>3]
    gpu 7         [nchwToNhwcKernel<1 ][fprop<2 ]
    gpu 7                                        [batch_norm_transform_input{kernel}<3]
"""


def drawn(kernel: str, device: dict[str, Any]) -> Finding:
    """Return what LAY001 says of a convolution and a batch norm on this kernel."""
    drawing = DRAWN.format(kernel=kernel)
    args = {
        "aten::cudnn_convolution": inputs([IMAGES], ["c10::BFloat16"], [STRIDES]),
        "aten::native_batch_norm": inputs([IMAGES], ["c10::BFloat16"], [STRIDES]),
    }
    recording = Recording("drawn", load_drawn(drawing, args, device))
    (finding,) = outcome(recording, "LAY001").findings
    return finding


def test_batch_norms_in_nchw_count_with_what_they_take_longer() -> None:
    finding = drawn("_kernel<a, b>", H200)

    assert mentions(finding, "1 kernel", "1 batch norm", "NCHW")
    transpose = len("[nchwToNhwcKernel<1 ]")
    norm = len("[batch_norm_transform_input_kernel<a, b><3]")
    # 3.2 MB, read and written at 42% of 4.8 TB/s; at least 5 µs.
    assert finding.kernel_ns == 1000 * (transpose + norm - 5)


@pytest.mark.parametrize("dims", [[8, 64, 1, 4767], [8, 64, 4767]])
def test_a_convolution_of_one_dimension_has_no_channels_last(dims: list[int]) -> None:
    args = {"aten::cudnn_convolution": inputs([dims], ["c10::BFloat16"])}
    trace = load_drawn(DRAWN.format(kernel="_kernel<a, b>"), args, H200)

    assert findings_of(Recording("drawn", trace), "LAY001") == ()


@pytest.mark.parametrize(
    ("kernel", "device"),
    [("_channels_last_kernel<a>", H200), ("_kernel<a, b>", MI300)],
    ids=["channels_last", "AMD"],
)
def test_other_batch_norms_do_not_count(kernel: str, device: dict[str, Any]) -> None:
    finding = drawn(kernel, device)

    assert finding.kernel_ns == 1000 * len("[nchwToNhwcKernel<1 ]")


@pytest.mark.parametrize(
    ("case", "count"), [("a100_nccl", 211), ("mi300_resnet_checkpoint", 235)]
)
def test_transposes_around_convolutions_are_one_finding(case: str, count: int) -> None:
    (finding,) = case_findings(f"public/{case}.json.gz", "LAY")

    assert (finding.code, finding.count) == ("LAY001", count)


def test_float32_convolutions_without_tensor_cores_have_no_finding() -> None:
    assert not case_findings("public/v100_resnet50_workers0.json.gz", "LAY")


MODEL = """
    host  [ProfilerStep#1                                                         ]
    host   [nn.Module: Net_0                                                     ]
    host    [net.py(3): first                 ][net.py(9): second                ]
    host     [nn.Module: Conv2d_0            ]  [nn.Module: {module}            ]
    host      [aten::conv2d                 ]    [aten::{op}               ]
    host       [cuLaunch>1]                       [cuLaunch>2]
    gpu 7                  [nchwToNhwcKernel<1 ]              [nchwToNhwcKernel<2 ]
"""


def of_model(op: str, module: str, dims: list[int]) -> tuple[Finding, ...]:
    """Return what LAY001 says of a model with an image's convolution and this one."""
    args = {
        "aten::conv2d": inputs([IMAGES], ["c10::BFloat16"], [STRIDES]),
        f"aten::{op}": inputs([dims], ["c10::BFloat16"]),
    }
    trace = load_drawn(MODEL.format(op=op, module=module), args, H200)
    return findings_of(Recording("drawn", trace), "LAY001")


def test_a_model_is_one_finding_as_one_call_mends_it() -> None:
    (finding,) = of_model("conv2d", "Conv2d_1", IMAGES)

    assert finding.count == 2
    assert "model = model.to(memory_format=torch.channels_last) once" in finding.advice


def test_where_images_and_volumes_are_in_a_model_each_has_its_own_format() -> None:
    """Either format for the whole model raises an error at the other's weights."""
    images, volumes = sorted(
        of_model("conv3d", "Conv3d_1", [8, 64, 9, 9, 9]),
        key=lambda finding: "channels_last_3d" in finding.advice,
    )

    assert "weights of Conv3d raise an error" in images.advice
    assert "weights of Conv2d raise an error" in volumes.advice
    assert "model.to" not in images.advice + volumes.advice


SEQUENCE = """
    host  [ProfilerStep#1                                                              ]
    host   [aten::{before}][aten::conv2d               ][aten::{after}              ]
    host                           [aten::cudnn_convolution  ]
    host                            [cuLaunch>1][cuLaunch>2]
    gpu 7                                [nchwToNhwcKernel<1 ][fprop<2 ]
"""


def between(before: str, after: str) -> tuple[Finding, ...]:
    """Return what LAY001 says of a convolution between these ops."""
    args = {"aten::cudnn_convolution": inputs([IMAGES], ["c10::BFloat16"], [STRIDES])}
    trace = load_drawn(
        SEQUENCE.format(before=before.ljust(16), after=after), args, H200
    )
    return findings_of(Recording("drawn", trace), "LAY001")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("group_norm", "batch_norm"),
        ("relu", "instance_norm"),
        ("reflection_pad2d", "relu"),
    ],
)
def test_convolutions_next_to_layers_for_nchw_only_have_no_finding(
    before: str, after: str
) -> None:
    assert between(before, after) == ()
    assert between("batch_norm", "relu")


@pytest.mark.parametrize(
    ("size", "named"),
    [("[8, -1]", True), ("[-1, 200704]", True), ("[8, 64, -1]", False)],
)
def test_a_view_that_flattens_images_fails_in_channels_last_and_is_named(
    size: str, *, named: bool
) -> None:
    drawing = """
    host  [ProfilerStep#1                                                              ]
    host   [net.py(3): forward                                                        ]
    host    [aten::conv2d               ][aten::view]
    host     [aten::cudnn_convolution  ]
    host      [cuLaunch>1][cuLaunch>2]
    gpu 7          [nchwToNhwcKernel<1 ][fprop<2 ]
    """
    args = {
        "aten::cudnn_convolution": inputs([IMAGES], ["c10::BFloat16"], [STRIDES]),
        "aten::view": inputs(
            [IMAGES, []], ["c10::BFloat16", "ScalarList"], values=["", size]
        ),
    }
    trace = load_drawn(drawing, args, H200)
    (finding,) = findings_of(Recording("drawn", trace), "LAY001")

    assert ("flatten(1)" in finding.advice and "(net.py:3)" in finding.advice) is named
    assert bool(finding.example) is not named


@pytest.mark.parametrize("dims", [[4, 5, 3, 84, 84], [20, 3, 84, 84], [16, 1, 8192]])
def test_what_has_no_4_dims_is_not_copied_in_channels_last(dims: list[int]) -> None:
    drawing = """
    host  [ProfilerStep#1                                                              ]
    host   [aten::copy_] [aten::conv2d               ]
    host    [cuCopy>3 ]   [aten::cudnn_convolution  ]
    host                   [cuLaunch>1][cuLaunch>2]
    gpu 7      [Memcpy HtoD (Pinned -> Device)<3][nchwToNhwcKernel<1 ][fprop<2 ]
    """
    args = {
        "aten::cudnn_convolution": inputs([IMAGES], ["c10::BFloat16"], [STRIDES]),
        "aten::copy_": inputs([dims, dims], ["float", "float"]),
    }
    trace = load_drawn(drawing, args, H200)
    (finding,) = findings_of(Recording("drawn", trace), "LAY001")

    assert ("images.to(device" in finding.advice) is (len(dims) == len(IMAGES))
    assert (".contiguous(memory_format" in finding.advice) is (len(dims) != len(IMAGES))
    assert bool(finding.example) is (len(dims) == len(IMAGES))


@pytest.mark.parametrize(
    ("module", "named"), [("Learner_0", True), ("Conv2d_0", False)]
)
def test_weights_of_functional_convolutions_are_converted_by_themselves(
    module: str, *, named: bool
) -> None:
    drawing = f"""
    host  [ProfilerStep#1                                                              ]
    host   [nn.Module: {module}                                                       ]
    host   [net.py(3): forward                                                        ]
    host    [aten::conv2d               ]
    host     [aten::cudnn_convolution  ]
    host      [cuLaunch>1][cuLaunch>2]
    gpu 7          [nchwToNhwcKernel<1 ][fprop<2 ]
    """
    args = {"aten::cudnn_convolution": inputs([IMAGES], ["c10::BFloat16"], [STRIDES])}
    trace = load_drawn(drawing, args, H200)
    (finding,) = findings_of(Recording("drawn", trace), "LAY001")

    assert ("that forward (net.py:3) passes to F.conv2d" in finding.advice) is named


@pytest.mark.parametrize("normed", [True, False])
def test_weights_of_weight_norm_stay_and_the_images_are_converted(
    *, normed: bool
) -> None:
    norm = "aten::_weight_norm_interface" if normed else "aten::linalg_vector_norm"
    drawing = f"""
    host  [ProfilerStep#1                                                              ]
    host   [net.py(3): forward                                                        ]
    host    [{norm:<28}][aten::conv2d                 ]
    host                                   [aten::cudnn_convolution  ]
    host                                    [cuLaunch>1][cuLaunch>2]
    gpu 7                                        [nchwToNhwcKernel<1 ][fprop<2 ]
    """
    # As many elements as the image and the result together.
    weight = [2 * 8 * 56 * 56, 64, 1, 1]
    args = {
        norm: inputs([weight, [1]], ["float"] * 2),
        "aten::cudnn_convolution": inputs(
            [IMAGES, weight], ["float"] * 2, [STRIDES, [64, 1, 1, 1]]
        ),
    }
    trace = load_drawn(drawing, args, H200)
    (finding,) = findings_of(Recording("drawn", trace), "LAY001")

    assert ("weight_norm computes the weights" in finding.advice) is normed
    assert ("model = model.to(" in finding.advice) is not normed
    assert bool(finding.example) is not normed
    assert [fix.kernel_share for fix in finding.fixes] == [1 / (1 + normed)]

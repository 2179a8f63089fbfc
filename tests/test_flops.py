"""Floating-point operations, against numbers computed by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from traceq.analysis.time.flops import op_flops
from traceq.testing import load_drawn

SDPA = "aten::_scaled_dot_product_flash_attention"
EFFICIENT = "aten::_scaled_dot_product_efficient_attention"
HEADS = [2, 4, 128, 64]
LONGER = [2, 4, 256, 64]
# 2 · batch · heads · queries · keys · (width of keys + width of values)
ATTENTION = 2 * 2 * 4 * 128 * 128 * (64 + 64)


def counted(
    name: str, dims: list[Any], values: list[str] | None = None
) -> float | None:
    args: dict[str, Any] = {
        "Input Dims": dims,
        "Input type": ["float" if shape else "" for shape in dims],
    }
    if values is not None:
        args["Concrete Inputs"] = values
    table = op_flops(load_drawn(f"host   [{name}]", {name: args}))
    flops: float | None = table["flops"].item()
    return flops


@pytest.mark.parametrize(
    ("name", "dims", "flops"),
    [
        ("aten::mm", [[3, 5], [5, 7]], 2 * 3 * 5 * 7),
        ("aten::mm.out", [[3, 5], [5, 7]], 2 * 3 * 5 * 7),
        ("aten::addmm", [[7], [3, 5], [5, 7], [], []], 2 * 3 * 5 * 7),
        ("aten::bmm", [[4, 3, 5], [4, 5, 7]], 2 * 4 * 3 * 5 * 7),
        ("aten::baddbmm", [[4, 3, 7], [4, 3, 5], [4, 5, 7]], 2 * 4 * 3 * 5 * 7),
        ("aten::_scaled_mm", [[16, 32], [32, 64]], 2 * 16 * 32 * 64),
        # Each token meets one of the four experts.
        ("aten::_grouped_mm", [[100, 32], [4, 32, 64], [4]], 2 * 100 * 32 * 64),
    ],
)
def test_a_matmul_is_counted(name: str, dims: list[list[int]], flops: int) -> None:
    assert counted(name, dims) == flops


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "height", "width"),
    [
        ("[1, 1]", "[0, 0]", "[1, 1]", 30, 38),
        ("[1, 1]", "[1, 1]", "[1, 1]", 32, 40),
        ("[2, 2]", "[1, 1]", "[1, 1]", 16, 20),
        ("[1, 1]", "[0, 0]", "[2, 2]", 28, 36),
    ],
)
def test_a_convolution_is_counted_by_the_size_of_its_output(
    stride: str, padding: str, dilation: str, height: int, width: int
) -> None:
    values = ["", "", "", stride, padding, dilation, "False", "[0, 0]", "1"]

    result = counted(
        "aten::convolution", [[8, 16, 32, 40], [24, 16, 3, 3], [24]], values
    )

    assert result == 2 * 8 * 24 * height * width * 16 * 3 * 3


def test_a_convolution_in_groups_sees_a_part_of_the_channels() -> None:
    values = ["", "", "", "[1]", "[0]", "[1]", "False", "[0]", "4"]

    result = counted("aten::convolution", [[8, 16, 34], [24, 4, 3], []], values)

    assert result == 2 * 8 * 24 * 32 * 4 * 3


def test_a_transposed_convolution_is_counted_by_the_size_of_its_input() -> None:
    values = ["", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"]

    result = counted("aten::convolution", [[8, 16, 10, 10], [16, 24, 2, 2], []], values)

    assert result == 2 * 8 * 16 * 10 * 10 * 24 * 2 * 2


@pytest.mark.parametrize(
    ("mask", "convolutions"),
    [
        ("[True, True, True]", 2),
        ("[False, True, False]", 1),
        ("[True, False, True]", 1),
    ],
)
def test_the_backward_of_a_convolution_is_counted_once_for_each_gradient(
    mask: str, convolutions: int
) -> None:
    values = ["", "", "", "[24]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    dims = [[8, 24, 30, 38], [8, 16, 32, 40], [24, 16, 3, 3]] + [[]] * 8

    result = counted("aten::convolution_backward", dims, [*values, mask])

    assert result == convolutions * 2 * 8 * 24 * 30 * 38 * 16 * 3 * 3


def test_the_backward_of_a_transposed_one_is_counted_by_the_size_of_its_input() -> None:
    values = ["", "", "", "[24]", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"]
    dims = [[8, 24, 20, 20], [8, 16, 10, 10], [16, 24, 2, 2]] + [[]] * 8

    result = counted(
        "aten::convolution_backward", dims, [*values, "[True, True, False]"]
    )

    assert result == 2 * (2 * 8 * 16 * 10 * 10 * 24 * 2 * 2)


@pytest.mark.parametrize(
    ("name", "dims", "values", "flops"),
    [
        (SDPA, [HEADS] * 3, ["", "", "", "0.", "False", "False"], ATTENTION),
        (SDPA, [HEADS] * 3, ["", "", "", "0.", "True", "False"], ATTENTION / 2),
        (
            SDPA,
            [HEADS, LONGER, LONGER],
            ["", "", "", "0.", "False", "False"],
            2 * ATTENTION,
        ),
        (
            EFFICIENT,
            [HEADS] * 3,
            ["", "", "", "", "False", "0.", "True", ""],
            ATTENTION / 2,
        ),
        (
            f"{SDPA}_backward",
            [HEADS] * 4,
            [""] * 10 + ["0.", "False"],
            2.5 * ATTENTION,
        ),
        (
            f"{EFFICIENT}_backward",
            [HEADS] * 4,
            [""] * 11 + ["True"],
            2.5 * ATTENTION / 2,
        ),
    ],
)
def test_attention_is_counted_half_if_causal_and_more_in_the_backward(
    name: str, dims: list[list[int]], values: list[str], flops: float
) -> None:
    assert counted(name, dims, values) == flops


def test_only_the_op_that_calls_the_library_is_counted() -> None:
    args = {"Input Dims": [[3, 5], [7, 5]], "Input type": ["float", "float"]}
    product = {"Input Dims": [[3, 5], [5, 7]], "Input type": ["float", "float"]}

    table = op_flops(
        load_drawn(
            """
            host   [aten::linear        ]
            host     [aten::matmul    ]
            host       [aten::mm    ]
            """,
            {"aten::linear": args, "aten::matmul": args, "aten::mm": product},
        )
    )

    assert table.select("op", "flops").rows() == [(2, 210.0)]


@pytest.mark.parametrize("dims", [[], [[3, 5]], [[], []]])
def test_shapes_that_do_not_fit_the_op_are_not_counted(dims: list[Any]) -> None:
    assert counted("aten::mm", dims) is None


def test_a_convolution_without_its_strides_is_not_counted() -> None:
    assert counted("aten::convolution", [[8, 16, 32, 40], [24, 16, 3, 3], []]) is None


def test_ops_on_the_fake_tensors_of_a_compilation_are_not_counted() -> None:
    table = op_flops(
        load_drawn(
            """
            host   [entire_frame_compile ]  [aten::mm]
            host     [aten::mm        ]
            """,
            {"aten::mm": {"Input Dims": [[3, 5], [5, 7]], "Input type": ["float"] * 2}},
        )
    )

    assert table["op"].to_list() == [2]


def test_the_type_is_that_of_the_data() -> None:
    types = ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"]
    args = {"Input Dims": [[7], [3, 5], [5, 7], [], []], "Input type": types}

    table = op_flops(load_drawn("host   [aten::addmm ]", {"aten::addmm": args}))

    assert table["type"].cast(pl.String).to_list() == ["c10::BFloat16"]

"""Rooflines against numbers computed by hand, and assumptions against recordings."""

from __future__ import annotations

from math import prod

import polars as pl
import pytest
from recordings import loaded, path_of

from traceq.analysis.base.assumptions import (
    FLASH_BACKWARD_KERNELS,
    FLASH_KERNELS,
    NORM_EFFICIENCY,
    NORM_KERNELS,
    NORM_PASSES,
    SHORTEST_KERNEL_NS,
    Efficiency,
)
from traceq.analysis.base.device import Gpu, used_gpu
from traceq.analysis.base.ownership import inside, named, outermost_ops, owned
from traceq.analysis.base.roofline import roofline_ns
from traceq.analysis.patterns.attention import attention, flash_share
from traceq.analysis.patterns.matmul import matmuls, with_fastest
from traceq.linter.view import View
from traceq.testing import load_drawn

# 989 TFLOP/s in bf16, 4.8 TB/s
H200 = Gpu("NVIDIA H200", 132, (9, 0))
HALF = Efficiency(bandwidth=0.5, compute=0.5)
# How far off an efficiency may be: they are rounded, and on the cautious side.
AGREES = (0.65, 1.35)


def test_work_takes_as_long_as_computing_where_that_is_slower() -> None:
    result = roofline_ns(H200, HALF, moved=4.8e6, flops=989e9, dtype="bf16")

    assert result == pytest.approx(2e6)


def test_work_takes_as_long_as_moving_where_that_is_slower() -> None:
    result = roofline_ns(H200, HALF, moved=4.8e9, flops=989e6, dtype="bf16")

    assert result == pytest.approx(2e6)


def test_no_kernel_is_faster_than_the_shortest() -> None:
    result = roofline_ns(H200, HALF, moved=1.0, kernels=3)

    assert result == 3 * SHORTEST_KERNEL_NS


@pytest.mark.parametrize(
    ("gpu", "dtype"), [(Gpu("some GPU"), "bf16"), (H200, "fp4")], ids=["GPU", "dtype"]
)
def test_without_a_peak_there_is_no_roofline(gpu: Gpu, dtype: str) -> None:
    assert roofline_ns(gpu, HALF, moved=1.0, flops=1.0, dtype=dtype) is None


@pytest.fixture(scope="module", params=["attn_flash", "norm_fused", "vocab_padded"])
def fused(request: pytest.FixtureRequest) -> View:
    """Return the steps of a model in which everything is as fast as it should be."""
    return View(loaded(path_of(f"{request.param}.trace.json.gz")))


def test_flash_attention_is_as_fast_as_assumed(fused: View) -> None:
    (row,) = attention(fused.trace, fused.kernels).to_dicts()
    kernels = FLASH_KERNELS + FLASH_BACKWARD_KERNELS
    # Ten times as slow, so that there is something to save of it.
    slow = row | {"gpu_ns": 10 * row["gpu_ns"]}

    left = 1 - flash_share(slow, used_gpu(fused.trace), causal=row["causal"])

    assert row["backend"] == "flash"
    assert len(row["kernels"]) == kernels * row["calls"]
    assert AGREES[0] < 10 * left < AGREES[1]


def test_matmuls_are_as_fast_as_assumed(fused: View) -> None:
    calls = matmuls(fused.trace, fused.kernels, "")
    # Ten times as slow, so that there is something to save of it.
    slow = calls.with_columns(pl.col("dur") * 10)

    left = with_fastest(slow, used_gpu(fused.trace), "bf16")["fastest"].sum()

    assert AGREES[0] < left / int(calls["dur"].sum()) < AGREES[1]


def test_fused_norms_are_as_fast_as_assumed(fused: View) -> None:
    ops = fused.trace.ops
    norms = ops.filter(named(ops, ["aten::_fused_rms_norm", "aten::native_layer_norm"]))
    ran = owned(fused.trace, fused.kernels, inside(fused.trace, norms["id"]))
    # The gradients of two branches are added in the same node of the backward.
    ran = ran.filter(pl.col("kind") != "elementwise")
    calls = ran["owner"].n_unique()
    dims = norms.join(fused.trace.inputs, left_on="inputs", right_on="id")["dims"]
    (size,) = {prod(shapes[0]) for shapes in dims.to_list()}

    one = roofline_ns(
        used_gpu(fused.trace),
        NORM_EFFICIENCY,
        moved=2.0 * size * NORM_PASSES[True],
        kernels=NORM_KERNELS[True],
    )

    assert ran.height == NORM_KERNELS[True] * calls
    assert one
    assert AGREES[0] < one * calls / int(ran["dur"].sum()) < AGREES[1]


def test_the_outermost_op_of_a_name_is_around_all_others_of_that_name() -> None:
    trace = load_drawn(
        """
        host  [aten::linear                                  ] [aten::add]
        host   [aten::mm                                  ]
        host    [aten::copy_    ][aten::mm              ]
        host                      [aten::copy_        ]
        """
    )
    names = trace.ops["name"].cast(pl.String)

    column = outermost_ops(trace, ("aten::mm",))

    # As rows of the trace: linear, mm, copy_, mm, copy_, add.
    assert names.to_list()[1] == "aten::mm"
    assert column.to_list() == [None, 1, 1, 1, 1, None]
    assert outermost_ops(trace).to_list() == [0, 0, 0, 0, 0, 5]

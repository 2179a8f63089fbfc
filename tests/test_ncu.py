"""Bytes, occupancy and bounds of ops, against the counters of Nsight Compute."""

from __future__ import annotations

import runpy
from functools import cache
from typing import Any

import pytest
from conftest import ROOT

from traceq.analysis.time.roofline import roofline
from traceq.linter import inputs
from traceq.testing import load_drawn

FUSION = ROOT / "benchmarks" / "fusion"
H200 = {"id": 0, "name": "NVIDIA H200", "numSms": 132, "totalGlobalMem": 1}


@cache
def compared() -> tuple[list[Any], list[Any]]:
    """Return what ncu has counted of a step: ops and kernels of 20 µs and more."""
    script = runpy.run_path(str(FUSION / "ncu_compare.py"))
    kernels = script["counted"](FUSION / "dit_infer.ncu.csv.gz")
    both = script["compared"](FUSION / "dit_infer.eager.json.gz", kernels)
    return both.ops, both.kernels


def share(part: list[Any], whole: list[Any]) -> float:
    return float(sum(row.time for row in part) / sum(row.time for row in whole))


@pytest.mark.real
def test_bytes_are_those_that_the_memory_counts() -> None:
    ops, _ = compared()
    near = [op for op in ops if abs(op.bytes_ratio - 1) <= 0.25]

    assert share(near, ops) >= 0.85


@pytest.mark.real
def test_what_the_account_implies_is_the_limiter_of_kernels() -> None:
    _, kernels = compared()
    agree = [kernel for kernel in kernels if kernel.agrees]

    assert share(agree, kernels) >= 0.8


def bound(
    name: str,
    dims: list[list[int]],
    dtype: str,
    kernel: str,
    strides: list[list[int]] | None = None,
) -> str:
    trace = load_drawn(
        f"""
        host   [ProfilerStep#1                                                   ]
        host    [{name:<22}]
        host     [cudaLaunchKernel>1]
        gpu 7                  [{kernel + "<1":<50}]
        """,
        args={
            name: inputs(dims, [dtype] * len(dims), strides),
            kernel: {"grid": [24576, 1, 1], "block": [128, 1, 1]},
        },
        device=H200,
    )
    return str(roofline(trace).ops["bound"].item())


BROADCAST = [[16384, 768], [1, 768]]
STRIDED = "at::elementwise_kernel<128, 4, f>"
HALF = "c10::BFloat16"


def test_instructions_bound_a_strided_op_in_16_bits() -> None:
    assert bound("aten::mul", BROADCAST, HALF, STRIDED) == "compute"


def test_bytes_bound_it_in_64_bits() -> None:
    assert bound("aten::mul", BROADCAST, "double", STRIDED) == "bandwidth"


def test_bytes_bound_an_op_whose_kernel_loads_vectors() -> None:
    vectors = "at::vectorized_elementwise_kernel<8, f>"

    assert bound("aten::mul", BROADCAST, HALF, vectors) == "bandwidth"


def test_instructions_bound_a_layer_norm() -> None:
    kernel = "at::vectorized_layer_norm_kernel<f>"

    assert bound("aten::native_layer_norm", [[24576, 768]], HALF, kernel) == "compute"


def test_bytes_bound_an_op_whose_inputs_are_stored_in_two_orders() -> None:
    images, rows = [[64, 96, 28, 28]] * 2, [75264, 784, 28, 1]
    channels_last = [75264, 1, 2688, 96]

    assert bound("aten::add_", images, HALF, STRIDED, [rows] * 2) == "compute"
    mixed = bound("aten::add_", images, HALF, STRIDED, [rows, channels_last])
    assert mixed == "bandwidth"

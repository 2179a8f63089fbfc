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
def compared() -> list[Any]:
    """Return the ops of a step that ncu has counted, of 20 µs and more."""
    script = runpy.run_path(str(FUSION / "ncu_compare.py"))
    kernels = script["counted"](FUSION / "dit_infer.ncu.csv.gz")
    ops: list[Any] = script["compared"](FUSION / "dit_infer.eager.json.gz", kernels)
    return ops


def share(ops: list[Any]) -> float:
    return float(sum(one.time for one in ops) / sum(one.time for one in compared()))


@pytest.mark.real
def test_bytes_are_those_that_the_memory_counts() -> None:
    near = [one for one in compared() if abs(one.bytes_ratio - 1) <= 0.25]

    assert share(near) >= 0.85


@pytest.mark.real
def test_the_bound_of_ops_is_the_limiter_of_their_kernels() -> None:
    agree = [one for one in compared() if one.bound == one.limiter]

    assert share(agree) >= 0.8


def bound(name: str, dims: list[list[int]], dtype: str, kernel: str) -> str:
    trace = load_drawn(
        f"""
        host   [ProfilerStep#1                                                   ]
        host    [{name:<22}]
        host     [cudaLaunchKernel>1]
        gpu 7                  [{kernel + "<1":<50}]
        """,
        args={
            name: inputs(dims, [dtype] * len(dims)),
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

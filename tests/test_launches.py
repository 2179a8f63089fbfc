"""Kernel to launch to op: through correlation, then containment, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from diffing import half

from traceq.analysis.summary import summarise
from traceq.check.fixture import read_fixture
from traceq.check.numbers import numbers
from traceq.differ.compare import compare
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from pathlib import Path


def test_a_kernel_belongs_to_the_innermost_op_around_its_launch() -> None:
    trace = load_drawn(
        """
        host   [aten::linear               ]
        host     [aten::addmm           ]
        host       [cudaLaunchKernel>5]
        gpu 7                  [gemm<5 ]
        """
    )

    (row,) = trace.kernels.select("launch", "op").rows()
    assert trace.runtime["name"][row[0]] == "cudaLaunchKernel"
    assert trace.ops["name"][row[1]] == "aten::addmm"


def test_a_launch_on_another_thread_is_not_of_an_op_here() -> None:
    trace = load_drawn(
        """
        host     [aten::mm                    ]
        host 2      [cudaLaunchKernel>5]
        gpu 7                    [gemm<5 ]
        """
    )

    assert trace.kernels.select("launch", "op").rows() == [(0, None)]


def test_a_driver_call_launches_as_well() -> None:
    trace = load_drawn(
        """
        host   [triton_poi_fused_add_0]
        host     [cuLaunchKernel>5 ]
        gpu 7               [triton_poi_fused_add_0<5]
        """
    )

    assert trace.kernels.select("launch", "op").rows() == [(0, 0)]


def test_copies_and_sets_are_launched_like_kernels() -> None:
    trace = load_drawn(
        """
        host   [aten::copy_         ] [aten::zero_         ]
        host     [cudaMemcpyAsync>1]    [cudaMemsetAsync>2]
        gpu 7               [Memcpy HtoD (Pinned -> Device)<1] [Memset (Device)<2]
        """
    )

    table = trace.kernels.select("activity", pl.col("op"))
    assert table.rows() == [("memcpy", 0), ("memset", 1)]


def test_an_external_id_that_equals_the_correlation_names_no_op() -> None:
    """Up to torch 2.3 it does: an op of that number is another one."""
    trace = load_drawn(
        """
        host   [aten::wrong] [aten::right          ]
        host                   [cudaLaunchKernel>5]
        gpu 7                               [gemm<5 ]
        """,
        {
            "aten::wrong": {"External id": 5},
            "aten::right": {"External id": 9},
            "cudaLaunchKernel": {"External id": 5},
            "gemm": {"External id": 5},
        },
    )

    assert trace.ops["name"][trace.kernels["op"].item()] == "aten::right"


def test_all_kernels_of_a_graph_are_of_the_one_call_that_launched_it() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#3             ]
        host    [CompiledFunction       ]
        host      [cudaGraphLaunch>5  ]
        gpu 7                 [gemm<5 ][softmax<5 ][Memset (Device)<5 ]
        """
    )

    assert trace.kernels.select("launch", "op", "step").rows() == [(0, 0, 3)] * 3
    assert trace.runtime.select("call", "kernels").rows() == [("graph launch", 3)]
    assert trace.steps.select("kernels", "launches").rows() == [(3, 1)]


def test_a_kernel_whose_launch_was_not_recorded_has_none() -> None:
    trace = load_drawn(
        """
        host   [aten::mm              ]
        host     [cudaLaunchKernel>1]
        gpu 7  [gemm<77][gemm<1 ][gemm ]
        """
    )

    assert trace.kernels["launch"].to_list() == [None, 0, None]
    assert trace.kernels["op"].to_list() == [None, 0, None]


def test_a_call_that_starts_nothing_has_no_kernels() -> None:
    trace = load_drawn(
        """
        host   [cudaStreamIsCapturing>1][cudaLaunchKernel>2]
        gpu 7                                      [gemm<2 ]
        """
    )

    assert trace.runtime["kernels"].to_list() == [0, 1]


def test_a_kernel_that_seems_to_start_before_its_launch_keeps_it() -> None:
    """The clocks of host and GPU differ by a little."""
    trace = load_drawn(
        """
        host        [aten::mm            ]
        host         [cudaLaunchKernel>1]
        gpu 7   [gemm<1 ]
        """
    )

    assert trace.kernels.select("launch", "op").rows() == [(0, 0)]


def test_where_two_calls_have_one_correlation_the_outer_one_is_the_launch() -> None:
    trace = load_drawn(
        """
        host   [aten::mm                    ]
        host    [cudaLaunchKernel>1        ]
        host       [cuLaunchKernel>1 ]
        gpu 7                   [gemm<1 ]
        """
    )

    assert trace.runtime["name"][trace.kernels["launch"].item()] == "cudaLaunchKernel"


@pytest.mark.slow
def test_launches_are_one_number_everywhere(fixture_trace: Path) -> None:
    folder = fixture_trace.parent
    recording = read_fixture(folder).recording()
    trace = recording.trace
    assert trace is not None
    result = numbers(recording).values["launches"]
    steady = trace.steps.filter(~pl.col("warmup"))["launches"].mean()

    assert summarise(trace).launches == pytest.approx(result, abs=1e-3)
    assert steady == pytest.approx(result, abs=1e-3)


def test_copies_and_sets_are_not_launches() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#1                                        ]
        host    [cudaLaunchKernel>1] [cudaMemcpyAsync>2][cudaMemsetAsync>3]
        gpu 7                [gemm<1 ][Memcpy DtoD<2] [Memset<3]
        """
    )

    assert trace.steps["launches"].to_list() == [1]
    assert summarise(trace).launches == 1


@pytest.mark.real
def test_a_launch_whose_kernel_was_lost_is_one_in_all_numbers() -> None:
    trace = load_drawn(
        """
        host   [ProfilerStep#1                                        ]
        host    [cudaLaunchKernel>1] [cudaLaunchKernel>2]
        gpu 7                [gemm<1 ]
        """
    )
    diff = compare(half(trace), half(trace))

    assert trace.steps["launches"].to_list() == [2]
    assert summarise(trace).launches == 2
    assert {metric.name: metric.after for metric in diff.metrics}["launches"] == 2

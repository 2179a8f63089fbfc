"""MEM: memory allocated from the driver in steady steps, on real traces."""

from __future__ import annotations

import pytest
from linting import case_findings, drawn_findings

TWO_STEPS = """
host   [ProfilerStep#1                     ] [ProfilerStep#2                     ]
"""


def test_a_leak_is_found_with_what_each_step_leaks() -> None:
    (found,) = case_findings("memory_leak.trace.json.gz", "MEM001", measured=True)

    assert found.message == (
        "the allocator calls cudaMalloc once a step, and each step leaks 32.0 MiB"
    )
    assert found.subject == "leak"


@pytest.mark.parametrize("name", ["attn_flash", "moe_loop", "copies", "recompile"])
def test_programs_whose_memory_is_steady_have_no_finding(name: str) -> None:
    assert not case_findings(f"{name}.trace.json.gz", "MEM")


def test_memory_of_a_graph_that_is_being_captured_does_not_count() -> None:
    (found,) = case_findings("graph_record.trace.json.gz", "MEM001")

    # Seven more calls, all of cudaFree, lie inside of CUDAGraphNode.record.
    assert found.data["calls"] == {"cudaMalloc": 7}


def test_the_cache_emptied_by_the_program_is_told_from_memory_that_is_full() -> None:
    frees = """
host     [{frame}                      ]      [{frame}                      ]
host      [cudaFree][cudaMalloc]               [cudaFree][cudaMalloc]
"""
    emptied = frees.format(frame="torch/cuda/memory.py(222): empty_cache")
    full = frees.format(frame="train.py(9): step                     ")

    assert [one.subject for one in drawn_findings(TWO_STEPS + emptied, "MEM001")] == [
        "empty_cache"
    ]
    assert [one.subject for one in drawn_findings(TWO_STEPS + full, "MEM001")] == [
        "full"
    ]


def test_calls_of_some_steps_are_counted_in_whole_numbers() -> None:
    calls = """
host     [cudaFree][cudaMalloc]               [cudaMalloc]
"""
    (found,) = drawn_findings(TWO_STEPS + calls, "MEM001")

    assert found.message == (
        "the allocator calls cudaMalloc once a step and cudaFree once in 2 steps"
    )


def test_pinning_on_a_thread_without_ops_costs_the_step_nothing() -> None:
    (found,) = drawn_findings(
        """
        host   [ProfilerStep#1                   ] [ProfilerStep#2                   ]
        host    [aten::mm                       ]   [aten::mm                       ]
        host     [cudaLaunchKernel>1]                [cudaLaunchKernel>2]
        host 2   [cudaHostAlloc    ]                 [cudaHostAlloc    ]
        gpu 7   [gemm<1                         ]   [gemm<2                         ]
        """,
        "MEM002",
    )

    assert (found.host_ns, found.gpu_ns) == (0, 0)


def test_a_single_step_is_no_proof() -> None:
    (found,) = drawn_findings(
        """
        host   [ProfilerStep#1               ]
        host    [aten::empty ]
        host     [cudaMalloc]
        """,
        "MEM001",
    )

    assert found.severity == "info"

"""MEM: memory allocated from the driver in steady steps, on real traces."""

from __future__ import annotations

import pytest
from linting import (
    case_findings,
    drawn_findings,
    mentions,
    priced_findings,
)

from traceq.linter import inputs

TWO_STEPS = """
host   [ProfilerStep#1                     ] [ProfilerStep#2                     ]
"""


def test_a_leak_is_found_with_what_each_step_leaks() -> None:
    (finding,) = case_findings("memory_leak.trace.json.gz", "MEM001", measured=True)

    assert mentions(finding, "cudaMalloc", "once", "32.0 MiB")
    assert finding.subject == "leak"


@pytest.mark.parametrize("name", ["attn_flash", "moe_loop", "copies", "recompile"])
def test_programs_whose_memory_is_steady_have_no_finding(name: str) -> None:
    assert not case_findings(f"{name}.trace.json.gz", "MEM")


def test_memory_of_a_graph_that_is_being_captured_does_not_count() -> None:
    (finding,) = case_findings("graph_record.trace.json.gz", "MEM001")

    # Seven more calls, all of cudaFree, lie inside of CUDAGraphNode.record.
    assert finding.data["calls"] == {"cudaMalloc": 7}


def test_the_cache_emptied_by_the_program_is_told_from_memory_that_is_full() -> None:
    frees = """
host     [{frame}                      ]      [{frame}                      ]
host      [cudaFree][cudaMalloc]               [cudaFree][cudaMalloc]
"""
    emptied = frees.format(frame="torch/cuda/memory.py(222): empty_cache")
    full = frees.format(frame="train.py(9): step                     ")

    assert [
        finding.subject for finding in drawn_findings(TWO_STEPS + emptied, "MEM001")
    ] == ["empty_cache"]
    assert [
        finding.subject for finding in drawn_findings(TWO_STEPS + full, "MEM001")
    ] == ["full"]


def test_calls_of_some_steps_are_counted_in_whole_numbers() -> None:
    calls = """
host     [cudaFree][cudaMalloc]               [cudaMalloc]
"""
    (finding,) = drawn_findings(TWO_STEPS + calls, "MEM001")

    assert mentions(finding, "cudaMalloc once", "cudaFree once in 2")


ALLOCATING = """
host    [aten::relu.1]                         [aten::relu.2]
host     [cudaMalloc]                           [cudaMalloc]
"""


def _relu(*shapes: list[int]) -> dict[str, dict[str, object]]:
    """Return the inputs of a relu in each step."""
    return {
        f"aten::relu.{step}": inputs([shape], ["float"])
        for step, shape in enumerate(shapes, 1)
    }


def test_shapes_that_differ_between_steps_are_to_be_padded() -> None:
    args = _relu([1024, 500], [1024, 600])
    (finding,) = drawn_findings(TWO_STEPS + ALLOCATING, "MEM001", args=args)

    assert finding.subject == "shapes"
    assert finding.advice.startswith("give all steps the same shapes")


def test_where_shapes_are_not_recorded_it_is_not_said_that_they_differ() -> None:
    (finding,) = drawn_findings(TWO_STEPS + ALLOCATING, "MEM001")

    assert finding.subject == "shapes"
    assert finding.advice.startswith("if shapes differ from step to step, pad them")


def test_steps_of_the_same_shapes_are_not_to_be_padded() -> None:
    # Another size of something small, as of the boxes in an image, takes no segment.
    small = """
host                  [aten::add.1]                          [aten::add.2]
"""
    (finding,) = drawn_findings(
        TWO_STEPS + ALLOCATING + small,
        "MEM001",
        args=_relu([1024, 500], [1024, 500])
        | {f"aten::add.{step}": inputs([[step]], ["float"]) for step in (1, 2)},
    )

    assert finding.subject == "same shapes"
    assert "pad" not in finding.advice
    assert "keeps tensors" in finding.advice


def _mallocs(*counts: int) -> str:
    """Draw steps that call cudaMalloc this often."""
    calls = "".join(("[cudaMalloc]" * count).ljust(60) for count in counts)
    steps = "".join(
        f"[ProfilerStep#{step}".ljust(58) + "] " for step in range(1, len(counts) + 1)
    )
    return f"\nhost   {steps}\nhost    {calls}\n"


def test_a_cache_that_is_being_filled_is_no_cost_of_every_step() -> None:
    assert not drawn_findings(_mallocs(4, 2, 1, 1), "MEM001")
    assert drawn_findings(_mallocs(4, 3), "MEM001")
    assert drawn_findings(_mallocs(1, 4, 3, 4), "MEM001")


def _transformed(ops: list[str]) -> str:
    """Draw two steps of ops that vmap calls, one in the other, until they allocate."""
    lines, begin = ["", "", "", ""], 4
    for op in ops:
        width = len(op) + 10
        for depth in range(3):
            span = f"[{op}".ljust(width - 2 * depth - 1) + "]"
            lines[depth] = lines[depth].ljust(begin + depth) + span
        lines[3] = lines[3].ljust(begin + 3) + "[cudaMalloc]"
        begin += width + 10
    length = begin + 20
    steps = "".join(f"[ProfilerStep#{step}".ljust(length - 2) + "] " for step in (1, 2))
    rows = [steps, *(line.ljust(length) * 2 for line in lines)]
    return "\n" + "\n".join(f"host {row}" for row in rows) + "\n"


VMAPPED = ["aten::unsqueeze", "aten::relu", "aten::max_pool2d"]
SHAPES = {op: inputs([[1024, 500]], ["float"]) for op in VMAPPED}


def test_what_the_profiler_keeps_of_vmap_is_not_the_programs() -> None:
    # With record_shapes=True it keeps all tensors that vmap and grad wrap.
    drawing = _transformed(VMAPPED)

    assert not drawn_findings(drawing, "MEM001", args=SHAPES)
    # It keeps none if shapes are not recorded, nor without vmap.
    assert drawn_findings(drawing, "MEM001")
    assert drawn_findings(_transformed(["aten::sum"]), "MEM001", args=SHAPES)


def test_pinning_on_a_thread_without_ops_costs_the_step_nothing() -> None:
    (finding,) = priced_findings(
        """
        host   [ProfilerStep#1                   ] [ProfilerStep#2                   ]
        host    [aten::mm                       ]   [aten::mm                       ]
        host     [cudaLaunchKernel>1]                [cudaLaunchKernel>2]
        host 2   [cudaHostAlloc    ]                 [cudaHostAlloc    ]
        gpu 7   [gemm<1                         ]   [gemm<2                         ]
        """,
        "MEM002",
    )

    assert (finding.host_ns, finding.gpu_ns) == (0, 0)


def test_a_single_step_is_no_proof() -> None:
    (finding,) = priced_findings(
        """
        host   [ProfilerStep#1               ]
        host    [aten::empty ]
        host     [cudaMalloc]
        """,
        "MEM001",
    )

    assert finding.severity == "info"


def test_a_checkpointed_resnet_is_found_in_a_public_trace() -> None:
    (finding,) = case_findings("public/mi300_resnet_checkpoint.json.gz", "MEM011")

    assert (finding.count, finding.place.function) == (4, "train_step")

"""TRC: what a trace lacks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from linting import (
    case_findings,
    drawn_findings,
    mentions,
    outcome,
    priced_findings,
)

from traceq import load
from traceq.model.recording import Recording
from traceq.testing import draw

if TYPE_CHECKING:
    from pathlib import Path

WORKING = """
host   [ProfilerStep#1                 ] [ProfilerStep#2                 ]
host    [aten::mm            ]            [aten::mm            ]
host     [cudaLaunchKernel>1]              [cudaLaunchKernel>2]
gpu 7              [gemm<1            ]              [gemm<2            ]
"""


@pytest.mark.parametrize("name", ["attn_flash", "graph_record", "moe_batched"])
def test_a_trace_with_everything_has_no_finding(name: str) -> None:
    assert not case_findings(f"{name}.trace.json.gz", "TRC")


def test_what_is_missing_is_one_finding_and_only_info() -> None:
    (found,) = case_findings("public/a100_nccl.json.gz", "TRC")

    assert found.code == "TRC001"
    assert found.data == {"missing": ["shapes", "stacks"]}
    assert found.severity == "info"


def test_compilation_in_every_step_is_not_warm_up() -> None:
    assert not case_findings("recompile.trace.json.gz", "TRC003")


def test_compilation_in_a_trace_without_steps_is_part_of_the_averages() -> None:
    (found,) = priced_findings(
        """
        host   [entire_frame_compile][aten::mm          ]
        """,
        "TRC003",
    )

    assert found.message == (
        "the trace has no steps, so compilation is part of the averages"
    )
    assert [
        (one.label, one.unit, round(one.value or 0, 2)) for one in found.evidence
    ] == [
        ("compiled", "ns", 22_000),
        ("share", "share", 0.52),
    ]
    assert found.severity == "warning"


def test_warm_up_that_is_left_out_is_only_info() -> None:
    (found,) = priced_findings(
        """
        host   [ProfilerStep#4                                ][ProfilerStep#5 ]
        host    [aten::mm ]                                     [aten::mm ]
        host                                                                    [ProfilerStep#6 ]
        """,  # noqa: E501 - three steps, of which one is long
        "TRC003",
    )

    assert mentions(found, "step 4")
    assert found.severity == "info"


def test_a_truncated_file_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(draw(WORKING))[:-300])

    (found,) = outcome(Recording("cut", load(path, cache=False)), "TRC004").findings

    assert found.severity == "warning"
    assert "ends before the trace does" in found.evidence[0].name


def test_a_trace_of_the_host_alone_has_launches_without_kernels() -> None:
    host_only = "\n".join(line for line in WORKING.splitlines() if "gpu" not in line)

    (found,) = priced_findings(host_only, "TRC005")

    assert found.severity == "error"


def test_a_few_lost_launches_are_no_error() -> None:
    lost = WORKING.replace("[gemm<2            ]", "")

    assert [one.severity for one in priced_findings(lost, "TRC005")] == ["warning"]


@pytest.mark.parametrize(
    "op", ["aten::cudnn_convolution", "aten::_flash_attention_forward"]
)
def test_operators_that_only_a_gpu_has_show_that_it_was_not_recorded(op: str) -> None:
    (found,) = priced_findings(f"host [{op}   ]", "TRC005")

    assert found.severity == "error"


@pytest.mark.parametrize(
    "drawing",
    [
        "host [aten::mm    ]",
        "host [aten::_scaled_dot_product_flash_attention_for_cpu    ]",
        # The profiler waits for the GPU of the machine when it stops.
        "host [aten::mm    ][cudaDeviceSynchronize]",
    ],
)
def test_a_program_on_the_cpu_lacks_no_gpu_work(drawing: str) -> None:
    assert not drawn_findings(drawing, "TRC005")


def test_a_gpu_of_the_machine_that_has_no_work_is_minor(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    machine = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}
    path.write_text(json.dumps(draw("host [aten::mm    ]") | machine))

    (found,) = outcome(Recording("cpu", load(path, cache=False)), "TRC005").findings

    assert found.severity == "info"


def test_a_trace_without_gpu_work_comes_before_all_other_errors() -> None:
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    host_only = "\n".join(line for line in WORKING.splitlines() if "gpu" not in line)

    found = priced_findings(host_only, log=log)

    assert [one.severity for one in found[:2]] == ["error", "error"]
    assert found[0].code == "TRC005"


def test_launches_that_are_captured_into_a_graph_lack_no_kernel() -> None:
    assert not drawn_findings(
        """
        host   [ProfilerStep#1                                                     ]
        host    [cudaStreamBeginCapture][cudaLaunchKernel>1][cudaStreamEndCapture]
        """,
        "TRC005",
    )

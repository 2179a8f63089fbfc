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
    (finding,) = case_findings("public/a100_nccl.json.gz", "TRC")

    assert finding.code == "TRC001"
    assert finding.data == {"missing": ["shapes", "stacks"]}
    assert finding.severity == "info"


def test_compilation_in_every_step_is_not_warm_up() -> None:
    assert not case_findings("recompile.trace.json.gz", "TRC003")


def test_compilation_in_a_trace_without_steps_is_part_of_the_averages() -> None:
    (finding,) = priced_findings(
        """
        host   [entire_frame_compile][aten::mm          ]
        """,
        "TRC003",
    )

    assert finding.message == (
        "the trace has no steps, so compilation is part of the averages"
    )
    assert [
        (evidence.label, evidence.unit, round(evidence.value or 0, 2))
        for evidence in finding.evidence
    ] == [
        ("compiled", "ns", 22_000),
        ("share", "share", 0.52),
    ]
    assert finding.severity == "warning"


def test_warm_up_that_is_left_out_is_only_info() -> None:
    (finding,) = priced_findings(
        """
        host   [ProfilerStep#4                                ][ProfilerStep#5 ]
        host    [aten::mm ]                                     [aten::mm ]
        host                                                                    [ProfilerStep#6 ]
        """,  # noqa: E501 - three steps, of which one is long
        "TRC003",
    )

    assert mentions(finding, "step 4")
    assert finding.severity == "info"


def test_a_truncated_file_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(draw(WORKING))[:-300])

    (finding,) = outcome(Recording("cut", load(path, cache=False)), "TRC004").findings

    assert finding.severity == "warning"
    assert "ends before the trace does" in finding.evidence[0].name


def test_a_trace_of_the_host_alone_has_launches_without_kernels() -> None:
    host_only = "\n".join(line for line in WORKING.splitlines() if "gpu" not in line)

    (finding,) = priced_findings(host_only, "TRC005")

    assert finding.severity == "error"


def test_a_few_lost_launches_are_no_error() -> None:
    lost = WORKING.replace("[gemm<2            ]", "")

    assert [finding.severity for finding in priced_findings(lost, "TRC005")] == [
        "warning"
    ]


@pytest.mark.parametrize(
    "op", ["aten::cudnn_convolution", "aten::_flash_attention_forward"]
)
def test_operators_that_only_a_gpu_has_show_that_it_was_not_recorded(op: str) -> None:
    (finding,) = priced_findings(f"host [{op}   ]", "TRC005")

    assert finding.severity == "error"


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

    (finding,) = outcome(Recording("cpu", load(path, cache=False)), "TRC005").findings

    assert finding.severity == "info"


def test_a_trace_without_gpu_work_comes_before_all_other_errors() -> None:
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    host_only = "\n".join(line for line in WORKING.splitlines() if "gpu" not in line)

    findings = priced_findings(host_only, log=log)

    assert [finding.severity for finding in findings[:2]] == ["error", "error"]
    assert findings[0].code == "TRC005"


def test_launches_that_are_captured_into_a_graph_lack_no_kernel() -> None:
    assert not drawn_findings(
        """
        host   [ProfilerStep#1                                                     ]
        host    [cudaStreamBeginCapture][cudaLaunchKernel>1][cudaStreamEndCapture]
        """,
        "TRC005",
    )

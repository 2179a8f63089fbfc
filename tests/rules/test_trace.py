"""TRC: what a trace lacks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from linting import case_findings, drawn_findings, outcome

from traceq import load
from traceq.recording import Recording
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
    (found,) = drawn_findings(
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
    (found,) = drawn_findings(
        """
        host   [ProfilerStep#4                                ][ProfilerStep#5 ]
        host    [aten::mm ]                                     [aten::mm ]
        host                                                                    [ProfilerStep#6 ]
        """,  # noqa: E501 - three steps, of which one is long
        "TRC003",
    )

    assert found.message == (
        "step 4 takes far longer than the others and is left out of the averages"
    )
    assert found.severity == "info"


def test_a_truncated_file_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(draw(WORKING))[:-300])

    (found,) = outcome(Recording("cut", load(path, cache=False)), "TRC004").findings

    assert found.severity == "warning"
    assert "ends before the trace does" in found.evidence[0].name


def test_a_trace_of_the_host_alone_has_launches_without_kernels() -> None:
    host_only = "\n".join(line for line in WORKING.splitlines() if "gpu" not in line)

    (found,) = drawn_findings(host_only, "TRC005")

    assert found.message == (
        "no launch has a kernel in the trace: the GPU was not recorded"
    )


def test_launches_that_are_captured_into_a_graph_lack_no_kernel() -> None:
    assert not drawn_findings(
        """
        host   [ProfilerStep#1                                                     ]
        host    [cudaStreamBeginCapture][cudaLaunchKernel>1][cudaStreamEndCapture]
        """,
        "TRC005",
    )

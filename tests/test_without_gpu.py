"""Findings and figures of recordings without GPU work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest
from linting import bundled_rules, drawn_findings, outcome

from traceq.linter import inputs
from traceq.linter.config import Config
from traceq.linter.engine import lint
from traceq.model.finding import Severity
from traceq.model.recording import Recording
from traceq.report.lint import content
from traceq.report.lint.full import render
from traceq.report.lint.json import render as as_json
from traceq.testing import load_drawn

if TYPE_CHECKING:
    from traceq.model.lint_report import RecordingReport

ATTENTION = """
    host   [ProfilerStep#1                                                     ]
    host    [model.py(52): attend                                             ]
    host     [aten::matmul        ] [aten::softmax      ] [aten::matmul      ]
    host     [aten::bmm           ] [aten::_softmax     ] [aten::bmm.x       ]
"""
BFLOAT16 = "c10::BFloat16"
SHAPES = {
    "aten::bmm": inputs([[96, 1024, 64], [96, 64, 1024]], [BFLOAT16] * 2),
    "aten::_softmax": inputs([[8, 12, 1024, 1024]], [BFLOAT16]),
    "aten::bmm.x": inputs([[96, 1024, 1024], [96, 1024, 64]], [BFLOAT16] * 2),
}
NORM = """
    host  [ProfilerStep#1                                                              ]
    host   [model.py(9): norm                                                         ]
    host   [aten::pow       ] [aten::mean      ] [aten::rsqrt     ] [aten::mul       ]
"""
LOADING = """
    host  [ProfilerStep#1                                                                                ]
    host   [train.py(8): main                                                                           ]
    host    [enumerate(DataLoader)#{}.__next__                       ]
    host                                                                              [net.py(3): go  ]
    host                                                                               [aten::mm    ]
"""  # noqa: E501 - the name of the region is this long
CALM = """
    host  [ProfilerStep#1                 ]
    host   [train.py(8): main            ]
    host    [aten::mm      ] [aten::relu]
"""


def drawn(drawing: str) -> RecordingReport:
    """Return what all rules say of a drawn trace."""
    return outcome(Recording("drawn", load_drawn(drawing)))


def optimizer_step(name: str) -> str:
    """Draw a step of an optimizer that updates eight parameters one by one."""
    update = "[aten::add_] "
    width = len(update) * 8
    return "\n".join(
        (
            f"host  [ProfilerStep#1{' ' * (width + 20)}]",
            f"host   [Optimizer.step#{name}.step{' ' * (width - 10)}]",
            f"host    {update * 8}",
        )
    )


def test_handwritten_attention_would_matter_on_a_gpu() -> None:
    (finding,) = drawn_findings(ATTENTION, "ATT003", args=SHAPES)

    assert finding.would_matter_on_gpu
    assert finding.place.line == 52


def test_a_finding_without_a_gpu_claims_no_time() -> None:
    (finding,) = drawn_findings(ATTENTION, "ATT003", args=SHAPES)

    claimed = (
        finding.saves_ns,
        finding.saves_high_ns,
        finding.kernel_ns,
        finding.gpu_idle_ns,
    )
    assert claimed == (0, 0, 0, 0)
    assert "kernel" not in {evidence.label for evidence in finding.evidence}


def test_a_finding_without_a_gpu_fails_no_run() -> None:
    recording = Recording("drawn", load_drawn(ATTENTION, SHAPES))
    report = lint([recording], bundled_rules(), Config(select=("ATT003",)))

    assert report.outcomes[0].findings
    assert not report.failing


def test_it_fails_a_run_that_fails_on_info() -> None:
    recording = Recording("drawn", load_drawn(ATTENTION, SHAPES))
    config = Config(select=("ATT003",), fail_on=Severity.info)

    assert lint([recording], bundled_rules(), config).failing


def test_a_handwritten_norm_would_matter_on_a_gpu() -> None:
    wide, narrow = [8, 1024, 768], [8, 1024, 1]
    args = {
        "aten::pow": inputs([wide, []], ["float", "Scalar"]),
        "aten::mean": inputs([wide, []], ["float", "ScalarList"]),
        "aten::rsqrt": inputs([narrow], ["float"]),
        "aten::mul": inputs([wide, narrow], ["float"] * 2),
    }
    (finding,) = drawn_findings(NORM, "NRM002", args=args)

    assert finding.would_matter_on_gpu
    assert finding.place.line == 9


def test_a_loader_without_workers_would_matter_on_a_gpu() -> None:
    (finding,) = drawn_findings(
        LOADING.format("_SingleProcessDataLoaderIter"), "DAT001"
    )

    assert finding.would_matter_on_gpu
    assert finding.place.function == "main"


def test_workers_that_share_the_cores_are_not_blamed() -> None:
    drawing = LOADING.format("_MultiProcessingDataLoaderIter")

    assert not drawn_findings(drawing, "DAT001")


def test_an_optimizer_of_the_programs_own_would_matter_on_a_gpu() -> None:
    (finding,) = drawn_findings(optimizer_step("Mine"), "LCH003")

    assert finding.would_matter_on_gpu


def test_an_optimizer_of_torch_updates_many_at_once_on_a_gpu() -> None:
    assert not drawn_findings(optimizer_step("Adam"), "LCH003")


@pytest.mark.parametrize(("rows", "count"), [(4096, 1), (8, 0)])
def test_only_large_float32_matmuls_would_matter_on_a_gpu(
    rows: int, count: int
) -> None:
    args = {"aten::mm": inputs([[rows, 1024], [1024, 1024]], ["float"] * 2)}

    assert len(drawn_findings(CALM, "GEM001", args=args)) == count


@pytest.mark.parametrize(("width", "count"), [(50257, 1), (50304, 0)])
def test_a_misaligned_dimension_would_matter_on_a_gpu(width: int, count: int) -> None:
    args = {"aten::mm": inputs([[64, 768], [768, width]], [BFLOAT16] * 2)}

    assert len(drawn_findings(CALM, "GEM002", args=args)) == count


def test_a_rule_that_cannot_look_without_a_gpu_is_skipped_with_the_reason() -> None:
    reasons = {skipped.code: skipped.reason for skipped in drawn(CALM).skipped}

    assert reasons["KRN001"].startswith("the trace has no GPU work")


def test_a_trace_with_gpu_work_has_no_such_findings() -> None:
    findings = drawn_findings(
        """
        host   [ProfilerStep#1                                              ]
        host    [aten::mm           ]                            [aten::add  ]
        host     [cudaLaunchKernel>1]
        host                         [aten::item                ]
        host                          [cudaStreamSynchronize   ]
        gpu 7                [gemm<1                        ]           [add]
        """
    )

    assert findings
    assert not any(finding.would_matter_on_gpu for finding in findings)


def test_the_lines_that_take_longest_come_with_their_time() -> None:
    cpu = drawn(CALM).cpu

    assert cpu is not None
    (line,) = cpu.lines
    # Brackets are of a span: 16 and 12 characters, a microsecond each.
    assert (line.place.file, line.place.line, line.ns) == ("train.py", 8, 28_000)


def test_loading_is_a_line_of_its_own_with_all_of_its_time() -> None:
    cpu = drawn(LOADING.format("_SingleProcessDataLoaderIter")).cpu

    assert cpu is not None
    assert [line.phases for line in cpu.lines] == [("data",), ("forward",)]


def test_a_program_with_a_gpu_has_no_cpu_time() -> None:
    drawing = """
        host   [ProfilerStep#1           ]
        host    [aten::mm           ]
        host     [cudaLaunchKernel>1]
        gpu 7                [gemm<1  ]
    """

    assert drawn(drawing).cpu is None


def test_nothing_that_would_matter_is_said() -> None:
    assert content.verdict(drawn(CALM)).startswith("nothing that would matter on a GPU")


def test_the_screen_has_phases_lines_and_the_heading() -> None:
    recording = Recording("drawn", load_drawn(ATTENTION, SHAPES))
    report = lint([recording], bundled_rules(), Config())
    text = render(report, width=100, color=False)

    for part in ("Phases: ", "Longest lines, as recorded:", "Would matter on a GPU"):
        assert part in text


def test_the_json_marks_such_findings() -> None:
    recording = Recording("drawn", load_drawn(ATTENTION, SHAPES))
    report = lint([recording], bundled_rules(), Config(select=("ATT003",)))
    (result,) = orjson.loads(as_json(report))["recordings"]

    assert result["findings"][0]["would_matter_on_gpu"] is True
    assert [line["place"]["line"] for line in result["cpu"]["lines"]] == [52]


def test_a_module_that_the_loader_calls_is_of_the_phase_data() -> None:
    trace = load_drawn(
        """
        host  [ProfilerStep#1                                                              ]
        host   [enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__]
        host    [nn.Module: Normalize_0     ]
        host     [aten::div    ]
        """  # noqa: E501 - the name of the region is this long
    )

    assert trace.ops["phase"].to_list() == ["data"]


def test_an_lstm_that_asks_for_cudnn_is_no_sign_of_a_gpu() -> None:
    drawing = CALM.replace("aten::relu", "aten::cudnn_is_acceptable")

    assert not drawn_findings(drawing, "TRC005")


def test_an_index_into_data_on_the_host_is_not_a_read() -> None:
    drawing = """
        host   [ProfilerStep#1                                              ]
        host    [train.py(12): main                                        ]
        host     [aten::mm           ] [aten::item                ]
        host                            [aten::_local_scalar_dense]
    """
    integer = inputs([[]], ["long int"])
    args = {"aten::item": integer, "aten::_local_scalar_dense": integer}

    assert not drawn_findings(drawing, "SYN003", args=args)

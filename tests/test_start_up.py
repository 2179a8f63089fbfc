"""A step in which the GPU is started tells nothing of later ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from command import traceq
from conftest import ROOT
from linting import outcome

from traceq.analysis.base.start_up import StartUp, start_up
from traceq.api.lint import lint
from traceq.inputs.load_trace import load
from traceq.model.recording import Recording
from traceq.testing.timeline import draw

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.trace import Trace

FIRST_STEP = ROOT / "fixtures" / "twins" / "first_step" / "trace.json.gz"
STARTS = """
host   [aten::to                            ] [aten::mm            ]
host    [cudaDeviceGetStreamPriorityRange  ]   [cudaFuncGetAttributes]
host                                                         [cudaLaunchKernel>1]
gpu 7                                                                     [gemm<1]
"""


def loaded(drawing: str, folder: Path, scale: int = 1000) -> Trace:
    """Load a drawing in which a character is so many microseconds."""
    drawn = draw(drawing)
    for event in drawn["traceEvents"]:
        for key in ("ts", "dur"):
            if key in event:
                event[key] *= scale
    path = folder / "drawn.json"
    path.write_text(json.dumps(drawn), encoding="utf-8")
    return load(path, cache=False)


def test_the_first_call_makes_the_context_and_others_load(tmp_path: Path) -> None:
    result = start_up(loaded(STARTS, tmp_path))

    assert result == StartUp(
        "cudaDeviceGetStreamPriorityRange", 36_000_000, 43_000_000, 2
    )


def test_a_short_call_of_that_name_starts_nothing(tmp_path: Path) -> None:
    assert start_up(loaded(STARTS, tmp_path, scale=100)) is None


def test_what_comes_after_work_of_the_gpu_starts_nothing(tmp_path: Path) -> None:
    drawing = """
    host   [cudaLaunchKernel>1][cudaDeviceGetStreamPriorityRange  ]
    gpu 7                     [gemm<1]
    """
    assert start_up(loaded(drawing, tmp_path)) is None


@pytest.mark.parametrize("call", ["cudaHostAlloc", "cudaFree"])
def test_another_long_call_before_all_work_starts_nothing(
    call: str, tmp_path: Path
) -> None:
    drawing = STARTS.replace("cudaDeviceGetStreamPriorityRange", call.ljust(32))

    assert start_up(loaded(drawing, tmp_path)) is None


def test_a_start_that_is_little_of_the_trace_does_not_spoil_it(tmp_path: Path) -> None:
    drawing = STARTS + f"host {' ' * 85}[aten::mm{' ' * 700}]"

    assert start_up(loaded(drawing, tmp_path)) is None


def test_a_start_in_warm_up_that_is_left_out_does_not_spoil_the_rest(
    tmp_path: Path,
) -> None:
    step = "[ProfilerStep#{}  ]"
    later = "".join(step.format(number) for number in (2, 3, 4))
    drawing = f"host   [ProfilerStep#1{' ' * 67}]{later}\n{STARTS.strip()}"
    trace = loaded(drawing, tmp_path)

    assert trace.steps["warmup"].to_list() == [True, False, False, False]
    assert start_up(trace) is None


def test_of_the_first_step_rules_on_the_hosts_time_are_skipped() -> None:
    result = lint(FIRST_STEP, cache=False)
    (outcome,) = result.report.outcomes
    reasons = {skipped.code: skipped.reason for skipped in outcome.skipped}

    assert [finding.code for finding in result.failing] == ["TRC003"]
    for code in ("CPY003", "HST003", "LCH002", "MEM001"):
        assert "the first that uses the GPU" in reasons[code]


def test_of_the_first_step_no_part_of_the_idle_time_is_called_unexplained() -> None:
    (outcome,) = lint(FIRST_STEP, cache=False).report.outcomes

    assert outcome.idle is None
    assert outcome.together == ()


@pytest.mark.parametrize("name", ["python_in_step", "copies", "moe_dropless"])
def test_steps_of_a_program_that_runs_start_nothing(name: str) -> None:
    assert start_up(load(ROOT / "fixtures" / name, cache=False)) is None


@pytest.mark.parametrize("command", ["diff", "summary"])
def test_commands_that_only_give_times_say_of_whom_they_are(command: str) -> None:
    traces = [str(FIRST_STEP)] * (2 if command == "diff" else 1)
    answer = traceq(command, "--no-cache", *traces)

    assert "has the first use of the GPU in its steps" in answer.err


def test_where_there_are_no_steps_the_way_to_later_ones_is_named(
    tmp_path: Path,
) -> None:
    trace = loaded(STARTS, tmp_path)
    (finding,) = outcome(Recording("drawn", trace), "TRC003").findings

    assert "begins with the first use of the GPU" in finding.message
    assert "--steps-by repeats" in finding.advice

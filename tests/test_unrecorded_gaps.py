"""Without stacks nobody knows what the host does in a long gap: no fix removes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from linting import outcome
from test_start_up import loaded

from traceq.model.finding import Severity
from traceq.model.recording import Recording

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.model.finding import Finding

WORK = "[aten::mm            ]"
CALL = " [cuLaunchKernel>{}]"
# Fewer kernels are not worth compiling them.
EACH = 20


def step(gap: int) -> str:
    """Draw a step of two times twenty ops, with this much between them."""
    between = " " * gap
    halves = range(1, EACH + 1), range(EACH + 1, 2 * EACH + 1)

    def drawn(cell: str) -> str:
        rows = (
            "".join(cell.format(n).ljust(len(WORK)) for n in halve) for halve in halves
        )
        return between.join(rows)

    return "\n".join(
        (
            f"host  [ProfilerStep#1{' ' * (2 * EACH * len(WORK) + gap - 10)}]",
            f"host   {drawn(WORK)}",
            f"host   {drawn(CALL)}",
            f"gpu 7  {' ' * 20}{drawn('[k<{}]')}",
        )
    )


def found(gap: int, folder: Path) -> Finding:
    """Return the finding on a host-bound step, with a gap of so many times 10 µs."""
    trace = loaded(step(10 * gap), folder, scale=1)
    (finding,) = outcome(Recording("drawn", trace), "LCH002").findings
    return finding


def test_a_long_gap_is_not_what_a_graph_removes(tmp_path: Path) -> None:
    finding = found(300, tmp_path)

    assert finding.saves_ns == 0
    assert finding.gpu_idle_ns > 2_000_000
    assert "with_stack=True" in finding.advice
    assert not finding.example
    (gaps,) = (evidence for evidence in finding.evidence if evidence.label == "gaps")
    assert gaps.note == "a step in 1 gap of over 2.00 ms, unrecorded"


@pytest.mark.real
def test_a_short_gap_is_python_of_the_model(tmp_path: Path) -> None:
    finding = found(19, tmp_path)

    assert finding.saves_ns > found(1, tmp_path).saves_ns + 100_000
    assert "compile(" in finding.advice
    assert not [evidence for evidence in finding.evidence if evidence.label == "gaps"]


@pytest.mark.real
def test_a_gap_in_between_is_the_programs_and_stays(tmp_path: Path) -> None:
    finding = found(100, tmp_path)

    assert 0 < finding.saves_ns < found(19, tmp_path).saves_ns
    assert "compile(" in finding.advice


def test_a_step_that_goes_on_after_its_last_kernel_is_no_minor_finding(
    tmp_path: Path,
) -> None:
    drawing = f"""
    host  [ProfilerStep#1{" " * 500}]
    host   {WORK}
    host   {CALL.format(1)}
    gpu 7                      [a<1]
    """
    trace = loaded(drawing, tmp_path, scale=10)
    (finding,) = outcome(Recording("drawn", trace), "LCH002").findings

    assert finding.severity is Severity.warning
    assert finding.gpu_idle_ns > 4_000_000


@pytest.mark.real
def test_an_operator_that_computes_on_the_host_is_not_what_a_graph_removes(
    tmp_path: Path,
) -> None:
    gap = " " * 1620
    usual, slow = (
        step(len(gap)).replace(WORK + gap, f"{WORK}[{name.ljust(len(gap) - 2)}]")
        for name in ("Myop::randn", "aten::randn")
    )
    saved = [
        outcome(Recording("drawn", loaded(drawing, tmp_path, scale=1)), "LCH002")
        .findings[0]
        .saves_ns
        for drawing in (usual, slow)
    ]

    assert saved[0] > 1_000_000 > saved[1]

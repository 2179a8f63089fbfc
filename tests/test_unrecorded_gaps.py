"""Without stacks nobody knows what the host does in a long gap: no fix removes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linting import outcome
from test_start_up import loaded

from traceq.finding import Severity
from traceq.recording import Recording

if TYPE_CHECKING:
    from pathlib import Path

    from traceq.finding import Finding

WORK = "[aten::mm            ]"
CALL = " [cudaLaunchKernel>{}] "


def step(gap: int) -> str:
    """Draw a step of two ops, with this much between them."""
    width = 2 * len(WORK) + gap
    between = " " * gap
    calls = between.join(CALL.format(number) for number in (1, 2))
    return "\n".join(
        (
            f"host  [ProfilerStep#1{' ' * (width - 10)}]",
            f"host   {WORK}{between}{WORK}",
            f"host   {calls}",
            f"gpu 7  {' ' * 20}[a<1]{' ' * (gap + 17)}[b<2]",
        )
    )


def found(gap: int, folder: Path) -> Finding:
    """Return the finding on a host-bound step, in which a character is 10 µs."""
    trace = loaded(step(gap), folder, scale=10)
    (finding,) = outcome(Recording("drawn", trace), "LCH002").findings
    return finding


def test_a_long_gap_is_not_what_a_graph_removes(tmp_path: Path) -> None:
    finding = found(300, tmp_path)

    assert finding.saves_ns == 0
    assert finding.gpu_idle_ns > 2_000_000
    assert "with_stack=True" in finding.advice
    assert not finding.example
    (gaps,) = (one for one in finding.evidence if one.label == "gaps")
    assert gaps.note == "a step in 1 gap of over 2.00 ms, unrecorded"


def test_a_short_gap_is_python_of_the_model(tmp_path: Path) -> None:
    finding = found(19, tmp_path)

    assert finding.saves_ns > found(1, tmp_path).saves_ns + 100_000
    assert "torch.compile" in finding.advice
    assert not [one for one in finding.evidence if one.label == "gaps"]


def test_a_gap_in_between_is_the_programs_and_stays(tmp_path: Path) -> None:
    finding = found(100, tmp_path)

    assert 0 < finding.saves_ns < found(19, tmp_path).saves_ns
    assert "torch.compile" in finding.advice


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


def test_an_operator_that_computes_on_the_host_is_not_what_a_graph_removes(
    tmp_path: Path,
) -> None:
    usual, slow = (
        f"""
        host  [ProfilerStep#1{" " * 190}]
        host   [aten::randn{" " * 150}]{WORK}
        host   {" " * 162}{CALL.format(1)}
        gpu 7  {" " * 182}[a<1]
        """.replace("aten::randn", name)
        for name in ("Myop::randn", "aten::randn")
    )
    saved = [
        outcome(Recording("drawn", loaded(drawing, tmp_path, scale=10)), "LCH002")
        .findings[0]
        .saves_ns
        for drawing in (usual, slow)
    ]

    assert saved[0] > 1_000_000 > saved[1]

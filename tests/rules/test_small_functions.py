"""HST003: small functions of the program that together take long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linting import drawn_findings, mentions, placed

if TYPE_CHECKING:
    from traceq.linter import Finding

Span = tuple[int, int, str]


def helpers(
    *lengths: int, caller: str = "train.py(3): prepare", called: str = "sum"
) -> tuple[Finding, ...]:
    """Return what HST003 finds of functions that take this long in two steps."""
    step = 10_000
    lanes: dict[str, list[Span]] = {
        "host ": [(0, step - 10, "ProfilerStep#{}")],
        "host  ": [(1, 110, "torch/nn.py(5): f")],
        "host   ": [(2, 100, "aten::mm")],
        "host    ": [(4, 24, "cudaLaunchKernel>{}1")],
        "gpu 7": [(60, step - 6000, "gemm<{}1")],
    }
    at = 4300
    for number, length in enumerate(lengths):
        lanes["host   "].append((at, length, f"help.py({number + 2}0): help_{number}"))
        lanes["host    "].append((at + 2, length - 4, f"<built-in function {called}>"))
        at += length + 10
    lanes["host  "].append((4290, at - 4280, caller))
    return drawn_findings(placed(lanes, step, 2), "HST003")


def test_small_functions_of_one_caller_are_one_finding() -> None:
    findings = helpers(200, 150, 120, 250)

    (finding,) = [found for found in findings if "prepare" in found.subject]
    assert mentions(finding, "4 small functions", "prepare", "help_3", "help_0")
    assert (finding.place.file, finding.place.line) == ("train.py", 3)
    spans = finding.fixes[0].spans
    assert spans is not None
    assert (spans["end"] - spans["start"]).sum() >= 2 * 700_000
    first = next(line.name for line in finding.evidence if line.label == "of it")
    assert first == "help_3 (help.py:50)"


def test_a_function_that_takes_long_alone_is_a_finding_of_its_own() -> None:
    subjects = {finding.subject for finding in helpers(1500, 150, 120, 250)}

    assert "help_0" in subjects
    assert "functions of prepare" in subjects


def test_small_functions_that_together_take_little_are_nothing() -> None:
    assert not helpers(50, 60, 40)


def test_a_function_with_a_cause_of_its_own_has_its_own_advice() -> None:
    subjects = {
        finding.subject
        for finding in helpers(500, 510, called="method split of str object")
    }

    assert {"help_0", "help_1"} <= subjects


def test_a_generator_is_of_the_function_that_has_it() -> None:
    step = 10_000
    lanes: dict[str, list[Span]] = {
        "host ": [(0, step - 10, "ProfilerStep#{}")],
        "host  ": [(1, 110, "torch/nn.py(5): f"), (4300, 4000, "a.py(3): tidy")],
        "host   ": [(2, 100, "aten::mm"), (4800, 3000, "a.py(4): <genexpr>")],
        "host    ": [
            (4, 24, "cudaLaunchKernel>{}1"),
            (4802, 2990, "<built-in function len>"),
        ],
        "gpu 7": [(60, step - 6000, "gemm<{}1")],
    }
    (finding,) = drawn_findings(placed(lanes, step, 2), "HST003")

    assert finding.subject == "tidy"
    assert finding.message.endswith("once a step")
    spans = finding.fixes[0].spans
    assert spans is not None
    assert (spans["end"] - spans["start"]).sum() >= 2 * 3_900_000

"""FUS: memory-bound ops that a compiler would fuse, on real traces."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT
from linting import case_findings, mentions, outcome

from traceq import load
from traceq.model.recording import Recording

if TYPE_CHECKING:
    from traceq.model.lint_report import RecordingReport

MODELS = ROOT / "benchmarks" / "models"
COMPILED = ROOT / "tests" / "data" / "compiled"


@cache
def of_model(name: str) -> RecordingReport:
    """Return what all rules say of a recorded model, as far as the trace shows it."""
    return outcome(Recording(name, load(MODELS / f"{name}.trace.json.gz")))


def test_a_program_has_one_finding_of_all_its_chains() -> None:
    (found,) = (one for one in of_model("gpt2_eager").findings if one.code == "FUS001")

    assert mentions(found, "memory-bound", "fuse")
    assert found.doubt == "preview"
    assert found.saves_ns > 0.02 * of_model("gpt2_eager").step_ns


def test_kernels_of_other_findings_are_not_counted_again() -> None:
    findings = of_model("gpt2_eager").findings
    (mine,) = (one for one in findings if one.code == "FUS001")
    others = [one for one in findings if not one.residual]

    assert not mine.kernels & frozenset[int]().union(*(one.kernels for one in others))


@pytest.mark.parametrize("name", ["transformer", "fp32", "conv", "vocabulary"])
def test_a_compiled_program_has_none(name: str) -> None:
    recording = Recording(name, load(COMPILED / name))

    assert outcome(recording, "FUS001").findings == ()


def test_a_program_without_long_chains_has_none() -> None:
    assert case_findings("optimizer_fused.trace.json.gz", "FUS001") == ()


def test_findings_explain_most_of_the_losses_of_a_gpu_bound_step() -> None:
    gpu = of_model("gpt2_eager").gpu

    assert gpu is not None
    assert gpu.share > 0.8
    assert gpu.explained_ns <= gpu.above_ns <= gpu.busy_ns


def test_a_host_bound_step_has_no_account_of_gpu_losses() -> None:
    assert of_model("t5_norms").gpu is None


def test_a_fix_that_saves_time_after_another_says_so() -> None:
    found = of_model("t5_norms")
    (later,) = (one for one in found.findings if one.after)

    assert (later.code, later.after, later.minor) == ("ATT001", ("LCH002",), "")
    assert later.saves_ns > 0.02 * found.step_ns > (later.saves_alone_ns or 0)
    assert found.together[-1].step_ns == found.step_ns - sum(
        one.saves_after_ns or 0 for one in found.findings
    )


def test_a_torch_without_a_compiler_is_to_be_upgraded_first() -> None:
    found = case_findings("public/v100_resnet50_workers0.json.gz", "FUS001")

    assert [one.advice.startswith("upgrade torch") for one in found] == [True]

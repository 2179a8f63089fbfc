"""Rules on models that others wrote: what they count, and what the repair saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from captures import read_captures
from linting import (
    linted,
    mentions,
)
from recordings import ROOT

if TYPE_CHECKING:
    from traceq.linter import Finding

MODELS = read_captures(ROOT / "benchmarks" / "models")

pytestmark = pytest.mark.real


def found(name: str, code: str) -> list[Finding]:
    """Return the findings of a rule in the capture of a model, worst first."""
    outcome = linted(MODELS.trace(name), MODELS.step_ns(name))
    return [finding for finding in outcome.findings if finding.code == code]


def saved_ns(name: str) -> int:
    """Return what a step takes less after the repair, as measured."""
    return MODELS.step_ns(name) - MODELS.step_ns(f"{name}_fixed")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("course_attention", "ATT003"),
        ("gpt2_eager", "ATT003"),
        ("llama_eager", "ATT003"),
        ("resnet_nchw", "LAY001"),
        ("llama_norms", "NRM002"),
        ("llama_small_norms", "NRM002"),
        ("t5_norms", "NRM002"),
    ],
)
def test_a_finding_saves_what_its_repair_did(name: str, code: str) -> None:
    (finding,) = found(name, code)

    assert finding.saves_ns == pytest.approx(saved_ns(name), rel=0.25)


def test_the_experts_of_a_model_are_counted_as_its_author_does() -> None:
    (finding,) = found("mixtral_experts", "LCH001")

    assert mentions(finding, "16 experts", 20)
    assert "38 in its backward" in finding.message


@pytest.mark.parametrize("code", ["LCH001", "HST001", "CPY004"])
def test_experts_of_a_library_are_computed_at_once_by_its_switch(code: str) -> None:
    for finding in found("mixtral_experts", code):
        assert finding.advice.startswith('load the model with experts_implementation="')
        assert "pad" not in finding.advice


def test_rows_of_different_length_that_are_copied_one_by_one_are_found() -> None:
    written, read = found("slices_copied", "CPY004")

    assert mentions(written, "[128,64,256]", 128)
    assert read.message.startswith("the gradient of a [")
    together = written.saves_ns + read.saves_ns
    assert together == pytest.approx(saved_ns("slices_copied"), rel=0.25)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gradient_norms_logged", 76),
        ("averaged_weights", 152),
        ("clipped_one_by_one", 152),
    ],
)
def test_a_loop_over_the_parameters_is_one_finding(name: str, parameters: int) -> None:
    (finding,) = found(name, "LCH001")

    assert mentions(finding, f"{parameters} parameters")
    assert "torch._foreach_" in finding.advice


def test_the_layers_of_a_model_are_not_a_loop_to_stack() -> None:
    assert not found("graphs_pooled", "LCH001")


def test_a_padding_mask_on_fused_kernels_is_no_fallback() -> None:
    assert not found("encoder_padding_mask", "ATT001")
